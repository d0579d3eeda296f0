//! The encoder and the decoder, with the head.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_kernels::{Head, Reads, cast};
use firebrick_strategies::{Dropout, Pass};

use super::block::{DecoderBlock, EncoderBlock};
use super::relative_bias::RelativeBias;
use super::{T5Config, keys};
use crate::causal::Placed;
use crate::embedded::embedded;
use crate::encoder_decoder::{self, Encoded, EncoderDecoder, Source};
use crate::key_value::{KeyValue, Past, PastSource};
use crate::output_layer::output_layer;
use crate::pretrained::{KeyMap, Pretrained};
use crate::ragged::Tokens;
use crate::writing::{ReadsOn, Writes};
use crate::{Linear, RmsNorm, WrittenScores};
use firebrick::{Evaluation, Loss, Objective, Score};

/// T5 (Raffel et al., 2020, arXiv:1910.10683): pre-norm, relative positions: `T5ForConditionalGeneration`, and
/// `MT5ForConditionalGeneration` (Xue et al., 2021, arXiv:2010.11934).
///
/// Its activations grow beyond f16: compute in bf16 or f32.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{T5, T5Config};
/// use firebrick_models::pretrained::{Folder, Pretrained, save};
///
/// let config = T5Config { vocab_size: 30, d_model: 16, d_kv: 4, d_ff: 32, num_layers: 1, num_heads: 4, ..Default::default() };
/// let model = T5::init(&config, &Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&model, &config, folder.path())?;
/// let loaded = Folder::open(folder.path())?.load::<T5>(&config, &Device::flex())?;
/// assert!(loaded.unread.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct T5 {
    tokens: Embedding,
    encoder: Encoder,
    decoder: Decoder,
    head: Option<Linear>,
    /// Whether the head's input is divided by √d_model.
    scaled: bool,
    /// How to score generated texts in evaluation, if they are scored.
    #[module(skip)]
    scoring: Option<WrittenScores>,
}

impl T5 {
    /// Computes logits `[batch, target length, vocabulary]`, in the dtype of the head's weights. The logits in each
    /// column are those of the target's token in that column.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
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
    /// If there is no token, or an id is not in the vocabulary.
    pub fn encode(&self, source: &Inputs, pass: &Pass) -> Encoded {
        encoder_decoder::encode(self, source, pass)
    }

    /// Computes the logits of the token after each of `ids`, `[batch, length]`. `reads` are the ids that each id reads,
    /// with 1 row for all rows alike, or `batch`. `pass` must know [where rows start](Pass::starting_at) if they are padded at the left.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn decode(&self, ids: Tensor<2, Int>, reads: Reads, source: Encoded, pass: &Pass) -> Tensor<3> {
        let [_, length] = ids.dims();
        self.head().logits(self.read(ids, reads, source.read_by(length), pass))
    }

    /// The head's input for tokens of targets. Positions have no part in it.
    fn read(&self, ids: Tensor<2, Int>, reads: Reads, source: Source, pass: &Pass) -> Tensor<3> {
        self.scaled(self.decoder.forward(self.embedded(ids, pass), reads, source, pass))
    }

    fn embedded(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        cast(embedded(&self.tokens, ids), pass.dtype())
    }

    fn scaled(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, _, width] = x.dims();
        if self.scaled { x / (width as f64).sqrt() } else { x }
    }
}

impl EncoderDecoder for T5 {
    fn encoded(&self, Placed { ids, reads, .. }: Placed, pass: &Pass) -> Tensor<3> {
        self.encoder.forward(self.embedded(ids, pass), reads, pass)
    }

    fn decoded(&self, Placed { ids, reads, .. }: Placed, source: Source, pass: &Pass) -> Tensor<3> {
        self.read(ids, reads, source, pass)
    }

    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource {
        self.decoder.of_source(source, pass)
    }

    fn decoded_on(
        &self,
        Placed { ids, reads, .. }: Placed,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let (x, own) = self.decoder.read_on(self.embedded(ids, pass), reads, source, past, pass);
        (self.scaled(x), own)
    }

    fn head(&self) -> Head {
        output_layer(&self.tokens, self.head.as_ref())
    }

    fn written_scores(&self) -> Option<&WrittenScores> {
        self.scoring.as_ref()
    }
}

