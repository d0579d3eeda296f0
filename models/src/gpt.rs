//! A decoder-only transformer language model.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score};
use firebrick_datasets::TokenBatch;
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::{Head, Reads};
use firebrick_strategies::{Dropout, Pass, TensorPlan};
use serde::{Deserialize, Serialize};

use super::attention::Attention;
use super::causal::{PlacedTokens, next_token_loss};
use super::gpt_shape::{Shape, normal};
use super::key_value::{KeyValue, Past};
use super::writing::{Continues, ReadsOn, last_column};
use super::{Activation, Linear, Norm};
use crate::vocabulary::{counted, embedded_sum, language_plan, output_layer, perplexity};

/// The shape of a [`Gpt`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GptConfig {
    /// Number of transformer blocks.
    pub layers: usize,
    /// Number of attention heads; must divide `width`.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// Share of activations dropped during training, in `0.0..1.0`.
    #[serde(default)]
    pub dropout: f64,
    /// Whether linear layers and norms have a bias.
    #[serde(default = "yes")]
    pub bias: bool,
    /// Whether the output head shares the token embedding's weights (Press & Wolf, 2017, arXiv:1608.05859).
    #[serde(default = "yes")]
    pub tied: bool,
}

fn yes() -> bool {
    true
}

/// GPT-2 (Radford et al., 2019): pre-norm, learned positions, GELU.
///
/// The initial weights are GPT-2's: normal with standard deviation 0.02, or 0.02 / √(2·layers) at the end of a
/// residual branch; biases are 0. To load a Hugging Face folder, use a [`Gpt2Config`](super::Gpt2Config).
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
    /// Creates a model with new weights for `vocabulary` tokens and at most `context` positions.
    ///
    /// # Panics
    ///
    /// If `heads` does not divide `width`, or `dropout` is out of range; a run file is checked before it gets here.
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
}

/// Draws all parameters now. Burn draws a parameter when it is first read; drawing them all at once makes the weights
/// depend on the seed alone, not on which code reads them first.
pub fn drawn_now<M: Module>(model: M) -> M {
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
    /// Maps token ids `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the head's weights.
    /// The layers before the head compute in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// If there is no token, `length` exceeds the [context](Self::context), or an id is not in the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let PlacedTokens { ids, places, reads, .. } = PlacedTokens::in_columns(tokens);
        self.forward_placed(ids, places, reads, pass)
    }

    /// Like [`forward`](Self::forward), for rows in which a token's position in its sample differs from its column:
    /// several samples per row, or padding before the first.
    ///
    /// - `places` holds the positions from 0, `[batch, length]`, or `[1, length]` for all rows alike.
    /// - `reads` are the positions that each position reads, with 1 row for all rows alike, or `batch`:
    ///   [`Reads::causal`], or a range that also starts after other samples and padding.
    /// - `pass` must know [where rows start](Pass::starting_at) if they are padded at the left; otherwise dropout
    ///   depends on the amount of padding.
    ///
    /// # Panics
    ///
    /// If there is no token, a position is not below the [context](Self::context), or an id is not in the vocabulary.
    pub fn forward_placed(
        &self,
        tokens: Tensor<2, Int>,
        places: Tensor<2, Int>,
        reads: Reads,
        pass: &Pass,
    ) -> Tensor<3> {
        self.head()
            .logits(self.hidden(PlacedTokens { ids: tokens, places, reads, sample_lengths: None }, pass))
    }

    /// The normalised hidden state, `[batch, length, width]`.
    pub(crate) fn hidden(
        &self,
        PlacedTokens { ids, places, reads, .. }: PlacedTokens,
        pass: &Pass,
    ) -> Tensor<3> {
        let (x, within) =
            pass.divide_sequence(embedded_sum([(&self.tokens, ids), (&self.positions, places)], pass));
        let x = self.dropout.forward(x, &within);
        let x = self.blocks.iter().fold(x, |x, block| {
            let run = |block: &Block, (x, reads), pass: &Pass| block.forward(x, reads, pass);
            within.segment(block, (x, reads.clone()), run)
        });
        within.join_sequence(within.at_own_positions(&self.norm).forward(x))
    }

    fn embedded(&self, tokens: Tensor<2, Int>, places: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let x = embedded_sum([(&self.tokens, tokens), (&self.positions, places)], pass);
        self.dropout.forward(x, pass)
    }

    pub(crate) fn head(&self) -> Head {
        output_layer(&self.tokens, self.head.as_ref())
    }

    /// The maximum number of positions.
    pub fn context(&self) -> usize {
        self.positions.weight.dims()[0]
    }
}

