//! The names of T5's parameters in files.

use super::T5Config;
use crate::pretrained::Part::{Embedding, Linear, Norm};
use crate::pretrained::{KeyMap, Row};

const SHARED: &[Row] = &[
    (Embedding, "shared", "tokens"),
    (Norm, "encoder.final_layer_norm", "encoder.norm"),
    (Norm, "decoder.final_layer_norm", "decoder.norm"),
    (Embedding, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias", "encoder.bias.table"),
    (Embedding, "decoder.block.0.layer.0.SelfAttention.relative_attention_bias", "decoder.bias.table"),
];
const ENCODER: &[Row] = &[
    (Norm, "encoder.block.#.layer.0.layer_norm", "encoder.blocks.#.attention_norm"),
    (Linear, "encoder.block.#.layer.0.SelfAttention.q", "encoder.blocks.#.attention.query"),
    (Linear, "encoder.block.#.layer.0.SelfAttention.k", "encoder.blocks.#.attention.key"),
    (Linear, "encoder.block.#.layer.0.SelfAttention.v", "encoder.blocks.#.attention.value"),
    (Linear, "encoder.block.#.layer.0.SelfAttention.o", "encoder.blocks.#.attention.output"),
    (Norm, "encoder.block.#.layer.1.layer_norm", "encoder.blocks.#.feed_forward.norm"),
    (Linear, "encoder.block.#.layer.1.DenseReluDense.wo", "encoder.blocks.#.feed_forward.narrow"),
];
const ENCODER_PLAIN: &[Row] =
    &[(Linear, "encoder.block.#.layer.1.DenseReluDense.wi", "encoder.blocks.#.feed_forward.widen")];
const ENCODER_GATED: &[Row] = &[
    (Linear, "encoder.block.#.layer.1.DenseReluDense.wi_0", "encoder.blocks.#.feed_forward.gate"),
    (Linear, "encoder.block.#.layer.1.DenseReluDense.wi_1", "encoder.blocks.#.feed_forward.widen"),
];
const DECODER: &[Row] = &[
    (Norm, "decoder.block.#.layer.0.layer_norm", "decoder.blocks.#.attention_norm"),
    (Linear, "decoder.block.#.layer.0.SelfAttention.q", "decoder.blocks.#.attention.query"),
    (Linear, "decoder.block.#.layer.0.SelfAttention.k", "decoder.blocks.#.attention.key"),
    (Linear, "decoder.block.#.layer.0.SelfAttention.v", "decoder.blocks.#.attention.value"),
    (Linear, "decoder.block.#.layer.0.SelfAttention.o", "decoder.blocks.#.attention.output"),
    (Norm, "decoder.block.#.layer.1.layer_norm", "decoder.blocks.#.source_norm"),
    (Linear, "decoder.block.#.layer.1.EncDecAttention.q", "decoder.blocks.#.source.query"),
    (Linear, "decoder.block.#.layer.1.EncDecAttention.k", "decoder.blocks.#.source.key"),
    (Linear, "decoder.block.#.layer.1.EncDecAttention.v", "decoder.blocks.#.source.value"),
    (Linear, "decoder.block.#.layer.1.EncDecAttention.o", "decoder.blocks.#.source.output"),
    (Norm, "decoder.block.#.layer.2.layer_norm", "decoder.blocks.#.feed_forward.norm"),
    (Linear, "decoder.block.#.layer.2.DenseReluDense.wo", "decoder.blocks.#.feed_forward.narrow"),
];
const DECODER_PLAIN: &[Row] =
    &[(Linear, "decoder.block.#.layer.2.DenseReluDense.wi", "decoder.blocks.#.feed_forward.widen")];
const DECODER_GATED: &[Row] = &[
    (Linear, "decoder.block.#.layer.2.DenseReluDense.wi_0", "decoder.blocks.#.feed_forward.gate"),
    (Linear, "decoder.block.#.layer.2.DenseReluDense.wi_1", "decoder.blocks.#.feed_forward.widen"),
];
const HEAD: &[Row] = &[(Linear, "lm_head", "head")];

pub(super) fn conditional_generation(config: &T5Config) -> KeyMap {
    let gated = config.feed_forward().is_ok_and(|(_, gated)| gated);
    let (encoder_inner, decoder_inner) =
        if gated { (ENCODER_GATED, DECODER_GATED) } else { (ENCODER_PLAIN, DECODER_PLAIN) };
    let map = KeyMap::new("")
        .body(SHARED)
        .layers(config.num_layers, ENCODER)
        .layers(config.num_layers, encoder_inner)
        .layers(config.decoder_layers(), DECODER)
        .layers(config.decoder_layers(), decoder_inner)
        .alias("encoder.embed_tokens.weight", "shared.weight")
        .alias("decoder.embed_tokens.weight", "shared.weight")
        // Early files contain a bias that is never added.
        .ignored(&["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"]);
    match config.tie_word_embeddings {
        true => map.alias("lm_head.weight", "shared.weight"),
        false => map.head(HEAD),
    }
}
