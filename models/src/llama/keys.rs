//! The names of Llama's parameters in files.

use super::LlamaConfig;
use crate::pretrained::Part::{Embedding, Linear, Norm};
use crate::pretrained::{KeyMap, Row};

const EMBEDDINGS: &[Row] = &[(Embedding, "embed_tokens", "tokens"), (Norm, "norm", "norm")];
const BLOCK: &[Row] = &[
    (Norm, "layers.#.input_layernorm", "blocks.#.attention_norm"),
    (Linear, "layers.#.self_attn.o_proj", "blocks.#.output"),
    (Linear, "layers.#.mlp.down_proj", "blocks.#.narrow"),
];
const NORM_BETWEEN: &[Row] = &[(Norm, "layers.#.post_attention_layernorm", "blocks.#.feed_forward_norm")];
const NORMS_OF_GEMMA: &[Row] = &[
    (Norm, "layers.#.post_attention_layernorm", "blocks.#.attention_output_norm"),
    (Norm, "layers.#.pre_feedforward_layernorm", "blocks.#.feed_forward_norm"),
    (Norm, "layers.#.post_feedforward_layernorm", "blocks.#.feed_forward_output_norm"),
];
const APART: &[Row] = &[
    (Linear, "layers.#.self_attn.q_proj", "blocks.#.query"),
    (Linear, "layers.#.self_attn.k_proj", "blocks.#.key"),
    (Linear, "layers.#.self_attn.v_proj", "blocks.#.value"),
    (Linear, "layers.#.mlp.gate_proj", "blocks.#.gate"),
    (Linear, "layers.#.mlp.up_proj", "blocks.#.widen"),
];
const JOINED: &[Row] = &[
    (Linear, "layers.#.self_attn.qkv_proj", "blocks.#.query"),
    (Linear, "layers.#.mlp.gate_up_proj", "blocks.#.gate"),
];
const NORMS_OF_HEADS: &[Row] = &[
    (Norm, "layers.#.self_attn.q_norm", "blocks.#.query_norm"),
    (Norm, "layers.#.self_attn.k_norm", "blocks.#.key_norm"),
];
const HEAD: &[Row] = &[(Linear, "lm_head", "head")];

pub(super) fn causal_lm(config: &LlamaConfig) -> KeyMap {
    let layers = config.num_hidden_layers;
    let map = KeyMap::new("model.").body(EMBEDDINGS).layers(layers, BLOCK);
    let kind = config.kind();
    let map = map.layers(layers, if kind.is_gemma() { NORMS_OF_GEMMA } else { NORM_BETWEEN });
    let map = map.layers(layers, if kind.joins() { JOINED } else { APART });
    let map = if kind.norms_heads() { map.layers(layers, NORMS_OF_HEADS) } else { map };
    // Rotary frequencies in early files.
    let map = map.ignored(&["layers.#.self_attn.rotary_emb.inv_freq", "rotary_emb.inv_freq"]);
    match config.tie_word_embeddings {
        true => map.alias("lm_head.weight", "model.embed_tokens.weight"),
        false => map.head(HEAD),
    }
}