impl ReadsOn for T5 {
    fn vocabulary(&self) -> usize {
        self.tokens.weight.dims()[0]
    }

    fn positions(&self) -> Option<usize> {
        None
    }

    fn dtype(&self) -> FloatDType {
        FloatDType::from(self.tokens.weight.base().dtype())
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

impl Writes for T5 {}

impl Objective<Seq2SeqBatch> for T5 {
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

impl Pretrained for T5 {
    type Config = T5Config;

    fn architecture(config: &T5Config) -> &'static str {
        match config.is_multilingual() {
            true => "MT5ForConditionalGeneration",
            false => "T5ForConditionalGeneration",
        }
    }

    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn init(config: &T5Config, device: &Device) -> Self {
        let embedding = EmbeddingConfig::new(config.vocab_size, config.d_model);
        let head = || config.linear([config.d_model, config.vocab_size], 1, device);
        Self {
            tokens: embedding.with_initializer(config.normal(1)).init(device),
            encoder: Encoder {
                bias: RelativeBias::new(config, true, device),
                blocks: (0..config.num_layers).map(|_| EncoderBlock::new(config, device)).collect(),
                norm: config.norm(device),
                dropout: Dropout::new(config.dropout_rate),
            },
            decoder: Decoder {
                bias: RelativeBias::new(config, false, device),
                blocks: (0..config.decoder_layers()).map(|_| DecoderBlock::new(config, device)).collect(),
                norm: config.norm(device),
                dropout: Dropout::new(config.dropout_rate),
            },
            head: (!config.tie_word_embeddings).then(head),
            scaled: config.is_scaled(),
            scoring: None,
        }
    }

    fn keys(config: &T5Config) -> KeyMap {
        keys::conditional_generation(config)
    }
}

#[derive(Module, Debug)]
struct Encoder {
    bias: RelativeBias,
    blocks: Vec<EncoderBlock>,
    norm: RmsNorm,
    dropout: Dropout,
}

impl Encoder {
    fn forward(&self, x: Tensor<3>, reads: Reads, pass: &Pass) -> Tensor<3> {
        let bias = self.bias.forward(reads.longest()[1], &x.device());
        let x = self.blocks.iter().fold(self.dropout.forward(x, pass), |x, block| {
            let run =
                |block: &EncoderBlock, (x, bias, reads), pass: &Pass| block.forward(x, bias, reads, pass);
            pass.segment(block, (x, bias.clone(), reads.clone()), run)
        });
        self.dropout.forward(self.norm.forward(x), pass)
    }
}

#[derive(Module, Debug)]
struct Decoder {
    bias: RelativeBias,
    blocks: Vec<DecoderBlock>,
    norm: RmsNorm,
    dropout: Dropout,
}

impl Decoder {
    fn forward(&self, x: Tensor<3>, reads: Reads, source: Source, pass: &Pass) -> Tensor<3> {
        let bias = self.bias.forward(reads.longest()[1], &x.device());
        let x = self.blocks.iter().fold(self.dropout.forward(x, pass), |x, block| {
            let samples = source.samples.clone();
            let run = move |block: &DecoderBlock, (x, bias, reads, source), pass: &Pass| {
                block.forward(x, bias, reads, source, &samples, pass)
            };
            let read = (source.states.clone(), source.reads.clone());
            pass.segment(block, (x, bias.clone(), reads.clone(), read), run)
        });
        self.dropout.forward(self.norm.forward(x), pass)
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
        x: Tensor<3>,
        reads: Reads,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let [_, length, columns] = reads.shape();
        let source_reads = source.real.read_by(length);
        let bias = self.bias.forward(columns, &x.device()).narrow(2, columns - length, length);
        let mut past = past.into_iter();
        let (mut x, mut own) = (self.dropout.forward(x, pass), Vec::new());
        for (block, of_source) in self.blocks.iter().zip(&source.blocks) {
            let past = past.next();
            let source = (of_source.clone(), source_reads.clone());
            let run = |block: &DecoderBlock, (x, past, bias, reads, source), pass: &Pass| {
                block.read_on(x, past, bias, reads, source, pass)
            };
            let (read, kept) = pass.segment(block, (x, past, bias.clone(), reads.clone(), source), run);
            x = read;
            own.push(kept);
        }
        (self.dropout.forward(self.norm.forward(x), pass), own)
    }
}
