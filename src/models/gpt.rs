//! A decoder-only transformer language model.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor};
use firebrick_datasets::TokenBatch;
use firebrick_strategies::{Dropout, Pass, cast, matmul};
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::causal::{Placed, next_token_loss};
use super::{Activation, Linear, Norm};
use crate::{Loss, Objective};

/// The shape of a [`Gpt`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they share `width` evenly.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// Share of activations dropped while training, in `0.0..1.0`.
    #[serde(default)]
    pub dropout: f64,
    /// Whether linear layers and norms have a bias.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the head is the token embedding itself (Press & Wolf, 2017, arXiv:1608.05859).
    #[serde(default = "yes")]
    pub tied: bool,
}

fn yes() -> bool {
    true
}

/// GPT-2 (Radford et al., 2019): pre-norm, learned positions, GELU.
///
/// Weights start as GPT-2's: normal with deviation 0.02, those that end a residual branch with
/// 0.02 / √(2·layers), biases at 0. Those of a Hugging Face folder are read with a
/// [`Gpt2Config`](super::Gpt2Config).
#[derive(Module, Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Block>,
    norm: Norm,
    head: Option<Linear>,
}

impl GptConfig {
    /// A model with fresh weights for `vocabulary` tokens and at most `context` positions.
    ///
    /// # Panics
    ///
    /// Where `heads` does not divide `width`, or `dropout` is out of its range; a run file is checked before it comes here.
    pub fn init(&self, vocabulary: usize, context: usize, device: &Device) -> Gpt {
        assert_eq!(self.width % self.heads, 0, "heads must divide width");
        drawn_now(self.shape().gpt(vocabulary, context, device))
    }

    fn shape(&self) -> Shape {
        Shape {
            layers: self.layers,
            heads: self.heads,
            width: self.width,
            inner: 4 * self.width,
            bias: self.bias,
            tied: self.tied,
            embedding_dropout: self.dropout,
            attention_dropout: self.dropout,
            residual_dropout: self.dropout,
            activation: Activation::Gelu,
            epsilon: 1e-5,
        }
    }

    /// How many parameters [`init`](Self::init) draws, as a float: the shape may be impossible.
    pub(crate) fn parameters(&self, vocabulary: usize, context: usize) -> f64 {
        let [layers, width, vocabulary, context] =
            [self.layers, self.width, vocabulary, context].map(|size| size as f64);
        let rows = if self.tied { vocabulary } else { 2.0 * vocabulary } + context;
        let (block_biases, last_bias) = if self.bias { (11.0 * width, width) } else { (0.0, 0.0) };
        let block = 12.0 * width * width + 2.0 * width + block_biases;
        rows * width + layers * block + width + last_bias
    }

    /// A model with the same parts under the same names, and hardly any numbers.
    pub(crate) fn skeleton(&self, device: &Device) -> Gpt {
        // A run with more blocks than this is refused for its size.
        const MOST_LAYERS: usize = 10_000;
        let layers = self.layers.min(MOST_LAYERS);
        Self { layers, heads: 1, width: 1, ..self.clone() }.init(1, 1, device)
    }
}

/// All that a [`Gpt`] is made by, but the sizes of its embeddings.
pub(super) struct Shape {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    /// The width inside a feed-forward layer.
    pub inner: usize,
    pub bias: bool,
    pub tied: bool,
    pub embedding_dropout: f64,
    /// Of attention weights.
    pub attention_dropout: f64,
    /// At the end of each residual branch.
    pub residual_dropout: f64,
    pub activation: Activation,
    /// Added to variances.
    pub epsilon: f64,
}

impl Shape {
    /// A model whose weights are drawn when they are first read.
    pub fn gpt(&self, vocabulary: usize, context: usize, device: &Device) -> Gpt {
        let embedding = |rows| {
            let config = EmbeddingConfig::new(rows, self.width);
            config.with_initializer(normal(0.02)).init(device)
        };
        let head = || Linear::new(self.width, vocabulary, false, normal(0.02), device);
        Gpt {
            tokens: embedding(vocabulary),
            positions: embedding(context),
            dropout: Dropout::new(self.embedding_dropout),
            blocks: (0..self.layers).map(|_| Block::new(self, device)).collect(),
            norm: self.norm(device),
            head: (!self.tied).then(head),
        }
    }

    /// The deviation of weights that end a residual branch.
    pub fn residual_std(&self) -> f64 {
        0.02 / ((2 * self.layers) as f64).sqrt()
    }

    /// A linear layer with weights of deviation `std` and bias 0.
    pub fn linear(&self, from: usize, to: usize, std: f64, device: &Device) -> Linear {
        Linear::new(from, to, self.bias, normal(std), device)
    }

