//! The names of BERT's parameters in files.

use super::BertConfig;
use crate::pretrained::Part::{Embedding, Linear, Norm, Param};
use crate::pretrained::{CLASSIFIER, KeyMap, Row};

const EMBEDDINGS: &[Row] = &[
    (Embedding, "embeddings.word_embeddings", "bert.embeddings.tokens"),
    (Embedding, "embeddings.position_embeddings", "bert.embeddings.positions"),
    (Embedding, "embeddings.token_type_embeddings", "bert.embeddings.segments"),
    (Norm, "embeddings.LayerNorm", "bert.embeddings.norm"),
];
const BLOCK: &[Row] = &[
    (Linear, "encoder.layer.#.attention.self.query", "bert.blocks.#.query"),
    (Linear, "encoder.layer.#.attention.self.key", "bert.blocks.#.key"),
    (Linear, "encoder.layer.#.attention.self.value", "bert.blocks.#.value"),
    (Linear, "encoder.layer.#.attention.output.dense", "bert.blocks.#.output"),
    (Norm, "encoder.layer.#.attention.output.LayerNorm", "bert.blocks.#.attention_norm"),
    (Linear, "encoder.layer.#.intermediate.dense", "bert.blocks.#.widen"),
    (Linear, "encoder.layer.#.output.dense", "bert.blocks.#.narrow"),
    (Norm, "encoder.layer.#.output.LayerNorm", "bert.blocks.#.feed_forward_norm"),
];
const CLASSIFIER_ROWS: &[Row] = &[(Linear, "classifier", "classifier")];
const POOLER: &[Row] = &[(Linear, "pooler.dense", "dense")];
const ROBERTA_CLASSIFIER: &[Row] =
    &[(Linear, "classifier.dense", "dense"), (Linear, "classifier.out_proj", "classifier")];
const MASKED_LM: &[Row] = &[
    (Linear, "cls.predictions.transform.dense", "transform"),
    (Norm, "cls.predictions.transform.LayerNorm", "norm"),
    (Param, "cls.predictions.bias", "bias"),
];
const ROBERTA_MASKED_LM: &[Row] = &[
    (Linear, "lm_head.dense", "transform"),
    (Norm, "lm_head.layer_norm", "norm"),
    (Param, "lm_head.bias", "bias"),
];

/// The encoder's keys. Ignored are position ids, which early files hold, and the tensors of other tasks' `heads`.
fn body(config: &BertConfig, heads: &[&'static str]) -> KeyMap {
    let prefix = if config.is_roberta() { "roberta." } else { "bert." };
    KeyMap::new(prefix)
        .body(EMBEDDINGS)
        .layers(config.num_hidden_layers, BLOCK)
        .ignored(&["embeddings.position_ids", "embeddings.token_type_ids"])
        .ignored(heads)
}

pub(super) fn token_classifier(config: &BertConfig) -> KeyMap {
    // RoBERTa's sequence classifier belongs to another task.
    let others =
        ["pooler.*", "cls.*", "lm_head.*", "qa_outputs.*", "classifier.dense.*", "classifier.out_proj.*"];
    body(config, &others).new_head(CLASSIFIER, CLASSIFIER_ROWS)
}

pub(super) fn sequence_classifier(config: &BertConfig) -> KeyMap {
    let others = ["cls.*", "lm_head.*", "qa_outputs.*"];
    match config.is_roberta() {
        true => body(config, &others).ignored(&["pooler.*"]).new_head(CLASSIFIER, ROBERTA_CLASSIFIER),
        false => {
            body(config, &others).new_head_of_body("pooler", POOLER).new_head(CLASSIFIER, CLASSIFIER_ROWS)
        }
    }
}

pub(super) fn masked_lm(config: &BertConfig) -> KeyMap {
    let others = ["pooler.*", "cls.seq_relationship.*", "qa_outputs.*", "classifier.*"];
    match config.is_roberta() {
        true => body(config, &others)
            .new_head("lm_head", ROBERTA_MASKED_LM)
            .alias("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight")
            .alias("lm_head.decoder.bias", "lm_head.bias"),
        false => body(config, &others)
            .new_head("cls", MASKED_LM)
            .alias("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")
            .alias("cls.predictions.decoder.bias", "cls.predictions.bias"),
    }
}
