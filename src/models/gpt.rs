//! A decoder-only transformer language model.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Bool, Device, FloatDType, Int, Tensor, activation};
use firebrick_datasets::{Batch, TokenBatch};
use firebrick_strategies::{Dropout, Pass, cast, matmul};
use serde::{Deserialize, Serialize};

use super::attention::{Attention, future_mask, mask_of};
use super::{Linear, Norm, cross_entropy};
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
/// 0.02 / √(2·layers), biases at 0.
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
        let embedding = |rows| {
            let config = EmbeddingConfig::new(rows, self.width);
            config.with_initializer(normal(0.02)).init(device)
        };
        let head = || Linear::new(self.width, vocabulary, false, normal(0.02), device);
        let gpt = Gpt {
            tokens: embedding(vocabulary),
            positions: embedding(context),
            dropout: Dropout::new(self.dropout),
            blocks: (0..self.layers).map(|_| Block::new(self, device)).collect(),
            norm: Norm::new(self.width, self.bias, device),
            head: (!self.tied).then(head),
        };
        drawn_now(gpt)
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

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// Burn draws a parameter when it is first read; drawing all now makes the weights a function of
/// the seed alone, not of which code reads them first.
fn drawn_now(gpt: Gpt) -> Gpt {
    struct Draw;
    impl burn::module::ModuleVisitor for Draw {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let _ = param.base();
        }
    }
    gpt.visit(&mut Draw);
    gpt
}

impl Gpt {
    /// Token ids `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the
    /// head's weights; what is before the head is in that of the pass.
    ///
    /// # Panics
    ///
    /// Where `length` is above the [context](Self::context), or an id is not in the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let [_, length] = tokens.dims();
        let device = tokens.device();
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze();
        self.forward_placed(tokens, places, future_mask(length, &device), pass)
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
        let [rows, length] = batch.shape();
        let device = pass.device();
        let ids = batch.ids(device).slice([0..rows, 0..length - 1]);
        let labels = batch.labels(device).slice([0..rows, 1..length]);
        let logits = match batch.position_ids(device) {
            None => self.forward(ids, pass),
            Some(places) => {
                let places = places.slice([0..rows, 0..length - 1]);
                let pass = pass.starting_at(starts_of(&batch));
                self.forward_placed(ids, places, mask_of(&batch, device), &pass)
            }
        };
        Loss { sum: cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1)), items: batch.items() }
    }
}

/// The column of the first token of each row.
fn starts_of(batch: &TokenBatch) -> Vec<usize> {
    let rows = batch.host_mask().chunks(batch.shape()[1].max(1));
    rows.map(|row| row.iter().position(|&real| real).unwrap_or(0)).collect()
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
}

impl Block {
    fn new(config: &GptConfig, device: &Device) -> Self {
        let width = config.width;
        Self {
            attention_norm: Norm::new(width, config.bias, device),
            attention: Attention::new(config, device),
            feed_forward_norm: Norm::new(width, config.bias, device),
            widen: linear(config, width, 4 * width, 0.02, device),
            narrow: linear(config, 4 * width, width, residual_std(config), device),
            dropout: Dropout::new(config.dropout),
        }
    }

    /// `[batch, length, width]` to the same.
    fn forward(&self, x: Tensor<3>, masked: Tensor<4, Bool>, pass: &Pass) -> Tensor<3> {
        let x = x.clone() + self.attention.forward(self.attention_norm.forward(x), masked, pass);
        let hidden = activation::gelu(self.widen.forward(self.feed_forward_norm.forward(x.clone())));
        x + self.dropout.forward(self.narrow.forward(hidden), pass)
    }
}

pub(super) fn residual_std(config: &GptConfig) -> f64 {
    0.02 / ((2 * config.layers) as f64).sqrt()
}

