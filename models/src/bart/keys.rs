//! The names of BART's parameters in files.

use super::BartConfig;
use crate::pretrained::Part::{Embedding, Linear, Norm, Param};
use crate::pretrained::{KeyMap, Row};

const SHARED: &[Row] = &[
    (Embedding, "shared", "tokens"),
    (Embedding, "encoder.embed_positions", "encoder.embeddings.positions"),
    (Norm, "encoder.layernorm_embedding", "encoder.embeddings.norm"),
    (Embedding, "decoder.embed_positions", "decoder.embeddings.positions"),
    (Norm, "decoder.layernorm_embedding", "decoder.embeddings.norm"),
];
const ENCODER: &[Row] = &[
    (Linear, "encoder.layers.#.self_attn.q_proj", "encoder.blocks.#.attention.query"),
    (Linear, "encoder.layers.#.self_attn.k_proj", "encoder.blocks.#.attention.key"),
    (Linear, "encoder.layers.#.self_attn.v_proj", "encoder.blocks.#.attention.value"),
    (Linear, "encoder.layers.#.self_attn.out_proj", "encoder.blocks.#.attention.output"),
    (Norm, "encoder.layers.#.self_attn_layer_norm", "encoder.blocks.#.attention.norm"),
    (Linear, "encoder.layers.#.fc1", "encoder.blocks.#.feed_forward.widen"),
    (Linear, "encoder.layers.#.fc2", "encoder.blocks.#.feed_forward.narrow"),
    (Norm, "encoder.layers.#.final_layer_norm", "encoder.blocks.#.feed_forward.norm"),
];
const DECODER: &[Row] = &[
    (Linear, "decoder.layers.#.self_attn.q_proj", "decoder.blocks.#.attention.query"),
    (Linear, "decoder.layers.#.self_attn.k_proj", "decoder.blocks.#.attention.key"),
    (Linear, "decoder.layers.#.self_attn.v_proj", "decoder.blocks.#.attention.value"),
    (Linear, "decoder.layers.#.self_attn.out_proj", "decoder.blocks.#.attention.output"),
    (Norm, "decoder.layers.#.self_attn_layer_norm", "decoder.blocks.#.attention.norm"),
    (Linear, "decoder.layers.#.encoder_attn.q_proj", "decoder.blocks.#.source.query"),
    (Linear, "decoder.layers.#.encoder_attn.k_proj", "decoder.blocks.#.source.key"),
    (Linear, "decoder.layers.#.encoder_attn.v_proj", "decoder.blocks.#.source.value"),
    (Linear, "decoder.layers.#.encoder_attn.out_proj", "decoder.blocks.#.source.output"),
    (Norm, "decoder.layers.#.encoder_attn_layer_norm", "decoder.blocks.#.source.norm"),
    (Linear, "decoder.layers.#.fc1", "decoder.blocks.#.feed_forward.widen"),
    (Linear, "decoder.layers.#.fc2", "decoder.blocks.#.feed_forward.narrow"),
    (Norm, "decoder.layers.#.final_layer_norm", "decoder.blocks.#.feed_forward.norm"),
];
/// A file of the model without its head lacks it, and so may a file of the whole model.
const BIAS: &[Row] = &[(Param, "final_logits_bias", "final_logits_bias")];

pub(super) fn conditional_generation(config: &BartConfig) -> KeyMap {
    let map = KeyMap::new("model.")
        .body(SHARED)
        .layers(config.encoder_layers, ENCODER)
        .layers(config.decoder_layers, DECODER)
        .optional(BIAS)
        // The first files contain the version of their format.
        .ignored(&["encoder.version", "decoder.version"]);
    let tied = [
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
    ];
    tied.into_iter().fold(map, |map, name| map.alias(name, "model.shared.weight"))
}
