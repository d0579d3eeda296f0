//! Blocks of T5's encoder and decoder, and the bias of attention scores by the distance of two positions.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use firebrick_kernels::{Reads, Samples};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::T5Config;
use crate::attention::{attend, join_heads, split_heads};
use crate::key_value::{KeyValue, behind};
use crate::vocabulary::embedded;
use crate::{Activation, Linear, RmsNorm};

/// Attention with unscaled scores; smaller initial weights compensate.
#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    dropout: Dropout,
    heads: usize,
}

impl Attention {
    fn new(config: &T5Config, device: &Device) -> Self {
        let (width, inner) = (config.d_model, config.num_heads * config.d_kv);
        Self {
            query: config.linear([width, inner], width * config.d_kv, device),
            key: config.linear([width, inner], width, device),
            value: config.linear([width, inner], width, device),
            output: config.linear([inner, width], inner, device),
            dropout: Dropout::new(config.dropout_rate),
            heads: config.num_heads,
        }
    }

    /// Attends from `x`, `[batch, length, d_model]`, to `read`, `[batch, read, d_model]`, whose `samples` stand elsewhere
    /// if it is not `x`.
    fn forward(
        &self,
        x: Tensor<3>,
        (read, samples): (Tensor<3>, &Samples),
        bias: Option<Tensor<4>>,
        reads: Reads,
        pass: &Pass,
    ) -> Tensor<3> {
        let kept = self.key_value(read, &pass.placed_as(samples));
        self.attended(x, kept, bias, reads, pass)
    }

    /// The layers that ranks may divide, of an attention at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let of = |name: &str| format!("{path}.{name}");
        let plan = TensorPlan::new().columns(of("query"), [self.heads]).columns(of("key"), [self.heads]);
        plan.columns(of("value"), [self.heads]).rows(of("output"), self.heads)
    }

    /// Keys and values of `read`, `[batch, read, d_model]`.
    fn key_value(&self, read: Tensor<3>, pass: &Pass) -> KeyValue {
        let heads = pass.share_of(self.heads);
        let key = split_heads(self.key.forward(read.clone(), pass), heads);
        (key, split_heads(self.value.forward(read, pass), heads))
    }

    /// Like `forward`, with given keys and values.
    fn attended(
        &self,
        x: Tensor<3>,
        (key, value): KeyValue,
        bias: Option<Tensor<4>>,
        reads: Reads,
        pass: &Pass,
    ) -> Tensor<3> {
        let query = split_heads(self.query.forward(x, pass), pass.share_of(self.heads));
        let mixed = attend([query, key, value], bias, 1.0, &reads, &self.dropout, pass);
        self.dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass)
    }
}

/// A feed-forward layer on a normalised copy of its input, added to that input. In v1.1 it has a gate.
#[derive(Module, Debug)]
struct FeedForward {
    norm: RmsNorm,
    gate: Option<Linear>,
    widen: Linear,
    narrow: Linear,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl FeedForward {
    fn new(config: &T5Config, device: &Device) -> Self {
        let (activation, gated) = config.feed_forward().unwrap_or_else(|error| panic!("{error}"));
        let widen = || config.linear([config.d_model, config.d_ff], config.d_model, device);
        Self {
            norm: config.norm(device),
            gate: gated.then(widen),
            widen: widen(),
            narrow: config.linear([config.d_ff, config.d_model], config.d_ff, device),
            dropout: Dropout::new(config.dropout_rate),
            activation,
        }
    }

    /// The layers that ranks may divide, of a layer at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let (of, inner) = (|name: &str| format!("{path}.{name}"), self.widen.outputs());
        let plan = TensorPlan::new().columns(of("widen"), [inner]).rows(of("narrow"), inner);
        if self.gate.is_some() { plan.columns(of("gate"), [inner]) } else { plan }
    }