/// A linear layer with weights of deviation `std` and bias 0.
pub(super) fn linear(config: &GptConfig, from: usize, to: usize, std: f64, device: &Device) -> Linear {
    Linear::new(from, to, config.bias, normal(std), device)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::optim::GradientsParams;
    use firebrick_datasets::{
        CausalLm, CausalSample, Collator, Drawn, Encoder, Packing, Padding, Side, Tokenizer,
    };
    use firebrick_strategies::Draws;

    use super::*;
    use crate::testing;

    fn config() -> GptConfig {
        GptConfig { layers: 8, heads: 4, width: 64, dropout: 0.0, bias: true, tied: false }
    }

    fn std(weights: Tensor<2>) -> f32 {
        weights.inner().square().mean().sqrt().into_scalar()
    }

    #[test]
    fn weights_start_as_gpt2s() {
        let gpt = config().init(100, 32, &testing::device());
        let block = &gpt.blocks[7];
        let residual = 0.02 / 16f32.sqrt();
        for (weights, expected) in [
            (gpt.tokens.weight.val(), 0.02),
            (gpt.positions.weight.val(), 0.02),
            (gpt.head.as_ref().unwrap().weight.val(), 0.02),
            (block.attention.query_key_value.weight.val(), 0.02),
            (block.attention.output.weight.val(), residual),
            (block.widen.weight.val(), 0.02),
            (block.narrow.weight.val(), residual),
        ] {
            let found = std(weights);
            assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
        }
        let bias = block.narrow.bias.as_ref().unwrap().val().into_data();
        assert!(bias.iter::<f32>().all(|x| x == 0.0));
    }

    #[test]
    fn a_position_reads_nothing_after_it() {
        let device = testing::device();
        let gpt = config().init(10, 8, &device);
        let logits = |tokens: [[i32; 5]; 1]| -> Vec<f32> {
            let tokens = Tensor::<2, Int>::from_data(tokens, &device);
            let logits = gpt.forward(tokens, &Pass::evaluate(&device)).narrow(1, 0, 3);
            logits.into_data().iter().collect()
        };
        assert_eq!(logits([[1, 2, 3, 4, 5]]), logits([[1, 2, 3, 9, 0]]));
        assert_ne!(logits([[1, 2, 3, 4, 5]]), logits([[7, 2, 3, 4, 5]]));
    }

    /// The loss and all gradients of a batch.
    fn step(gpt: &Gpt, batch: TokenBatch) -> (f64, Vec<f32>) {
        let items = batch.items();
        let loss = gpt.loss(batch, &Pass::train(&testing::device().autodiff()));
        assert_eq!(loss.items, items);
        let value = loss.sum.clone().into_scalar::<f64>();
        let grads = GradientsParams::from_grads(loss.sum.backward(), gpt);
        let of = |param: &Linear| -> Vec<f32> {
            grads.get::<2>(param.weight.id).unwrap().into_data().iter().collect()
        };
        let blocks = gpt.blocks.iter();
        (value, blocks.flat_map(|block| of(&block.attention.query_key_value)).collect())
    }

    /// Samples that are packed into a row, or padded at either side, give what they give alone.
    #[test]
    fn packing_and_padding_change_nothing() {
        let tokenizer = Arc::new(Tokenizer::characters("abcdefghij").unwrap());
        let causal = || CausalLm::new(Encoder::new(tokenizer.clone())).pad_id(0);
        let sample = |length: u32| {
            let ids = (0..length).map(|at| (at * at + length) % 10).collect();
            Arc::new(CausalSample { ids, prompt: (length / 5) as usize })
        };
        let samples: Vec<_> = [5, 2, 7, 1, 3].map(sample).into();
        let drawn = |sample: &Arc<CausalSample>| Drawn { epoch: 0, index: 0, sample: sample.clone() };
        let gpt = GptConfig { layers: 2, ..config() }.init(10, 20, &testing::device().autodiff());

        let (mut loss, mut grads) = (0.0, Vec::new());
        for sample in samples.iter().filter(|sample| sample.ids.len() > 1) {
            let (of_one, grads_of_one) = step(&gpt, causal().collate(&[drawn(sample)]).unwrap());
            loss += of_one;
            grads.resize(grads_of_one.len(), 0.0);
            grads.iter_mut().zip(grads_of_one).for_each(|(sum, grad)| *sum += grad);
        }
        let left = causal().padding(Padding::default().side(Side::Left).multiple_of(8).unwrap());
        let packs = [samples[..3].to_vec(), samples[3..].to_vec()];
        let packs = packs.map(|pack| Drawn { epoch: 0, index: 0, sample: Arc::new(pack) });
        let all: Vec<_> = samples.iter().map(drawn).collect();
        for batch in [
            causal().collate(&all).unwrap(),
            left.collate(&all).unwrap(),
            Packing::new(causal(), 14).collate(&packs).unwrap(),
        ] {
            let (found, found_grads) = step(&gpt, batch);
            assert!((found - loss).abs() < 1e-4 * loss, "{found} {loss}");
            let largest = grads.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (found, expected) in found_grads.iter().zip(&grads) {
                assert!((found - expected).abs() < 1e-4 * largest, "{found} {expected}");
            }
        }
    }

    #[test]
    fn an_untrained_model_is_undecided() {
        let device = testing::device();
        let gpt = config().init(10, 8, &device);
        let rows = vec![vec![1, 2, 3, 4], vec![5, 6]];
        let batch = TokenBatch::from_rows(rows, 0).unwrap();
        let loss = gpt.loss(batch, &Pass::evaluate(&device));
        assert_eq!(loss.items, 4);
        let mean = loss.sum.into_scalar::<f32>() / 4.0;
        assert!((mean - 10f32.ln()).abs() < 0.3, "{mean}");
    }

    #[test]
    fn parameters_are_foretold() {
        for (bias, tied) in [(true, true), (true, false), (false, true), (false, false)] {
            let config = GptConfig { bias, tied, ..config() };
            let found = config.init(100, 32, &testing::device()).num_params();
            assert_eq!(config.parameters(100, 32), found as f64);
        }
    }

    #[test]
    fn a_tied_head_adds_no_parameter() {
        let untied = config().init(100, 32, &testing::device()).num_params();
        let tied = GptConfig { tied: true, ..config() };
        assert_eq!(untied - tied.init(100, 32, &testing::device()).num_params(), 64 * 100);
    }

    #[test]
    fn dropout_acts_in_training_only() {
        let device = testing::device().autodiff();
        let config = GptConfig { dropout: 0.5, ..config() };
        let gpt = config.init(10, 8, &device);
        let tokens = Tensor::<2, Int>::from_data([[1, 2, 3, 4]], &device);
        let logits = |pass: Pass| gpt.forward(tokens.clone(), &pass).into_data();
        let draws = |seed| Draws { seed, ..Draws::default() };
        let trained = |seed| logits(Pass::train(&device).drawing(draws(seed)));
        let measured = |seed| logits(Pass::evaluate(&device).drawing(draws(seed)));
        assert_eq!(trained(1), trained(1));
        assert_ne!(trained(1), trained(2));
        assert_eq!(measured(1), measured(2));
        assert_ne!(measured(1), trained(1));
    }
}
