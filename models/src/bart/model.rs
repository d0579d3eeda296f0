//! The encoder and the decoder.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_kernels::{Reads, cast};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::block::{DecoderBlock, EncoderBlock};
use super::{BartConfig, keys};
use crate::Norm;
use crate::causal::PlacedTokens;
use crate::encoder_decoder::{Decodes, Encoded, EncoderDecoder, Encodes, Source, of_source};
use crate::key_value::{KeyValue, PastSource};
use crate::pretrained::{KeyMap, Pretrained};
use crate::vocabulary::embedded;

/// BART (Lewis et al., 2020, arXiv:1910.13461): post-norm, learned positions: `BartForConditionalGeneration`.
///
/// A token's position is its place among the real tokens of its row. In transformers it is the token's column, so there the
/// results of a row that is padded at the left depend on its padding.
///
/// The bias of the logits, `final_logits_bias` in files, is not trained, as in transformers.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{Bart, BartConfig};
/// use firebrick_models::pretrained::{Folder, Pretrained, save};
///
/// let config = BartConfig {
///     vocab_size: 30, d_model: 16, encoder_layers: 1, encoder_ffn_dim: 32, encoder_attention_heads: 2,
///     decoder_layers: 1, decoder_ffn_dim: 32, decoder_attention_heads: 2, ..Default::default()
/// };
/// let model = Bart::init(&config, &Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&model, &config, folder.path())?;
/// let loaded = Folder::open(folder.path())?.load::<Bart>(&config, &Device::flex())?;
/// assert!(loaded.unread.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Bart = EncoderDecoder<Encoder, Decoder>;

impl Bart {
    /// Computes the logits of the token after each of `ids`, `[batch, length]`. `places` holds their positions from 0,
    /// `[batch, length]`, or `[1, length]` for all rows alike; `reads` are the ids that each id reads, with 1 row for all
    /// rows alike, or `batch`. `pass` must know [where rows start](Pass::starting_at) if they are padded at the left.
    ///
    /// # Panics
    ///
    /// If there is no token, a position is not one of the model's, or an id is not in the vocabulary.
    pub fn decode(
        &self,
        ids: Tensor<2, Int>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: Encoded,
        pass: &Pass,
    ) -> Tensor<3> {
        self.logits(PlacedTokens { ids, places, reads, sample_lengths: None }, source, pass)
    }
}

impl Pretrained for Bart {
    type Config = BartConfig;

    fn architecture(_: &BartConfig) -> &'static str {
        BartConfig::ARCHITECTURE
    }

    fn init(config: &BartConfig, device: &Device) -> Self {
        let embedding = EmbeddingConfig::new(config.vocab_size, config.d_model);
        let bias: Param<Tensor<2>> = Initializer::Zeros.init([1, config.vocab_size], device);
        Self {
            tokens: embedding.with_initializer(config.normal()).init(device),
            encoder: Encoder {
                embeddings: Embeddings::new(config, device),
                blocks: (0..config.encoder_layers).map(|_| EncoderBlock::new(config, device)).collect(),
            },
            decoder: Decoder {
                embeddings: Embeddings::new(config, device),
                blocks: (0..config.decoder_layers).map(|_| DecoderBlock::new(config, device)).collect(),
            },
            head: None,
            final_logits_bias: Some(bias.set_require_grad(false)),
            scale: if config.scale_embedding { (config.d_model as f64).sqrt() } else { 1.0 },
            divisor: 1.0,
            scoring: None,
        }
    }

    fn keys(config: &BartConfig) -> KeyMap {
        keys::conditional_generation(config)
    }
}

/// The encoder: embeddings and blocks.
#[derive(Module, Debug)]
pub struct Encoder {
    embeddings: Embeddings,
    blocks: Vec<EncoderBlock>,
}

impl Encodes for Encoder {
    fn forward(&self, x: Tensor<3>, places: Tensor<2, Int>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let (x, within) = pass.divide_sequence(self.embeddings.sum(x, places, pass));
        let x = self.embeddings.finished(x, &within);
        let x = self.blocks.iter().fold(x, |x, block| {
            let run = |block: &EncoderBlock, (x, reads), pass: &Pass| block.forward(x, &reads, pass);
            within.segment(block, (x, reads.clone()), run)
        });
        within.join_sequence(x)
    }

