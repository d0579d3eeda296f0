//! Blocks of BART's encoder and decoder.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebrick_kernels::{Reads, Samples};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::BartConfig;
use crate::attention::{attend, join_heads, scale_of, split_heads};
use crate::key_value::{KeyValue, behind};
use crate::{Activation, Linear, Norm};

/// Attention that is added to its input and then normalised.
#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm: Norm,
    weight_dropout: Dropout,
    dropout: Dropout,
    heads: usize,
}

impl Attention {
    fn new(config: &BartConfig, heads: usize, device: &Device) -> Self {
        let square = || config.linear(config.d_model, config.d_model, device);
        Self {
            query: square(),
            key: square(),
            value: square(),
            output: square(),
            norm: Norm::new(config.d_model, true, device),
            weight_dropout: Dropout::new(config.attention_dropout),
            dropout: Dropout::new(config.dropout),
            heads,
        }
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

    /// Adds to `x`, `[batch, length, d_model]`, what it attends to of given keys and values. `asking` is `x` for the queries.
    fn forward(
        &self,
        [x, asking]: [Tensor<3>; 2],
        (key, value): KeyValue,
        reads: &Reads,
        pass: &Pass,
    ) -> Tensor<3> {
        let query = split_heads(self.query.forward(asking, pass), pass.share_of(self.heads));
        let [_, _, _, size] = query.dims();
        let mixed = attend([query, key, value], None, scale_of(size), reads, &self.weight_dropout, pass);
        let mixed = self.dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass);
        self.norm.of_sum(x, mixed).1
    }
}

/// A feed-forward layer that is added to its input and then normalised.
#[derive(Module, Debug)]
struct FeedForward {
    widen: Linear,
    narrow: Linear,
    norm: Norm,
    inner_dropout: Dropout,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl FeedForward {
    fn new(config: &BartConfig, inner: usize, device: &Device) -> Self {
        Self {
            widen: config.linear(config.d_model, inner, device),
            narrow: config.linear(inner, config.d_model, device),
            norm: Norm::new(config.d_model, true, device),
            inner_dropout: Dropout::new(config.activation_dropout),
            dropout: Dropout::new(config.dropout),
            activation: config.activation_function,
        }
    }

    /// The layers that ranks may divide, of a layer at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let inner = self.widen.outputs();
        TensorPlan::new().columns(format!("{path}.widen"), [inner]).rows(format!("{path}.narrow"), inner)
    }

    fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let hidden = self.activation.forward(self.widen.forward(pass.before_columns(x.clone()), pass));
        let of_share = pass.of_share(hidden.dims()[2]);
        let hidden = self.inner_dropout.forward(hidden, &of_share);
        let fed = self.dropout.forward(self.narrow.forward_rows(hidden, pass), pass);
        self.norm.of_sum(x, fed).1
    }
}

/// A block in which each position attends to its whole row.
#[derive(Module, Debug)]
pub(super) struct EncoderBlock {
    attention: Attention,
    feed_forward: FeedForward,
}

impl EncoderBlock {
    pub fn new(config: &BartConfig, device: &Device) -> Self {
        Self {
            attention: Attention::new(config, config.encoder_attention_heads, device),
            feed_forward: FeedForward::new(config, config.encoder_ffn_dim, device),
        }
    }

    /// `[batch, length, d_model]` to the same shape.
    pub fn forward(&self, x: Tensor<3>, reads: &Reads, pass: &Pass) -> Tensor<3> {
        let read = pass.before_columns(x.clone());
        let kept = self.attention.key_value(read.clone(), pass);
        self.feed_forward.forward(self.attention.forward([x, read], kept, reads, pass), pass)
    }

    /// The layers that ranks may divide, of blocks at this path.
    pub fn tensor_plan(&self, path: &str) -> TensorPlan {
        let of_attention = self.attention.tensor_plan(&format!("{path}.attention"));
        of_attention.and(self.feed_forward.tensor_plan(&format!("{path}.feed_forward")))
    }

    /// The weights in whose dtype a block computes.
    pub fn weights(&self) -> &Linear {
        &self.feed_forward.widen
    }
}

/// A block in which each position attends to earlier positions and to the whole source.
#[derive(Module, Debug)]
pub(super) struct DecoderBlock {
    attention: Attention,
    source: Attention,
    feed_forward: FeedForward,
}

impl DecoderBlock {
    pub fn new(config: &BartConfig, device: &Device) -> Self {
        Self {
            attention: Attention::new(config, config.decoder_attention_heads, device),
            source: Attention::new(config, config.decoder_attention_heads, device),
            feed_forward: FeedForward::new(config, config.decoder_ffn_dim, device),
        }
    }

    /// `[batch, length, d_model]` to the same shape; `source` holds the encoder's output and what is read of it,
    /// and `samples` says where its samples stand.
    pub fn forward(
        &self,
        x: Tensor<3>,
        reads: &Reads,
        (source, source_reads): (Tensor<3>, Reads),
        samples: &Samples,
        pass: &Pass,
    ) -> Tensor<3> {
        let of_source = self.of_source(source, &pass.placed_as(samples));
        self.read_on(x, None, reads, (of_source, source_reads), pass).0
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
        reads: &Reads,
        (of_source, source_reads): (KeyValue, Reads),
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let read = pass.before_columns(x.clone());
        let (key, value) = self.attention.key_value(read.clone(), pass);
        let own = behind(past, key, value);
        let x = self.attention.forward([x, read], own.clone(), reads, pass);
        let asking = pass.before_columns(x.clone());
        let x = self.source.forward([x, asking], of_source, &source_reads, pass);
        (self.feed_forward.forward(x, pass), own)
    }
}
