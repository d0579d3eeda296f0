//! The encoder and the decoder, with the head.

use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Initializer};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_kernels::{Head, Reads, cast};
use firebrick_strategies::Pass;

use super::block::{DecoderBlock, EncoderBlock};
use super::embeddings::Embeddings;
use super::{BartConfig, keys};
use crate::WrittenScores;
use crate::causal::Placed;
use crate::embedded::embedded;
use crate::encoder_decoder::{self, Encoded, EncoderDecoder, Source};
use crate::key_value::{KeyValue, Past, PastSource};
use crate::output_layer::output_layer;
use crate::pretrained::{KeyMap, Pretrained};
use crate::ragged::Tokens;
use crate::writing::{ReadsOn, Writes};
use firebrick::{Evaluation, Loss, Objective, Score};

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
#[derive(Module, Debug)]
pub struct Bart {
    tokens: Embedding,
    encoder: Encoder,
    decoder: Decoder,
    /// `[1, vocabulary]`, without a gradient.
    final_logits_bias: Param<Tensor<2>>,
    /// The factor of the embeddings of tokens.
    scale: f64,
    /// How to score generated texts in evaluation, if they are scored.
    #[module(skip)]
    scoring: Option<WrittenScores>,
}

impl Bart {
    /// Computes logits `[batch, target length, vocabulary]`, in the dtype of the token embedding. The logits in each
    /// column are those of the target's token in that column.
    ///
    /// # Panics
    ///
    /// If there is no token, a row has more tokens than the model has positions, or an id is not in the vocabulary.
    pub fn forward(&self, batch: &Seq2SeqBatch, pass: &Pass) -> Tensor<3> {
        self.head().logits(encoder_decoder::hidden(self, batch, &Tokens::padded_both(batch), pass))
    }

    /// Makes evaluation generate and score a text for each source.
    pub fn scoring(self, scores: WrittenScores) -> Self {
        Self { scoring: Some(scores), ..self }
    }

    /// Encodes a source `[batch, source length]`.
    ///
    /// # Panics
    ///
    /// For the reasons of [`forward`](Self::forward).
    pub fn encode(&self, source: &Inputs, pass: &Pass) -> Encoded {
        encoder_decoder::encode(self, source, pass)
    }

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
        let [_, length] = ids.dims();
        let read = Placed { ids, places, reads, sample_lengths: None };
        self.head().logits(self.decoded(read, source.read_by(length), pass))
    }

    /// The embeddings of tokens, `[batch, length, d_model]`, in the dtype of the pass.
    fn embedded(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let x = cast(embedded(&self.tokens, ids), pass.dtype());
        if self.scale == 1.0 { x } else { x * self.scale }
    }
}

impl EncoderDecoder for Bart {
    fn encoded(&self, Placed { ids, places, reads, .. }: Placed, pass: &Pass) -> Tensor<3> {
        self.encoder.forward(self.embedded(ids, pass), places, reads, pass)
    }

    fn decoded(&self, Placed { ids, places, reads, .. }: Placed, source: Source, pass: &Pass) -> Tensor<3> {
        self.decoder.forward(self.embedded(ids, pass), places, reads, source, pass)
    }

    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource {
        self.decoder.of_source(source, pass)
    }

    fn decoded_on(
        &self,
        Placed { ids, places, reads, .. }: Placed,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        self.decoder.read_on(self.embedded(ids, pass), places, reads, source, past, pass)
    }

    fn head(&self) -> Head {
        let head = output_layer(&self.tokens, None);
        let dtype = FloatDType::from(self.tokens.weight.base().dtype());
        let bias = self.final_logits_bias.val();
        Head { bias: Some(cast(bias, dtype).squeeze_dim(0)), ..head }
    }

    fn written_scores(&self) -> Option<&WrittenScores> {
        self.scoring.as_ref()
    }
}

impl ReadsOn for Bart {
    fn vocabulary(&self) -> usize {
        self.tokens.weight.dims()[0]
    }

    fn positions(&self) -> Option<usize> {
        Some(self.decoder.embeddings.count())
    }

    fn dtype(&self) -> FloatDType {
        let block = self.encoder.blocks.first();
        let weight = block.map_or(&self.tokens.weight, |block| &block.weights().weight);
        FloatDType::from(weight.base().dtype())
    }

    fn read_on(
        &self,
        read: Placed,
        source: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past) {
        encoder_decoder::read_on(self, read, source, past, pass)
    }
}

impl Writes for Bart {}

impl Objective<Seq2SeqBatch> for Bart {
    fn loss(&self, batch: Seq2SeqBatch, pass: &Pass) -> Loss {
        encoder_decoder::loss(self, &batch, pass)
    }

    fn evaluate(&self, batch: Seq2SeqBatch, pass: &Pass) -> Evaluation {
        encoder_decoder::evaluate(self, &batch, pass)
    }

    /// `perplexity`, the exponential of the mean loss per token; and the scores of [`WrittenScores`] if the model is
    /// [scoring](Self::scoring).
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        encoder_decoder::scores(self, counts)
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
            final_logits_bias: bias.set_require_grad(false),
            scale: if config.scale_embedding { (config.d_model as f64).sqrt() } else { 1.0 },
            scoring: None,
        }
    }

    fn keys(config: &BartConfig) -> KeyMap {
        keys::conditional_generation(config)
    }
}

#[derive(Module, Debug)]
struct Encoder {
    embeddings: Embeddings,
    blocks: Vec<EncoderBlock>,
}

impl Encoder {
    fn forward(&self, tokens: Tensor<3>, places: Tensor<2, Int>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let x = self.embeddings.forward(tokens, places, pass);
        self.blocks.iter().fold(x, |x, block| {
            let run = |block: &EncoderBlock, (x, reads), pass: &Pass| block.forward(x, &reads, pass);
            pass.segment(block, (x, reads.clone()), run)
        })
    }
}

#[derive(Module, Debug)]
struct Decoder {
    embeddings: Embeddings,
    blocks: Vec<DecoderBlock>,
}

impl Decoder {
    fn forward(
        &self,
        tokens: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: Source,
        pass: &Pass,
    ) -> Tensor<3> {
        let x = self.embeddings.forward(tokens, places, pass);
        self.blocks.iter().fold(x, |x, block| {
            let samples = source.samples.clone();
            let run = move |block: &DecoderBlock, (x, reads, source), pass: &Pass| {
                block.forward(x, &reads, source, &samples, pass)
            };
            let read = (source.states.clone(), source.reads.clone());
            pass.segment(block, (x, reads.clone(), read), run)
        })
    }

    /// The keys and values of a source in each block.
    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource {
        let of_block = |block| {
            let samples = source.samples.clone();
            let run = move |block: &DecoderBlock, states, pass: &Pass| {
                block.of_source(states, &pass.placed_as(&samples))
            };
            pass.segment(block, source.states.clone(), run)
        };
        PastSource { blocks: self.blocks.iter().map(of_block).collect(), real: source.real }
    }

    /// Decodes further columns after the keys and values in `past`, and also returns the keys and values of both.
    fn read_on(
        &self,
        tokens: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let [_, length, _] = reads.shape();
        let source_reads = source.real.read_by(length);
        let (mut x, mut own) = (self.embeddings.forward(tokens, places, pass), Vec::new());
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
}
