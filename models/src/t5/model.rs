//! The encoder and the decoder, with the head.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, Reads, Samples, cast};
use firebrick_strategies::{Dropout, Pass};

use super::block::{DecoderBlock, EncoderBlock};
use super::relative_bias::RelativeBias;
use super::{T5Config, keys};
use crate::attention::starts_of;
use crate::causal::Placed;
use crate::decoding::{Prompt, Text};
use crate::embedded::embedded;
use crate::key_value::{KeyValue, Past, PastSource};
use crate::output_layer::{output_layer, output_loss};
use crate::perplexity::{counted, perplexity};
use crate::pretrained::{KeyMap, Pretrained};
use crate::ragged::Tokens;
use crate::real_columns::RealColumns;
use crate::writing::{Caching, ReadsOn, last_column};
use crate::{Linear, RmsNorm, WrittenScores};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};

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

/// A source after the encoder, as the decoder reads it.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// `[batch, source length, d_model]`.
    states: Tensor<3>,
    real: RealColumns,
    /// Where the samples stand in `states`.
    samples: Samples,
}

/// An encoder's output as a decoder reads it.
struct Source {
    /// `[batch, source length, d_model]`.
    states: Tensor<3>,
    reads: Reads,
    /// Where the samples stand in `states`.
    samples: Samples,
}

impl T5 {
    /// Computes logits `[batch, target length, vocabulary]`, in the dtype of the head's weights. The logits in each
    /// column are those of the target's token in that column.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn forward(&self, batch: &Seq2SeqBatch, pass: &Pass) -> Tensor<3> {
        self.head().logits(self.hidden(batch, &Tokens::padded_both(batch), pass))
    }

    /// The input of the head for some tokens of the targets, of their shape.
    fn hidden(&self, batch: &Seq2SeqBatch, [sources, targets]: &[Tokens; 2], pass: &Pass) -> Tensor<3> {
        let (states, samples) = self.states(batch.source(), sources, pass);
        let source = Source { states, reads: sources.read_by(targets), samples };
        let (real, [_, length]) = (batch.host_decoder_mask(), batch.target_shape());
        let ids = targets.ints(batch.host_decoder_ids(), pass.device());
        let pass = targets.pass(pass, || starts_of(real, length));
        self.decoded(ids, targets.read_causally(real), source, &pass)
    }

    /// The encoder's output for some tokens of a source, of their shape, and where the samples stand in it.
    fn states(&self, source: &Inputs, tokens: &Tokens, pass: &Pass) -> (Tensor<3>, Samples) {
        let [_, length] = source.shape();
        let ids = tokens.ints(source.host_ids(), pass.device());
        let pass = tokens.pass(pass, || starts_of(source.host_mask(), length));
        let x = cast(embedded(&self.tokens, ids), pass.dtype());
        (self.encoder.forward(x, tokens.read_whole_rows(), &pass), pass.samples().clone())
    }

    /// Makes evaluation generate and score a text for each source.
    pub fn scoring(self, scores: WrittenScores) -> Self {
        Self { scoring: Some(scores), ..self }
    }

    /// The counts of the texts generated for the sources of a batch, compared with the batch's targets. If a target
    /// begins with tokens that have no label, generation continues from them.
    fn counts_of_written(
        &self,
        batch: &Seq2SeqBatch,
        scores: &WrittenScores,
        pass: &Pass,
    ) -> Result<Vec<f64>, TrainError> {
        // If all targets are empty, there are no rows.
        let length = batch.target_shape()[1].max(1);
        let rows = batch.host_decoder_ids().chunks(length).zip(batch.host_labels().chunks(length));
        let rows = rows.zip(batch.host_decoder_mask().chunks(length));
        let mut prompts = Vec::new();
        for (row, ((read, labels), is_real)) in rows.enumerate() {
            let first = labels.iter().position(|label| *label != IGNORE).unwrap_or(0);
            let begun = read.iter().zip(is_real).take(first + 1).filter(|(_, is_real)| **is_real);
            prompts.push(Prompt::new(row as u64, begun.map(|(id, _)| *id as u32).collect::<Vec<_>>()));
        }
        let mut model = Caching::within(self, pass, &prompts, Some(batch.source()));
        let texts = scores.decoding().write(&mut model, &prompts)?;
        let best =
            |texts: &Vec<Text>| texts.first().map(|text| text.without_end().to_vec()).unwrap_or_default();
        let wanted = if prompts.is_empty() { &[][..] } else { batch.host_targets() };
        scores.counts(&texts.iter().map(best).collect::<Vec<_>>(), wanted)
    }

    /// Encodes a source `[batch, source length]`.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn encode(&self, source: &Inputs, pass: &Pass) -> Encoded {
        let (states, samples) = self.states(source, &Tokens::padded(source), pass);
        Encoded { states, real: RealColumns::of(source), samples }
    }

    /// Computes the logits of the token after each of `ids`, `[batch, length]`. `reads` are the ids that each id reads,
    /// with 1 row for all rows alike, or `batch`. `pass` must know [where rows start](Pass::starting_at) if they are padded at the left.
    ///
    /// # Panics
    ///
    /// If there is no token, or an id is not in the vocabulary.
    pub fn decode(&self, ids: Tensor<2, Int>, reads: Reads, source: Encoded, pass: &Pass) -> Tensor<3> {
        let [_, length] = ids.dims();
        let Encoded { states, real, samples } = source;
        let source = Source { states, reads: real.read_by(length), samples };
        self.head().logits(self.decoded(ids, reads, source, pass))
    }

    /// `source` holds the encoder's output and what is read of it.
    fn decoded(&self, ids: Tensor<2, Int>, reads: Reads, source: Source, pass: &Pass) -> Tensor<3> {
        let x = cast(embedded(&self.tokens, ids), pass.dtype());
        self.scaled(self.decoder.forward(x, reads, source, pass))
    }

    fn scaled(&self, x: Tensor<3>) -> Tensor<3> {
        let [_, _, width] = x.dims();
        if self.scaled { x / (width as f64).sqrt() } else { x }
    }

    fn head(&self) -> Head {
        output_layer(&self.tokens, self.head.as_ref())
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
        let Placed { ids, reads, .. } = read;
        let x = cast(embedded(&self.tokens, ids), pass.dtype());
        let (own, of_source) = match past {
            Some(Past { own, source }) => (Some(own), source),
            None => (None, source.map(|source| self.decoder.of_source(self.encode(source, pass), pass))),
        };
        let of_source = of_source.expect("a T5 decoder has a source");
        let (x, own) = self.decoder.read_on(x, reads, &of_source, own, pass);
        let logits = self.head().logits(self.scaled(last_column(x)));
        (logits.squeeze_dim(1), Past { own, source: Some(of_source) })
    }
}

