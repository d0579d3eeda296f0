//! The names of BERT's parameters in files.

use super::BertConfig;
use super::kind::BertLine;
use crate::pretrained::Part::{Embedding, Linear, Norm, Param};
use crate::pretrained::{CLASSIFIER, KeyMap, Row};

const EMBEDDINGS: &[Row] = &[
    (Embedding, "embeddings.word_embeddings", "encoder.embeddings.tokens"),
    (Norm, "embeddings.LayerNorm", "encoder.embeddings.norm"),
];
const POSITIONS: &[Row] = &[(Embedding, "embeddings.position_embeddings", "encoder.embeddings.positions")];
const SEGMENTS: &[Row] = &[(Embedding, "embeddings.token_type_embeddings", "encoder.embeddings.segments")];
const PROJECT: &[Row] = &[(Linear, "embeddings_project", "encoder.project")];
const BLOCK: &[Row] = &[
    (Linear, "encoder.layer.#.attention.self.query", "encoder.blocks.#.query"),
    (Linear, "encoder.layer.#.attention.self.key", "encoder.blocks.#.key"),
    (Linear, "encoder.layer.#.attention.self.value", "encoder.blocks.#.value"),
    (Linear, "encoder.layer.#.attention.output.dense", "encoder.blocks.#.output"),
    (Norm, "encoder.layer.#.attention.output.LayerNorm", "encoder.blocks.#.attention_norm"),
    (Linear, "encoder.layer.#.intermediate.dense", "encoder.blocks.#.widen"),
    (Linear, "encoder.layer.#.output.dense", "encoder.blocks.#.narrow"),
    (Norm, "encoder.layer.#.output.LayerNorm", "encoder.blocks.#.feed_forward_norm"),
];
const DISTILBERT_BLOCK: &[Row] = &[
    (Linear, "transformer.layer.#.attention.q_lin", "encoder.blocks.#.query"),
    (Linear, "transformer.layer.#.attention.k_lin", "encoder.blocks.#.key"),
    (Linear, "transformer.layer.#.attention.v_lin", "encoder.blocks.#.value"),
    (Linear, "transformer.layer.#.attention.out_lin", "encoder.blocks.#.output"),
    (Norm, "transformer.layer.#.sa_layer_norm", "encoder.blocks.#.attention_norm"),
    (Linear, "transformer.layer.#.ffn.lin1", "encoder.blocks.#.widen"),
    (Linear, "transformer.layer.#.ffn.lin2", "encoder.blocks.#.narrow"),
    (Norm, "transformer.layer.#.output_layer_norm", "encoder.blocks.#.feed_forward_norm"),
];
const DEBERTA_DISTANCES: &[Row] = &[
    (Embedding, "encoder.rel_embeddings", "encoder.distances.table"),
    (Norm, "encoder.LayerNorm", "encoder.distances.norm"),
];
const DEBERTA_CONVOLUTION: &[Row] = &[
    (Param, "encoder.conv.conv.weight", "encoder.convolution.weight"),
    (Param, "encoder.conv.conv.bias", "encoder.convolution.bias"),
    (Norm, "encoder.conv.LayerNorm", "encoder.convolution.norm"),
];
const DEBERTA_BLOCK: &[Row] = &[
    (Linear, "encoder.layer.#.attention.self.query_proj", "encoder.blocks.#.query"),
    (Linear, "encoder.layer.#.attention.self.key_proj", "encoder.blocks.#.key"),
    (Linear, "encoder.layer.#.attention.self.value_proj", "encoder.blocks.#.value"),
    (Linear, "encoder.layer.#.attention.self.pos_key_proj", "encoder.blocks.#.disentangled.key"),
    (Linear, "encoder.layer.#.attention.self.pos_query_proj", "encoder.blocks.#.disentangled.query"),
    (Linear, "encoder.layer.#.attention.output.dense", "encoder.blocks.#.output"),
    (Norm, "encoder.layer.#.attention.output.LayerNorm", "encoder.blocks.#.attention_norm"),
    (Linear, "encoder.layer.#.intermediate.dense", "encoder.blocks.#.widen"),
    (Linear, "encoder.layer.#.output.dense", "encoder.blocks.#.narrow"),
    (Norm, "encoder.layer.#.output.LayerNorm", "encoder.blocks.#.feed_forward_norm"),
];
const CLASSIFIER_ROWS: &[Row] = &[(Linear, "classifier", "classifier")];
const POOLER: &[Row] = &[(Linear, "pooler.dense", "transform.dense")];
const DISTILBERT_POOLER: &[Row] = &[(Linear, "pre_classifier", "transform.dense")];
/// The classifier of RoBERTa and ELECTRA.
const JOINT_CLASSIFIER: &[Row] =
    &[(Linear, "classifier.dense", "transform.dense"), (Linear, "classifier.out_proj", "classifier")];
