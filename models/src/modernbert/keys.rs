//! The names of ModernBERT's parameters in files.

use super::ModernBertConfig;
use crate::pretrained::Part::{Embedding, Linear, Norm, Param};
use crate::pretrained::{CLASSIFIER, KeyMap, Row};

const ENDS: &[Row] = &[
    (Embedding, "embeddings.tok_embeddings", "encoder.tokens"),
    (Norm, "embeddings.norm", "encoder.embedding_norm"),
    (Norm, "final_norm", "encoder.norm"),
];
const BLOCK: &[Row] = &[
    (Norm, "layers.#.attn_norm", "encoder.blocks.#.attention_norm"),
    (Linear, "layers.#.attn.Wqkv", "encoder.blocks.#.query_key_value"),
    (Linear, "layers.#.attn.Wo", "encoder.blocks.#.output"),
    (Norm, "layers.#.mlp_norm", "encoder.blocks.#.feed_forward_norm"),
    (Linear, "layers.#.mlp.Wi", "encoder.blocks.#.widen"),
    (Linear, "layers.#.mlp.Wo", "encoder.blocks.#.narrow"),
];
const TRANSFORM: &[Row] = &[(Linear, "head.dense", "transform.dense"), (Norm, "head.norm", "transform.norm")];
const CLASSIFIER_ROWS: &[Row] = &[(Linear, "classifier", "classifier")];
const BIAS: &[Row] = &[(Param, "decoder.bias", "bias")];

fn body(config: &ModernBertConfig) -> KeyMap {
    KeyMap::new("model.").body(ENDS).layers(config.num_hidden_layers, BLOCK).new_head("head", TRANSFORM)
}

pub(super) fn classifier(config: &ModernBertConfig) -> KeyMap {
    body(config).new_head(CLASSIFIER, CLASSIFIER_ROWS).ignored(&["decoder.*"])
}

pub(super) fn masked_lm(config: &ModernBertConfig) -> KeyMap {
    let map = if config.decoder_bias { body(config).new_head("decoder", BIAS) } else { body(config) };
    map.alias("decoder.weight", "model.embeddings.tok_embeddings.weight").ignored(&["classifier.*"])
}