impl Objective<Seq2SeqBatch> for T5 {
    fn loss(&self, batch: Seq2SeqBatch, pass: &Pass) -> Loss {
        let tokens @ [_, targets] = &Tokens::of_both(&batch, pass);
        if targets.is_empty() {
            return Loss::of_nothing(pass);
        }
        let (x, labels) = (self.hidden(&batch, tokens, pass), targets.select(batch.host_labels()));
        let sum = output_loss(x, &self.head(), &labels, pass);
        Loss { sum, items: batch.items() }
    }

    fn evaluate(&self, batch: Seq2SeqBatch, pass: &Pass) -> Evaluation {
        let Some(scores) = &self.scoring else { return counted(self.loss(batch, pass)) };
        // A failed device or lost rank also fails the loss, which reports it; here the batch is just not scored.
        let written = self.counts_of_written(&batch, scores, pass).unwrap_or(WrittenScores::unknown());
        let Evaluation { loss, mut counts } = counted(self.loss(batch, pass));
        counts.extend(written);
        Evaluation { loss, counts }
    }

    /// `perplexity`, the exponential of the mean loss per token; and the scores of [`WrittenScores`] if the model is
    /// [scoring](Self::scoring).
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let (of_loss, of_written) = counts.split_at(counts.len().min(2));
        let written = self.scoring.iter().flat_map(|_| WrittenScores::scores(of_written));
        [perplexity(of_loss)].into_iter().chain(written).collect()
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
        past: Option<Vec<KeyValue>>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>) {
        let [_, length, columns] = reads.shape();
        let source_reads = source.real.read_by(length);
        let bias = self.bias.forward(columns, &x.device()).narrow(2, columns - length, length);
        let mut past = past.map(Vec::into_iter);
        let (mut x, mut own) = (self.dropout.forward(x, pass), Vec::new());
        for (block, of_source) in self.blocks.iter().zip(&source.blocks) {
            let past = past.as_mut().and_then(Iterator::next);
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