    /// The layer on the sum of `x` and `y`.
    fn forward(&self, x: Tensor<3>, y: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let (x, normed) = self.norm.of_sum(x, y);
        let normed = pass.before_columns(normed);
        let widened = self.widen.forward(normed.clone(), pass);
        let hidden = match &self.gate {
            Some(gate) => self.activation.gated(gate.forward(normed, pass), widened),
            None => self.activation.forward(widened),
        };
        let of_share = pass.of_share(hidden.dims()[2]);
        let hidden = self.dropout.forward(hidden, &of_share);
        pass.end_of_segment(|| self.dropout.forward_onto(x, self.narrow.forward_rows(hidden, pass), pass))
    }
}

/// A block in which each position attends to its whole row.
#[derive(Module, Debug)]
pub(super) struct EncoderBlock {
    attention_norm: RmsNorm,
    attention: Attention,
    feed_forward: FeedForward,
}

impl EncoderBlock {
    pub fn new(config: &T5Config, device: &Device) -> Self {
        Self {
            attention_norm: config.norm(device),
            attention: Attention::new(config, device),
            feed_forward: FeedForward::new(config, device),
        }
    }

    /// `[batch, length, d_model]` to the same shape.
    pub fn forward(&self, x: Tensor<3>, bias: Tensor<4>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let (x, normed) = self.attention_norm.with_input(x);
        let normed = pass.before_columns(normed);
        let mixed = self.attention.forward(normed.clone(), (normed, pass.samples()), Some(bias), reads, pass);
        self.feed_forward.forward(x, mixed, pass)
    }

    /// The layers that ranks may divide, of blocks at this path.
    pub fn tensor_plan(&self, path: &str) -> TensorPlan {
        let of_attention = self.attention.tensor_plan(&format!("{path}.attention"));
        of_attention.and(self.feed_forward.tensor_plan(&format!("{path}.feed_forward")))
    }
}

/// A block in which each position attends to earlier positions and to the whole source.
#[derive(Module, Debug)]
pub(super) struct DecoderBlock {
    attention_norm: RmsNorm,
    attention: Attention,
    source_norm: RmsNorm,
    source: Attention,
    feed_forward: FeedForward,
}

impl DecoderBlock {
    pub fn new(config: &T5Config, device: &Device) -> Self {
        Self {
            attention_norm: config.norm(device),
            attention: Attention::new(config, device),
            source_norm: config.norm(device),
            source: Attention::new(config, device),
            feed_forward: FeedForward::new(config, device),
        }
    }

    /// `[batch, length, d_model]` to the same shape; `source` holds the encoder's output and what is read of it,
    /// and `samples` says where its samples stand.
    pub fn forward(
        &self,
        x: Tensor<3>,
        bias: Tensor<4>,
        reads: Reads,
        (source, source_reads): (Tensor<3>, Reads),
        samples: &Samples,
        pass: &Pass,
    ) -> Tensor<3> {
        let (x, normed) = self.attention_norm.with_input(x);
        let normed = pass.before_columns(normed);
        let mixed = self.attention.forward(normed.clone(), (normed, pass.samples()), Some(bias), reads, pass);
        let (x, normed) = self.source_norm.of_sum(x, mixed);
        let (normed, source) = (pass.before_columns(normed), pass.sum_gradients(source));
        let mixed = self.source.forward(normed, (source, samples), None, source_reads, pass);
        self.feed_forward.forward(x, mixed, pass)
    }

    /// Keys and values of a source, `[batch, source length, d_model]`.
    pub fn of_source(&self, source: Tensor<3>, pass: &Pass) -> KeyValue {
        self.source.key_value(pass.sum_gradients(source), pass)
    }

    /// The layers that ranks may divide, of blocks at this path.
    pub fn tensor_plan(&self, path: &str) -> TensorPlan {
        let plan = self.attention.tensor_plan(&format!("{path}.attention"));
        let plan = plan.and(self.source.tensor_plan(&format!("{path}.source")));
        plan.and(self.feed_forward.tensor_plan(&format!("{path}.feed_forward")))
    }