impl ReadsOn for Gpt {
    fn vocabulary(&self) -> usize {
        self.tokens.weight.dims()[0]
    }

    fn positions(&self) -> Option<usize> {
        Some(self.context())
    }

    fn dtype(&self) -> FloatDType {
        let weight = self.blocks.first().map_or(&self.tokens.weight, |block| &block.widen.weight);
        FloatDType::from(weight.base().dtype())
    }

    fn read_on(
        &self,
        read: PlacedTokens,
        _: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past) {
        let PlacedTokens { ids, places, reads, .. } = read;
        let mut past = past.map(|past| past.own.into_iter());
        let (mut x, mut own) = (self.embedded(ids, places, pass), Vec::new());
        for block in &self.blocks {
            let past = past.as_mut().and_then(Iterator::next);
            let run = |block: &Block, (x, past, reads), pass: &Pass| block.read_on(x, past, reads, pass);
            let (read, kept) = pass.segment(block, (x, past, reads.clone()), run);
            x = read;
            own.push(kept);
        }
        let logits = pass.logits(self.norm.forward(last_column(x)), &self.head());
        (logits.squeeze_dim(1), Past { own, source: None })
    }
}

impl Continues for Gpt {}

impl Objective<TokenBatch> for Gpt {
    /// Each position predicts the next token. The last token is only a label and is not an input.
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        next_token_loss(batch, pass, &self.head(), |placed, pass| self.hidden(placed, pass))
    }

    fn tensor_plan(&self) -> TensorPlan {
        let block = self.blocks.first();
        let plan = block.map_or_else(TensorPlan::new, |block| block.tensor_plan("*blocks.*"));
        language_plan(plan, &self.tokens, self.head.is_some()).at_own_positions("*norm")
    }

    fn evaluate(&self, batch: TokenBatch, pass: &Pass) -> Evaluation {
        counted(self.loss(batch, pass), pass)
    }

    /// `perplexity`, the exponential of the mean loss per token.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        vec![perplexity(counts)]
    }
}

/// Attention and a feed-forward layer, each applied to a normalised copy of its input and added to that input.
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

    /// `[batch, length, width]` to the same shape.
    fn forward(&self, x: Tensor<3>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let (x, normed) = self.attention_norm.with_input(x);
        let mixed = self.attention.forward(normed, &reads, pass);
        self.fed_forward(x, mixed, pass)
    }

    /// Like `forward`, but continues after the keys and values in `past`, and also returns the keys and values of
    /// both.
    fn read_on(
        &self,
        x: Tensor<3>,
        past: Option<KeyValue>,
        reads: Reads,
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let (x, normed) = self.attention_norm.with_input(x);
        let (mixed, kept) = self.attention.read_on(normed, past, &reads, pass);
        (self.fed_forward(x, mixed, pass), kept)
    }

    /// The layers that ranks may divide, of blocks at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let inner = self.widen.outputs();
        let plan = self.attention.tensor_plan(&format!("{path}.attention"));
        plan.columns(format!("{path}.widen"), [inner]).rows(format!("{path}.narrow"), inner)
    }

    /// The feed-forward layer on the sum of `x` and what attention mixed.
    fn fed_forward(&self, x: Tensor<3>, mixed: Tensor<3>, pass: &Pass) -> Tensor<3> {
        let (x, normed) = self.feed_forward_norm.of_sum(x, mixed);
        let hidden = self.activation.forward(self.widen.forward(pass.before_columns(normed), pass));
        pass.end_of_segment(|| self.dropout.forward_onto(x, self.narrow.forward_rows(hidden, pass), pass))
    }
}

#[cfg(test)]
#[path = "gpt_tests.rs"]
mod tests;