    fn dtype(&self) -> Option<FloatDType> {
        let block = self.blocks.first();
        block.map(|block| FloatDType::from(block.weights().weight.base().dtype()))
    }

    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let block = self.blocks.first();
        let plan = block.map_or_else(TensorPlan::new, |block| block.tensor_plan(&format!("{path}.blocks.*")));
        plan.at_own_positions(format!("{path}.embeddings.norm"))
    }
}

/// The decoder: embeddings and blocks.
#[derive(Module, Debug)]
pub struct Decoder {
    embeddings: Embeddings,
    blocks: Vec<DecoderBlock>,
}

impl Decodes for Decoder {
    fn forward(
        &self,
        x: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: Source,
        pass: &Pass,
    ) -> Tensor<3> {
        let (x, within) = pass.divide_sequence(self.embeddings.sum(x, places, pass));
        let x = self.embeddings.finished(x, &within);
        let x = self.blocks.iter().fold(x, |x, block| {
            let samples = source.samples.clone();
            let run = move |block: &DecoderBlock, (x, reads, source), pass: &Pass| {
                block.forward(x, &reads, source, &samples, pass)
            };
            let read = (source.states.clone(), source.reads.clone());
            within.segment(block, (x, reads.clone(), read), run)
        });
        within.join_sequence(x)
    }

    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource {
        of_source(&self.blocks, source, pass, DecoderBlock::of_source)
    }

    fn read_on(
        &self,
        x: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let [_, length, _] = reads.shape();
        let source_reads = source.real.read_by(length);
        let (mut x, mut own) =
            (self.embeddings.finished(self.embeddings.sum(x, places, pass), pass), Vec::new());
        let mut past = past.into_iter();
        for (block, of_source) in self.blocks.iter().zip(&source.blocks) {
            let source = (of_source.clone(), source_reads.clone());
            let run = |block: &DecoderBlock, (x, past, reads, source), pass: &Pass| {
                block.read_on(x, past, &reads, source, pass)
            };
            let (read, kept) = pass.segment(block, (x, past.next(), reads.clone(), source), run);
            x = read;
            own.push(kept);
        }
        (x, own)
    }

    fn positions(&self) -> Option<usize> {
        Some(self.embeddings.count())
    }

    fn tensor_plan(&self, path: &str) -> TensorPlan {
        let block = self.blocks.first();
        let plan = block.map_or_else(TensorPlan::new, |block| block.tensor_plan(&format!("{path}.blocks.*")));
        plan.at_own_positions(format!("{path}.embeddings.norm"))
    }
}

/// Number of rows of the table before the row of the first position. Nothing reads them.
const UNREAD: usize = 2;

/// The embeddings of positions, with the norm of their sum with those of tokens.
#[derive(Module, Debug)]
pub(super) struct Embeddings {
    /// `[positions + 2, width]`.
    positions: Embedding,
    norm: Norm,
    dropout: Dropout,
}

impl Embeddings {
    pub fn new(config: &BartConfig, device: &Device) -> Self {
        let positions = EmbeddingConfig::new(config.max_position_embeddings + UNREAD, config.d_model);
        Self {
            positions: positions.with_initializer(config.normal()).init(device),
            norm: Norm::new(config.d_model, true, device),
            dropout: Dropout::new(config.dropout),
        }
    }

    /// The number of positions.
    pub fn count(&self) -> usize {
        self.positions.weight.dims()[0] - UNREAD
    }

    /// Adds the embeddings of `places`, `[batch, length]`, to those of tokens, `[batch, length, width]`, in the dtype of
    /// the pass.
    pub fn sum(&self, tokens: Tensor<3>, places: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let dtype = pass.dtype();
        let positions = embedded(&self.positions, places.add_scalar(UNREAD as i64));
        cast(tokens, dtype) + cast(positions, dtype)
    }

    /// Normalises and drops the [sum](Self::sum), of the positions of the pass.
    pub fn finished(&self, sum: Tensor<3>, pass: &Pass) -> Tensor<3> {
        self.dropout.forward(pass.at_own_positions(&self.norm).forward(sum), pass)
    }
}