    /// Like `forward`, but continues after the keys and values in `past`, with given keys and values of the source,
    /// and also returns the keys and values of both.
    pub fn read_on(
        &self,
        x: Tensor<3>,
        past: Option<KeyValue>,
        bias: Tensor<4>,
        reads: Reads,
        (of_source, source_reads): (KeyValue, Reads),
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let (x, normed) = self.attention_norm.with_input(x);
        let normed = pass.before_columns(normed);
        let (key, value) = self.attention.key_value(normed.clone(), pass);
        let own = behind(past, key, value);
        let mixed = self.attention.attended(normed, own.clone(), Some(bias), reads, pass);
        let (x, normed) = self.source_norm.of_sum(x, mixed);
        let mixed = self.source.attended(pass.before_columns(normed), of_source, None, source_reads, pass);
        (self.feed_forward.forward(x, mixed, pass), own)
    }
}

/// A learned bias for each head and group of distances, added to attention scores (Raffel et al., 2020,
/// arXiv:1910.10683, section 2.1). Each small distance has its own group; in the other half of the groups, a group
/// holds distances of about the same logarithm.
#[derive(Module, Debug)]
pub(super) struct RelativeBias {
    /// `[buckets, heads]`, of which ranks that share layers have their own heads.
    table: Embedding,
    max_distance: usize,
    both_ways: bool,
}

impl RelativeBias {
    /// In an encoder, positions attend both ways, and half of the groups are for later positions.
    pub fn new(config: &T5Config, both_ways: bool, device: &Device) -> Self {
        let table = EmbeddingConfig::new(config.relative_attention_num_buckets, config.num_heads);
        Self {
            table: table.with_initializer(config.normal(config.d_model)).init(device),
            max_distance: config.relative_attention_max_distance,
            both_ways,
        }
    }

    /// The layers that ranks may divide, of a bias at this path.
    pub fn tensor_plan(&self, path: &str) -> TensorPlan {
        TensorPlan::new().columns(format!("{path}.table"), [self.table.weight.lazy_shape()[1]])
    }

    /// The bias `[1, heads, length, length]`, in the dtype of the table.
    pub fn forward(&self, length: usize, device: &Device) -> Tensor<4> {
        let buckets = self.table.weight.dims()[0];
        // The group depends on the distance alone. The smallest distance is that from the last query to the first key.
        let of_distance: Vec<i64> = (1 - length as i64..length as i64)
            .map(|distance| bucket(distance, self.both_ways, buckets, self.max_distance) as i64)
            .collect();
        let groups: Vec<i64> =
            (1..=length).rev().flat_map(|first| &of_distance[first - 1..][..length]).copied().collect();
        let groups = Tensor::<2, Int>::from_data(TensorData::new(groups, [length, length]), device);
        embedded(&self.table, groups).permute([2, 0, 1]).unsqueeze()
    }
}

/// The group of a distance, which is the key's position minus the query's.
///
/// Computed in f32 like transformers, so that distances at the edge of a group fall into the same group.
fn bucket(distance: i64, both_ways: bool, buckets: usize, max_distance: usize) -> usize {
    let (buckets, first) = match both_ways {
        true => (buckets / 2, if distance > 0 { buckets / 2 } else { 0 }),
        false => (buckets, 0),
    };
    let distance = if both_ways { distance.unsigned_abs() } else { distance.min(0).unsigned_abs() } as usize;
    let exact = buckets / 2;
    if distance < exact {
        return first + distance;
    }
    let share = (distance as f32 / exact as f32).ln() / (max_distance as f64 / exact as f64).ln() as f32;
    let beyond = (share * (buckets - exact) as f32) as usize;
    first + (exact + beyond).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_match_transformers() {
        // `T5Attention._relative_position_bucket` of transformers 5.23 for these distances.
        let distances = [-200, -128, -127, -64, -32, -16, -15, -9, -8, -7, -1, 0, 1, 7, 8, 16, 64, 128, 200];
        let of = |both_ways| distances.map(|distance| bucket(distance, both_ways, 32, 128));
        assert_eq!(of(true), BOTH);
        assert_eq!(of(false), BEFORE);
    }

    const BOTH: [usize; 19] = [15, 15, 15, 14, 12, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31];
    const BEFORE: [usize; 19] = [31, 31, 31, 26, 21, 16, 15, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0];
}