    fn norm(&self, device: &Device) -> Norm {
        Norm::new(self.width, self.bias, device).with_epsilon(self.epsilon)
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Burn draws a parameter when it is first read; drawing all now makes the weights a function of
/// the seed alone, not of which code reads them first.
pub(super) fn drawn_now<M: Module>(model: M) -> M {
    struct Draw;
    impl burn::module::ModuleVisitor for Draw {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.base();
        }
    }
    model.visit(&mut Draw);
    model
}

impl Gpt {
    /// Token ids `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the
    /// head's weights; what is before the head is in that of the pass.
    ///
    /// # Panics
    ///
    /// Where `length` is above the [context](Self::context), or an id is not in the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let Placed { ids, places, masked } = Placed::in_columns(tokens);
        self.forward_placed(ids, places, masked, pass)
    }

    /// As [`forward`](Self::forward), for rows in which the place of a token in its sample is not
    /// its column: with several samples in a row, or padding before the first.
    ///
    /// - `places` is `[batch, length]`, or `[1, length]` for all rows alike, from 0.
    /// - `masked` is `[batch, 1, length, length]`, or with 1 row for all: true where a position (the
    ///   third axis) must not read another (the fourth). Each position must read at least one.
    /// - `pass` knows [where rows start](Pass::starting_at) that are padded at the left, or dropout
    ///   depends on how far they are.
    ///
    /// # Panics
    ///
    /// Where a place is above the [context](Self::context), or an id is not in the vocabulary.
    pub fn forward_placed(
        &self,
        tokens: Tensor<2, Int>,
        places: Tensor<2, Int>,
        masked: Tensor<4, Bool>,
        pass: &Pass,
    ) -> Tensor<3> {
        let dtype = pass.dtype();
        let x = cast(self.tokens.forward(tokens), dtype) + cast(self.positions.forward(places), dtype);
        let x = self.blocks.iter().fold(self.dropout.forward(x, pass), |x, block| {
            let run = |block: &Block, (x, masked), pass: &Pass| block.forward(x, masked, pass);
            pass.segment(block, (x, masked.clone()), run)
        });
        let x = self.norm.forward(x);
        // Of a head that is kept in f32, the logits are f32 too.
        let weight = self.head.as_ref().map_or(&self.tokens.weight, |head| &head.weight).val();
        let x = cast(x, FloatDType::from(weight.dtype()));
        match &self.head {
            Some(head) => head.forward(x),
            None => matmul(x, weight.transpose().unsqueeze()),
        }
    }

    /// The dtype that its blocks compute in: that of their weights.
    pub(super) fn dtype(&self) -> FloatDType {
        let weight = self.blocks.first().map_or(&self.tokens.weight, |block| &block.widen.weight);
        FloatDType::from(weight.base().dtype())
    }

    /// The most positions that it can read at once.
    pub fn context(&self) -> usize {
        self.positions.weight.dims()[0]
    }
}

impl Objective<TokenBatch> for Gpt {
    /// Each position predicts the next token; the last token is only a label, so it is not read.
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        next_token_loss(batch, pass, |Placed { ids, places, masked }, pass| {
            self.forward_placed(ids, places, masked, pass)
        })
    }
}

/// Attention and a feed-forward layer, each on a normalised copy and added to what came in.
#[derive(Module, Debug)]
struct Block {
    attention_norm: Norm,
    attention: Attention,
    feed_forward_norm: Norm,
    widen: Linear,
    narrow: Linear,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl Block {
    fn new(shape: &Shape, device: &Device) -> Self {
        let Shape { width, inner, .. } = *shape;
        Self {
            attention_norm: shape.norm(device),
            attention: Attention::new(shape, device),
            feed_forward_norm: shape.norm(device),
            widen: shape.linear(width, inner, 0.02, device),
            narrow: shape.linear(inner, width, shape.residual_std(), device),
            dropout: Dropout::new(shape.residual_dropout),
            activation: shape.activation,
        }
    }

    /// `[batch, length, width]` to the same.
    fn forward(&self, x: Tensor<3>, masked: Tensor<4, Bool>, pass: &Pass) -> Tensor<3> {
        let x = x.clone() + self.attention.forward(self.attention_norm.forward(x), masked, pass);
        let widened = self.widen.forward(self.feed_forward_norm.forward(x.clone()));
        let hidden = self.activation.forward(widened);
        x + self.dropout.forward(self.narrow.forward(hidden), pass)
    }
}

#[cfg(test)]
#[path = "gpt_tests.rs"]
mod tests;