const MASKED_LM: &[Row] = &[
    (Linear, "cls.predictions.transform.dense", "transform.dense"),
    (Norm, "cls.predictions.transform.LayerNorm", "transform.norm"),
    (Param, "cls.predictions.bias", "bias"),
];
const ROBERTA_MASKED_LM: &[Row] = &[
    (Linear, "lm_head.dense", "transform.dense"),
    (Norm, "lm_head.layer_norm", "transform.norm"),
    (Param, "lm_head.bias", "bias"),
];
const DISTILBERT_MASKED_LM: &[Row] = &[
    (Linear, "vocab_transform", "transform.dense"),
    (Norm, "vocab_layer_norm", "transform.norm"),
    (Param, "vocab_projector.bias", "bias"),
];
const ELECTRA_MASKED_LM: &[Row] = &[
    (Linear, "generator_predictions.dense", "transform.dense"),
    (Norm, "generator_predictions.LayerNorm", "transform.norm"),
    (Param, "generator_lm_head.bias", "bias"),
];
/// The head of DeBERTa's original files.
const DEBERTA_MASKED_LM: &[Row] = &[
    (Linear, "lm_predictions.lm_head.dense", "transform.dense"),
    (Norm, "lm_predictions.lm_head.LayerNorm", "transform.norm"),
    (Param, "lm_predictions.lm_head.bias", "bias"),
];
/// The names of all masked LM heads, and of the discriminators of ELECTRA and DeBERTa.
const LM_HEADS: &[&str] = &[
    "cls.*",
    "lm_head.*",
    "vocab_transform.*",
    "vocab_layer_norm.*",
    "vocab_projector.*",
    "generator_predictions.*",
    "generator_lm_head.*",
    "discriminator_predictions.*",
    "lm_predictions.*",
    "mask_predictions.*",
];

/// The encoder's keys. Ignored are position ids, which early files hold.
fn body(config: &BertConfig) -> KeyMap {
    let prefix = match config.kind() {
        BertLine::Bert => "bert.",
        BertLine::Roberta => "roberta.",
        BertLine::DistilBert => "distilbert.",
        BertLine::Electra => "electra.",
        BertLine::Deberta => "deberta.",
    };
    let map = KeyMap::new(prefix).body(EMBEDDINGS);
    let layers = config.num_hidden_layers;
    let map = match config.kind() {
        BertLine::DistilBert => map.body(POSITIONS).layers(layers, DISTILBERT_BLOCK),
        BertLine::Bert | BertLine::Roberta | BertLine::Electra => {
            map.body(POSITIONS).body(SEGMENTS).layers(layers, BLOCK)
        }
        BertLine::Deberta => {
            let map = map
                .body(SEGMENTS)
                .body(DEBERTA_DISTANCES)
                .body(DEBERTA_CONVOLUTION)
                .layers(layers, DEBERTA_BLOCK);
            match config.deberta() {
                Ok(Some(deberta)) if deberta.is_absolute => map.body(POSITIONS),
                // Files hold them though they are never read.
                _ => map.ignored(&["embeddings.position_embeddings.weight"]),
            }
        }
    };
    let is_projected = config.embedding_width() != config.hidden_size;
    let map = if is_projected { map.body(PROJECT) } else { map };
    map.ignored(&["embeddings.position_ids", "embeddings.token_type_ids", "qa_outputs.*"])
}

pub(super) fn token_classifier(config: &BertConfig) -> KeyMap {
    // The classifiers of texts belong to another task.
    let others = ["pooler.*", "pre_classifier.*", "classifier.dense.*", "classifier.out_proj.*"];
    body(config).ignored(LM_HEADS).ignored(&others).new_head(CLASSIFIER, CLASSIFIER_ROWS)
}

pub(super) fn sequence_classifier(config: &BertConfig) -> KeyMap {
    let map = body(config).ignored(LM_HEADS);
    match config.kind() {
        BertLine::Bert => map.new_head_of_body("pooler", POOLER).new_head(CLASSIFIER, CLASSIFIER_ROWS),
        BertLine::Roberta => map.ignored(&["pooler.*"]).new_head(CLASSIFIER, JOINT_CLASSIFIER),
        BertLine::DistilBert => {
            map.new_head("pre_classifier", DISTILBERT_POOLER).new_head(CLASSIFIER, CLASSIFIER_ROWS)
        }
        BertLine::Electra => map.new_head(CLASSIFIER, JOINT_CLASSIFIER),
        BertLine::Deberta => map.new_head("pooler", POOLER).new_head(CLASSIFIER, CLASSIFIER_ROWS),
    }
}

pub(super) fn masked_lm(config: &BertConfig) -> KeyMap {
    let others = ["pooler.*", "cls.seq_relationship.*", "discriminator_predictions.*", "mask_predictions.*"];
    let map = body(config).ignored(&others).ignored(&["pre_classifier.*", "classifier.*"]);
    let is_legacy = config.deberta().is_ok_and(|deberta| deberta.is_none_or(|deberta| deberta.is_legacy));
    match config.kind() {
        BertLine::Bert => map
            .new_head("cls", MASKED_LM)
            .alias("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight")
            .alias("cls.predictions.decoder.bias", "cls.predictions.bias"),
        BertLine::Roberta => map
            .new_head("lm_head", ROBERTA_MASKED_LM)
            .alias("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight")
            .alias("lm_head.decoder.bias", "lm_head.bias"),
        BertLine::DistilBert => map
            .new_head("vocab_transform", DISTILBERT_MASKED_LM)
            .alias("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
        BertLine::Electra => map
            .new_head("generator_predictions", ELECTRA_MASKED_LM)
            .alias("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
        BertLine::Deberta if is_legacy => map
            .new_head("cls", MASKED_LM)
            .alias("cls.predictions.decoder.weight", "deberta.embeddings.word_embeddings.weight")
            .alias("cls.predictions.decoder.bias", "cls.predictions.bias")
            .ignored(&["lm_predictions.*"]),
        BertLine::Deberta => map.new_head("lm_predictions", DEBERTA_MASKED_LM).ignored(&["cls.*"]),
    }
}
