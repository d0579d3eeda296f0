//! The names of Llama's parameters in files.

use super::LlamaConfig;
use crate::pretrained::Layout::{Same, Transposed};
use crate::pretrained::{KeyMap, Row};

const EMBEDDINGS: &[Row] =
    &[("embed_tokens.weight", "tokens.weight", Same), ("norm.weight", "norm.scale", Same)];
const BLOCK: &[Row] = &[
    ("layers.#.input_layernorm.weight", "blocks.#.attention_norm.scale", Same),
    ("layers.#.self_attn.q_proj.weight", "blocks.#.query.weight", Transposed),
    ("layers.#.self_attn.k_proj.weight", "blocks.#.key.weight", Transposed),
    ("layers.#.self_attn.v_proj.weight", "blocks.#.value.weight", Transposed),
    ("layers.#.self_attn.o_proj.weight", "blocks.#.output.weight", Transposed),
    ("layers.#.post_attention_layernorm.weight", "blocks.#.feed_forward_norm.scale", Same),
    ("layers.#.mlp.gate_proj.weight", "blocks.#.gate.weight", Transposed),
    ("layers.#.mlp.up_proj.weight", "blocks.#.widen.weight", Transposed),
    ("layers.#.mlp.down_proj.weight", "blocks.#.narrow.weight", Transposed),
];
const INPUT_BIASES: &[Row] = &[
    ("layers.#.self_attn.q_proj.bias", "blocks.#.query.bias", Same),
    ("layers.#.self_attn.k_proj.bias", "blocks.#.key.bias", Same),
    ("layers.#.self_attn.v_proj.bias", "blocks.#.value.bias", Same),
];
const OUTPUT_BIAS: &[Row] = &[("layers.#.self_attn.o_proj.bias", "blocks.#.output.bias", Same)];
const FEED_FORWARD_BIASES: &[Row] = &[
    ("layers.#.mlp.gate_proj.bias", "blocks.#.gate.bias", Same),
    ("layers.#.mlp.up_proj.bias", "blocks.#.widen.bias", Same),
    ("layers.#.mlp.down_proj.bias", "blocks.#.narrow.bias", Same),
];
const HEAD: &[Row] = &[("lm_head.weight", "head.weight", Transposed)];

pub(super) fn causal_lm(config: &LlamaConfig) -> KeyMap {
    let (inputs, output) = config.attention_biases();
    let map = KeyMap::new("model.").body(EMBEDDINGS);
    let parts = [
        (true, BLOCK),
        (inputs, INPUT_BIASES),
        (output, OUTPUT_BIAS),
        (config.mlp_bias, FEED_FORWARD_BIASES),
    ];
    let map = parts
        .into_iter()
        .filter(|(there, _)| *there)
        .fold(map, |map, (_, rows)| map.layers(config.num_hidden_layers, rows));
    // Rotary frequencies in early files.
    let map = map.ignored(&["layers.#.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"]);
    match config.tie_word_embeddings {
        true => map.alias("lm_head.weight", "model.embed_tokens.weight"),
        false => map.head(HEAD),
    }
}
