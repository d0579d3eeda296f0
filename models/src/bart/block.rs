//! Blocks of BART's encoder and decoder.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebrick_kernels::{Reads, Samples};
use firebrick_strategies::{Dropout, Pass};

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

    /// Keys and values of `read`, `[batch, read, d_model]`.
    fn key_value(&self, read: Tensor<3>, pass: &Pass) -> KeyValue {
        let key = split_heads(self.key.forward(read.clone(), pass), self.heads);
        (key, split_heads(self.value.forward(read, pass), self.heads))
    }

    /// Attends from `x`, `[batch, length, d_model]`, to given keys and values.
    fn forward(&self, x: Tensor<3>, (key, value): KeyValue, reads: &Reads, pass: &Pass) -> Tensor<3> {
        let query = split_heads(self.query.forward(x.clone(), pass), self.heads);
        let [_, _, _, size] = query.dims();
        let mixed = attend([query, key, value], None, scale_of(size), reads, &self.weight_dropout, pass);
        let mixed = self.dropout.forward(self.output.forward(join_heads(mixed), pass), pass);
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

    fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let hidden = self.activation.forward(self.widen.forward(x.clone(), pass));
        let hidden = self.inner_dropout.forward(hidden, pass);
        let fed = self.dropout.forward(self.narrow.forward(hidden, pass), pass);
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
        let kept = self.attention.key_value(x.clone(), pass);
        self.feed_forward.forward(self.attention.forward(x, kept, reads, pass), pass)
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
        self.source.key_value(source, pass)
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
        let (key, value) = self.attention.key_value(x.clone(), pass);
        let own = behind(past, key, value);
        let x = self.attention.forward(x, own.clone(), reads, pass);
        let x = self.source.forward(x, of_source, &source_reads, pass);
        (self.feed_forward.forward(x, pass), own)
    }
}
