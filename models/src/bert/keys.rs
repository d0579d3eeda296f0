//! The names of BERT's parameters in files.

use super::BertConfig;
use crate::pretrained::Layout::{Same, Transposed};
use crate::pretrained::{CLASSIFIER, KeyMap, Row};

const EMBEDDINGS: &[Row] = &[
    ("embeddings.word_embeddings.weight", "bert.embeddings.tokens.weight", Same),
    ("embeddings.position_embeddings.weight", "bert.embeddings.positions.weight", Same),
    ("embeddings.token_type_embeddings.weight", "bert.embeddings.segments.weight", Same),
    ("embeddings.LayerNorm.weight", "bert.embeddings.norm.scale", Same),
    ("embeddings.LayerNorm.bias", "bert.embeddings.norm.bias", Same),
];
const BLOCK: &[Row] = &[
    ("encoder.layer.#.attention.self.query.weight", "bert.blocks.#.query.weight", Transposed),
    ("encoder.layer.#.attention.self.query.bias", "bert.blocks.#.query.bias", Same),
    ("encoder.layer.#.attention.self.key.weight", "bert.blocks.#.key.weight", Transposed),
    ("encoder.layer.#.attention.self.key.bias", "bert.blocks.#.key.bias", Same),
    ("encoder.layer.#.attention.self.value.weight", "bert.blocks.#.value.weight", Transposed),
    ("encoder.layer.#.attention.self.value.bias", "bert.blocks.#.value.bias", Same),
    ("encoder.layer.#.attention.output.dense.weight", "bert.blocks.#.output.weight", Transposed),
    ("encoder.layer.#.attention.output.dense.bias", "bert.blocks.#.output.bias", Same),
    ("encoder.layer.#.attention.output.LayerNorm.weight", "bert.blocks.#.attention_norm.scale", Same),
    ("encoder.layer.#.attention.output.LayerNorm.bias", "bert.blocks.#.attention_norm.bias", Same),
    ("encoder.layer.#.intermediate.dense.weight", "bert.blocks.#.widen.weight", Transposed),
    ("encoder.layer.#.intermediate.dense.bias", "bert.blocks.#.widen.bias", Same),
    ("encoder.layer.#.output.dense.weight", "bert.blocks.#.narrow.weight", Transposed),
    ("encoder.layer.#.output.dense.bias", "bert.blocks.#.narrow.bias", Same),
    ("encoder.layer.#.output.LayerNorm.weight", "bert.blocks.#.feed_forward_norm.scale", Same),
    ("encoder.layer.#.output.LayerNorm.bias", "bert.blocks.#.feed_forward_norm.bias", Same),
];
const CLASSIFIER_ROWS: &[Row] =
    &[("classifier.weight", "classifier.weight", Transposed), ("classifier.bias", "classifier.bias", Same)];
const POOLER: &[Row] =
    &[("pooler.dense.weight", "dense.weight", Transposed), ("pooler.dense.bias", "dense.bias", Same)];
const ROBERTA_CLASSIFIER: &[Row] = &[
    ("classifier.dense.weight", "dense.weight", Transposed),
    ("classifier.dense.bias", "dense.bias", Same),
    ("classifier.out_proj.weight", "classifier.weight", Transposed),
    ("classifier.out_proj.bias", "classifier.bias", Same),
];
const MASKED_LM: &[Row] = &[
    ("cls.predictions.transform.dense.weight", "transform.weight", Transposed),
    ("cls.predictions.transform.dense.bias", "transform.bias", Same),
    ("cls.predictions.transform.LayerNorm.weight", "norm.scale", Same),
    ("cls.predictions.transform.LayerNorm.bias", "norm.bias", Same),
    ("cls.predictions.bias", "bias", Same),
];
const ROBERTA_MASKED_LM: &[Row] = &[
    ("lm_head.dense.weight", "transform.weight", Transposed),
    ("lm_head.dense.bias", "transform.bias", Same),
    ("lm_head.layer_norm.weight", "norm.scale", Same),
    ("lm_head.layer_norm.bias", "norm.bias", Same),
    ("lm_head.bias", "bias", Same),
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
