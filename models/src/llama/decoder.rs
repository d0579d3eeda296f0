//! The decoder: embeddings, pre-norm blocks with rotary positions, and the head.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, bf16, f16};
use firebrick::{Evaluation, Loss, Objective, Score};
use firebrick_datasets::TokenBatch;
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::{Head, Reads, cast};
use firebrick_strategies::{Pass, TensorPlan};

use super::block::Block;
use super::{LlamaConfig, keys};
use crate::attention::Ranges;
use crate::causal::{PlacedTokens, next_token_loss};
use crate::key_value::Past;
use crate::pretrained::{KeyMap, Pretrained};
use crate::rope::{Angles, Rope};
use crate::vocabulary::{counted, embedded_tokens, language_plan, output_layer, perplexity};
use crate::writing::{Continues, ReadsOn, last_column};
use crate::{Linear, RmsNorm};

/// Llama (Touvron et al., 2023, arXiv:2302.13971) and its relatives: `LlamaForCausalLM`, `MistralForCausalLM`,
/// `Qwen2ForCausalLM`, `Qwen3ForCausalLM`, `Phi3ForCausalLM`, `Gemma2ForCausalLM`, `Gemma3ForCausalLM`.
///
/// They differ in biases and attention windows. Qwen3 normalises queries and keys (arXiv:2505.09388), and Phi-3 joins
/// linear layers that have one input (arXiv:2404.14219). Gemma 2 scales embeddings by √width, bounds scores and logits,
/// and also normalises what attention and feed-forward layers return (arXiv:2408.00118); Gemma 3 normalises queries and
/// keys in place of bounding scores, and rotates positions by other angles in blocks with a window (arXiv:2503.19786).
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrick::Pass;
/// use firebrick_models::{Llama, LlamaConfig};
/// use firebrick_models::pretrained::Pretrained;
///
/// let config = LlamaConfig {
///     vocab_size: 30, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 4,
///     num_key_value_heads: Some(2), ..Default::default()
/// };
/// let device = Device::flex();
/// let llama = Llama::init(&config, &device);
/// let logits = llama.forward(Tensor::<2, Int>::from_data([[1, 2, 3]], &device), &Pass::evaluate(&device));
/// assert_eq!(logits.dims(), [1, 3, 30]);
/// ```
#[derive(Module, Debug)]
pub struct Llama {
    tokens: Embedding,
    blocks: Vec<Block>,
    norm: RmsNorm,
    head: Option<Linear>,
    #[module(skip)]
    rope: Rope,
    /// That of blocks with a window, if it is another one.
    #[module(skip)]
    sliding_rope: Option<Rope>,
    /// The number of tokens that each token attends to in each block, itself included; `None` for all.
    #[module(skip)]
    windows: Vec<Option<usize>>,
    /// The factor of embeddings.
    #[module(skip)]
    embedding_scale: Option<f64>,
    /// The bound of logits.
    #[module(skip)]
    logit_cap: Option<f64>,
}

impl Llama {
    /// Maps token ids `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the head's weights.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn forward(&self, tokens: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let PlacedTokens { ids, places, reads, .. } = PlacedTokens::in_columns(tokens);
        self.forward_placed(ids, places, reads, pass)
    }

    /// Like [`forward`](Self::forward), for rows in which a token's position in its sample differs from its column.
    /// The arguments are those of [`Gpt::forward_placed`](crate::Gpt::forward_placed).
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
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
    pub(crate) fn hidden(&self, placed: PlacedTokens, pass: &Pass) -> Tensor<3> {
        let turns = self.turns(&placed);
        let PlacedTokens { ids, reads, .. } = placed;
        let mut ranges = Ranges::of(reads);
        let (x, within) = pass.divide_sequence(self.embedded(ids, pass));
        let x = self.blocks.iter().zip(&self.windows).fold(x, |x, (block, window)| {
            let run = |block: &Block, (x, angles, reads), pass: &Pass| block.forward(x, angles, reads, pass);
            within.segment(block, (x, turns.within(*window), ranges.within(*window)), run)
        });
        within.join_sequence(within.at_own_positions(&self.norm).forward(x))
    }

    /// The rotations of these tokens, `[batch or 1, length]`.
    fn turns(&self, PlacedTokens { places, reads, sample_lengths, .. }: &PlacedTokens) -> Turns {
        let lengths = || sample_lengths.clone().unwrap_or_else(|| reads.sample_lengths());
        let angles = |rope: &Rope| rope.angles(places.clone(), lengths, &places.device());
        Turns { all: angles(&self.rope), windowed: self.sliding_rope.as_ref().map(angles) }
    }

    /// The embeddings of tokens, in the dtype of the pass.
    fn embedded(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let x = embedded_tokens(&self.tokens, ids, pass);
        let x = match self.embedding_scale {
            // As in transformers, the factor has the precision of the table.
            Some(scale) => {
                let scale = rounded(scale, FloatDType::from(x.dtype()));
                x * scale
            }
            None => x,
        };
        cast(x, pass.dtype())
    }

    pub(crate) fn head(&self) -> Head {
        Head { cap: self.logit_cap, ..output_layer(&self.tokens, self.head.as_ref()) }
    }
}

