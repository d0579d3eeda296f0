//! The names of T5's parameters in files.

use super::T5Config;
use crate::pretrained::Layout::{Same, Transposed};
use crate::pretrained::{KeyMap, Row};

const SHARED: &[Row] = &[
    ("shared.weight", "tokens.weight", Same),
    ("encoder.final_layer_norm.weight", "encoder.norm.scale", Same),
    ("decoder.final_layer_norm.weight", "decoder.norm.scale", Same),
    (
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "encoder.bias.table.weight",
        Same,
    ),
    (
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        "decoder.bias.table.weight",
        Same,
    ),
];
const ENCODER: &[Row] = &[
    ("encoder.block.#.layer.0.layer_norm.weight", "encoder.blocks.#.attention_norm.scale", Same),
    ("encoder.block.#.layer.0.SelfAttention.q.weight", "encoder.blocks.#.attention.query.weight", Transposed),
    ("encoder.block.#.layer.0.SelfAttention.k.weight", "encoder.blocks.#.attention.key.weight", Transposed),
    ("encoder.block.#.layer.0.SelfAttention.v.weight", "encoder.blocks.#.attention.value.weight", Transposed),
    (
        "encoder.block.#.layer.0.SelfAttention.o.weight",
        "encoder.blocks.#.attention.output.weight",
        Transposed,
    ),
    ("encoder.block.#.layer.1.layer_norm.weight", "encoder.blocks.#.feed_forward.norm.scale", Same),
    (
        "encoder.block.#.layer.1.DenseReluDense.wo.weight",
        "encoder.blocks.#.feed_forward.narrow.weight",
        Transposed,
    ),
];
const ENCODER_PLAIN: &[Row] = &[(
    "encoder.block.#.layer.1.DenseReluDense.wi.weight",
    "encoder.blocks.#.feed_forward.widen.weight",
    Transposed,
)];
const ENCODER_GATED: &[Row] = &[
    (
        "encoder.block.#.layer.1.DenseReluDense.wi_0.weight",
        "encoder.blocks.#.feed_forward.gate.weight",
        Transposed,
    ),
    (
        "encoder.block.#.layer.1.DenseReluDense.wi_1.weight",
        "encoder.blocks.#.feed_forward.widen.weight",
        Transposed,
    ),
];
const DECODER: &[Row] = &[
    ("decoder.block.#.layer.0.layer_norm.weight", "decoder.blocks.#.attention_norm.scale", Same),
    ("decoder.block.#.layer.0.SelfAttention.q.weight", "decoder.blocks.#.attention.query.weight", Transposed),
    ("decoder.block.#.layer.0.SelfAttention.k.weight", "decoder.blocks.#.attention.key.weight", Transposed),
    ("decoder.block.#.layer.0.SelfAttention.v.weight", "decoder.blocks.#.attention.value.weight", Transposed),
    (
        "decoder.block.#.layer.0.SelfAttention.o.weight",
        "decoder.blocks.#.attention.output.weight",
        Transposed,
    ),
    ("decoder.block.#.layer.1.layer_norm.weight", "decoder.blocks.#.source_norm.scale", Same),
    ("decoder.block.#.layer.1.EncDecAttention.q.weight", "decoder.blocks.#.source.query.weight", Transposed),
    ("decoder.block.#.layer.1.EncDecAttention.k.weight", "decoder.blocks.#.source.key.weight", Transposed),
    ("decoder.block.#.layer.1.EncDecAttention.v.weight", "decoder.blocks.#.source.value.weight", Transposed),
    ("decoder.block.#.layer.1.EncDecAttention.o.weight", "decoder.blocks.#.source.output.weight", Transposed),
    ("decoder.block.#.layer.2.layer_norm.weight", "decoder.blocks.#.feed_forward.norm.scale", Same),
    (
        "decoder.block.#.layer.2.DenseReluDense.wo.weight",
        "decoder.blocks.#.feed_forward.narrow.weight",
        Transposed,
    ),
];
const DECODER_PLAIN: &[Row] = &[(
    "decoder.block.#.layer.2.DenseReluDense.wi.weight",
    "decoder.blocks.#.feed_forward.widen.weight",
    Transposed,
)];
const DECODER_GATED: &[Row] = &[
    (
        "decoder.block.#.layer.2.DenseReluDense.wi_0.weight",
        "decoder.blocks.#.feed_forward.gate.weight",
        Transposed,
    ),
    (
        "decoder.block.#.layer.2.DenseReluDense.wi_1.weight",
        "decoder.blocks.#.feed_forward.widen.weight",
        Transposed,
    ),
];
const HEAD: &[Row] = &[("lm_head.weight", "head.weight", Transposed)];

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
