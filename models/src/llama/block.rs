//! A block of the decoder: attention and a gated feed-forward layer.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::{Attending, Reads, add};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::LlamaConfig;
use crate::attention::{join_heads, normed_heads, scale_of, split_heads};
use crate::key_value::{KeyValue, behind};
use crate::rope::{Angles, rotated};
use crate::{Activation, Linear, RmsNorm};

/// Attention and a gated feed-forward layer (Shazeer, 2020, arXiv:2002.05202), each applied to a normalised copy of
/// its input and added to that input. In a Gemma, what is added is normalised too.
#[derive(Module, Debug)]
pub(super) struct Block {
    attention_norm: RmsNorm,
    /// Of queries, and, without `key` and `value`, of keys and values after them.
    query: Linear,
    key: Option<Linear>,
    value: Option<Linear>,
    /// Of each head's queries.
    query_norm: Option<RmsNorm>,
    key_norm: Option<RmsNorm>,
    output: Linear,
    attention_output_norm: Option<RmsNorm>,
    feed_forward_norm: RmsNorm,
    /// To the gate, and, without `widen`, to what it multiplies after it.
    gate: Linear,
    widen: Option<Linear>,
    narrow: Linear,
    feed_forward_output_norm: Option<RmsNorm>,
    weight_dropout: Dropout,
    heads: usize,
    key_value_heads: usize,
    #[module(skip)]
    activation: Activation,
    /// The factor of the products of queries and keys.
    score_scale: f64,
    /// The bound of attention scores.
    #[module(skip)]
    score_cap: Option<f64>,
}

impl Block {
    pub fn new(config: &LlamaConfig, device: &Device) -> Self {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, key_value_heads) = (config.num_attention_heads, config.key_value_heads());
        let (of_inputs, of_output) = config.attention_biases();
        let (kind, size) = (config.kind(), config.head_size());
        let joins = kind.joins();
        let gemma = config.gemma().unwrap_or_else(|error| panic!("{error}"));
        let from_input = |heads| config.linear(width, heads * size, of_inputs, device);
        let of_heads = || kind.norms_heads().then(|| config.norm_of(size, device));
        let of_result = || kind.is_gemma().then(|| config.norm(device));
        let feed_forward = |from, to| config.linear(from, to, config.mlp_bias, device);
        Self {
            attention_norm: config.norm(device),
            query: from_input(if joins { heads + 2 * key_value_heads } else { heads }),
            key: (!joins).then(|| from_input(key_value_heads)),
            value: (!joins).then(|| from_input(key_value_heads)),
            query_norm: of_heads(),
            key_norm: of_heads(),
            output: config.linear(heads * size, width, of_output, device),
            attention_output_norm: of_result(),
            feed_forward_norm: config.norm(device),
            gate: feed_forward(width, if joins { 2 * inner } else { inner }),
            widen: (!joins).then(|| feed_forward(width, inner)),
            narrow: feed_forward(inner, width),
            feed_forward_output_norm: of_result(),
            weight_dropout: Dropout::new(config.attention_dropout),
            heads,
            key_value_heads,
            activation: config.hidden_act,
            score_scale: gemma.map_or_else(|| scale_of(size), |gemma| gemma.score_scale),
            score_cap: gemma.and_then(|gemma| gemma.score_cap),
        }
    }

    /// `[batch, length, width]` to the same shape; `angles` are the rotations of the positions.
    pub fn forward(&self, x: Tensor<3>, angles: Angles, reads: Reads, pass: &Pass) -> Tensor<3> {
        self.read_on(x, None, angles, reads, pass).0
    }

    /// Like `forward`, but continues after the keys and values in `past`, and also returns the keys and values of
    /// both; `reads` covers both too.
    pub fn read_on(
        &self,
        x: Tensor<3>,
        past: Option<KeyValue>,
        angles: Angles,
        reads: Reads,
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let (x, normed) = self.attention_norm.with_input(x);
        let [query, key, value] = self.projected(pass.before_columns(normed), pass);
        let query = rotated(normed_heads(self.query_norm.as_ref(), query, pass), angles.clone());
        let key = rotated(normed_heads(self.key_norm.as_ref(), key, pass), angles);
        let (keys, values) = behind(past, key, value);
        let (scale, cap) = (self.score_scale, self.score_cap);
        let of_share = pass.of_share(pass.share_of(self.heads));
        let attending = Attending { reads: &reads, scale, cap, dropout: self.weight_dropout.at(&of_share) };
        let mixed = pass.attention([query, keys.clone(), values.clone()], None, attending);
        let mixed = self.output.forward_rows(join_heads(mixed), pass);
        let mixed = match &self.attention_output_norm {
            Some(norm) => norm.forward(mixed),
            None => mixed,
        };
        let (x, normed) = self.feed_forward_norm.of_sum(x, mixed);
        let hidden = self.activated(pass.before_columns(normed), pass);
        let x = match &self.feed_forward_output_norm {
            Some(norm) => {
                let hidden = self.narrow.forward_rows(hidden, pass);
                add(x, norm.forward(hidden))
            }
            None => pass.end_of_segment(|| add(x, self.narrow.forward_rows(hidden, pass))),
        };
        (x, (keys, values))
    }

    /// The dtype of the weights.
    pub fn dtype(&self) -> FloatDType {
        FloatDType::from(self.narrow.weight.base().dtype())
    }

    /// The layers that ranks may divide, of blocks at this path.
    pub fn tensor_plan(&self, path: &str) -> TensorPlan {
        let (heads, shared) = (self.heads, self.key_value_heads);
        let of = |name: &str| format!("{path}.{name}");
        let plan = match &self.key {
            Some(_) => TensorPlan::new().columns(of("query"), [heads]).columns(of("key"), [shared]),
            None => TensorPlan::new().columns(of("query"), [heads, shared, shared]),
        };
        let plan = if self.value.is_some() { plan.columns(of("value"), [shared]) } else { plan };
        let plan = plan.rows(of("output"), heads);
        let outputs = self.gate.outputs();
        let (plan, inner) = match &self.widen {
            Some(_) => (plan.columns(of("gate"), [outputs]).columns(of("widen"), [outputs]), outputs),
            None => (plan.columns(of("gate"), [outputs / 2; 2]), outputs / 2),
        };
        plan.rows(of("narrow"), inner)
    }

    /// Queries, keys and values, each `[batch, its heads, length, size]`.
    fn projected(&self, x: Tensor<3>, pass: &Pass) -> [Tensor<4>; 3] {
        let (heads, shared) = (pass.share_of(self.heads), pass.share_of(self.key_value_heads));
        let [query, key, value] = match (&self.key, &self.value) {
            (Some(key), Some(value)) => {
                [self.query.forward(x.clone(), pass), key.forward(x.clone(), pass), value.forward(x, pass)]
            }
            _ => {
                let joint = self.query.forward(x, pass);
                let size = joint.dims()[2] / (heads + 2 * shared);
                [(0, heads), (heads, shared), (heads + shared, shared)]
                    .map(|(first, heads)| joint.clone().narrow(2, first * size, heads * size))
            }
        };
        [split_heads(query, heads), split_heads(key, shared), split_heads(value, shared)]
    }

    /// The activations inside the feed-forward layer.
    fn activated(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let (gate, up) = match &self.widen {
            Some(widen) => (self.gate.forward(x.clone(), pass), widen.forward(x, pass)),
            None => {
                let joint = self.gate.forward(x, pass);
                let inner = joint.dims()[2] / 2;
                (joint.clone().narrow(2, 0, inner), joint.narrow(2, inner, inner))
            }
        };
        self.activation.gated(gate, up)
    }
}