/// The rotations of some positions.
struct Turns {
    all: Angles,
    /// In blocks with a window, if they are others.
    windowed: Option<Angles>,
}

impl Turns {
    fn within(&self, window: Option<usize>) -> Angles {
        let windowed = self.windowed.as_ref().filter(|_| window.is_some());
        windowed.unwrap_or(&self.all).clone()
    }
}

/// Rounds a number to a dtype.
fn rounded(number: f64, dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::BF16 => bf16::from_f64(number).to_f64(),
        FloatDType::F16 => f16::from_f64(number).to_f64(),
        FloatDType::F64 => number,
        _ => f64::from(number as f32),
    }
}

impl ReadsOn for Llama {
    fn vocabulary(&self) -> usize {
        self.tokens.weight.dims()[0]
    }

    fn positions(&self) -> Option<usize> {
        None
    }

    fn rereads_at(&self, length: usize) -> bool {
        self.rope.rereads_at(length) || self.sliding_rope.as_ref().is_some_and(|rope| rope.rereads_at(length))
    }

    fn dtype(&self) -> FloatDType {
        let of_tokens = || FloatDType::from(self.tokens.weight.base().dtype());
        self.blocks.first().map_or_else(of_tokens, Block::dtype)
    }

    fn read_on(
        &self,
        read: PlacedTokens,
        _: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past) {
        let turns = self.turns(&read);
        let PlacedTokens { ids, reads, .. } = read;
        let mut past = past.map(|past| past.own.into_iter());
        let (mut x, mut own) = (self.embedded(ids, pass), Vec::new());
        let mut ranges = Ranges::of(reads);
        for (block, window) in self.blocks.iter().zip(&self.windows) {
            let past = past.as_mut().and_then(Iterator::next);
            let run = |block: &Block, (x, past, angles, reads), pass: &Pass| {
                block.read_on(x, past, angles, reads, pass)
            };
            let (angles, reads) = (turns.within(*window), ranges.within(*window));
            let (read, kept) = pass.segment(block, (x, past, angles, reads), run);
            x = read;
            own.push(kept);
        }
        let logits = pass.logits(self.norm.forward(last_column(x)), &self.head());
        (logits.squeeze_dim(1), Past { own, source: None })
    }
}

impl Continues for Llama {}

impl Objective<TokenBatch> for Llama {
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

impl Pretrained for Llama {
    type Config = LlamaConfig;

    fn architecture(config: &LlamaConfig) -> &'static str {
        config.kind().architecture()
    }

    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn init(config: &LlamaConfig, device: &Device) -> Self {
        let width = config.hidden_size;
        let embedding = EmbeddingConfig::new(config.vocab_size, width).with_initializer(config.normal());
        let head = || config.linear(width, config.vocab_size, false, device);
        let gemma = config.gemma().unwrap_or_else(|error| panic!("{error}"));
        Self {
            tokens: embedding.init(device),
            blocks: (0..config.num_hidden_layers).map(|_| Block::new(config, device)).collect(),
            norm: config.norm(device),
            head: (!config.tie_word_embeddings).then(head),
            rope: config.rope().unwrap_or_else(|error| panic!("{error}")),
            sliding_rope: config.sliding_rope().unwrap_or_else(|error| panic!("{error}")),
            windows: (0..config.num_hidden_layers)
                .map(|block| config.window(block).unwrap_or_else(|error| panic!("{error}")))
                .collect(),
            embedding_scale: gemma.map(|_| (width as f64).sqrt()),
            logit_cap: gemma.and_then(|gemma| gemma.logit_cap),
        }
    }

    fn keys(config: &LlamaConfig) -> KeyMap {
        keys::causal_lm(config)
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod window_tests;
