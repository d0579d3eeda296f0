//! What models with an encoder and a decoder share: reading a batch, the loss, and reading on.

use burn::tensor::Tensor;
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, Reads, Samples};
use firebrick_strategies::Pass;

use crate::WrittenScores;
use crate::attention::starts_of;
use crate::causal::Placed;
use crate::decoding::{Prompt, Text};
use crate::key_value::{KeyValue, Past, PastSource};
use crate::output_layer::output_loss;
use crate::perplexity::{counted, perplexity};
use crate::ragged::Tokens;
use crate::real_columns::RealColumns;
use crate::writing::{Caching, ReadsOn, last_column};
use firebrick::{Evaluation, Loss, Score, TrainError};

/// A source after the encoder, as the decoder reads it.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// `[batch, source length, width]`.
    pub(crate) states: Tensor<3>,
    pub(crate) real: RealColumns,
    /// Where the samples stand in `states`.
    pub(crate) samples: Samples,
}

impl Encoded {
    /// The source as `length` tokens of each row of a target read it.
    pub(crate) fn read_by(self, length: usize) -> Source {
        let Self { states, real, samples } = self;
        Source { states, reads: real.read_by(length), samples }
    }
}

/// An encoder's output as a decoder reads it.
pub(crate) struct Source {
    /// `[batch, source length, width]`.
    pub states: Tensor<3>,
    pub reads: Reads,
    /// Where the samples stand in `states`.
    pub samples: Samples,
}

/// A model with an encoder and a decoder.
pub(crate) trait EncoderDecoder: ReadsOn {
    /// The encoder's output for tokens of sources, `[batch, length, width]`.
    fn encoded(&self, read: Placed, pass: &Pass) -> Tensor<3>;

    /// The head's input for tokens of targets, `[batch, length, width]`.
    fn decoded(&self, read: Placed, source: Source, pass: &Pass) -> Tensor<3>;

    /// The keys and values of a source in each block of the decoder.
    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource;

    /// Like [`decoded`](Self::decoded), but continues after the keys and values in `past`, which is empty at first. Also
    /// returns the keys and values of both.
    fn decoded_on(
        &self,
        read: Placed,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>);

    /// The output layer.
    fn head(&self) -> Head;

    /// How to score generated texts in evaluation, if they are scored.
    fn written_scores(&self) -> Option<&WrittenScores>;
}

/// The head's input for some tokens of the targets, of their shape.
pub(crate) fn hidden<M: EncoderDecoder>(
    model: &M,
    batch: &Seq2SeqBatch,
    [sources, targets]: &[Tokens; 2],
    pass: &Pass,
) -> Tensor<3> {
    let (states, samples) = states(model, batch.source(), sources, pass);
    let source = Source { states, reads: sources.read_by(targets), samples };
    let (real, [_, length]) = (batch.host_decoder_mask(), batch.target_shape());
    let read = placed(targets, batch.host_decoder_ids(), targets.read_causally(real), pass);
    let pass = targets.pass(pass, || starts_of(real, length));
    model.decoded(read, source, &pass)
}

/// The encoder's output for some tokens of a source, of their shape, and where the samples stand in it.
fn states<M: EncoderDecoder>(
    model: &M,
    source: &Inputs,
    tokens: &Tokens,
    pass: &Pass,
) -> (Tensor<3>, Samples) {
    let [_, length] = source.shape();
    let read = placed(tokens, source.host_ids(), tokens.read_whole_rows(), pass);
    let pass = tokens.pass(pass, || starts_of(source.host_mask(), length));
    (model.encoded(read, &pass), pass.samples().clone())
}

/// Some tokens of a batch, which has these `ids`. A token's position is its place among the real tokens of its row.
fn placed(tokens: &Tokens, ids: &[i32], reads: Reads, pass: &Pass) -> Placed {
    let device = pass.device();
    Placed {
        ids: tokens.ints(ids, device),
        places: tokens.ints(&tokens.places(), device),
        reads,
        sample_lengths: None,
    }
}

/// Encodes a source `[batch, source length]`.
pub(crate) fn encode<M: EncoderDecoder>(model: &M, source: &Inputs, pass: &Pass) -> Encoded {
    let (states, samples) = states(model, source, &Tokens::padded(source), pass);
    Encoded { states, real: RealColumns::of(source), samples }
}

/// [`ReadsOn::read_on`] of a model with an encoder and a decoder.
pub(crate) fn read_on<M: EncoderDecoder>(
    model: &M,
    read: Placed,
    source: Option<&Inputs>,
    past: Option<Past>,
    pass: &Pass,
) -> (Tensor<2>, Past) {
    let (own, of_source) = match past {
        Some(Past { own, source }) => (own, source),
        None => (Vec::new(), source.map(|source| model.of_source(encode(model, source, pass), pass))),
    };
    let of_source = of_source.expect("a decoder has a source");
    let (x, own) = model.decoded_on(read, &of_source, own, pass);
    let logits = model.head().logits(last_column(x));
    (logits.squeeze_dim(1), Past { own, source: Some(of_source) })
}

/// The loss of each label of the targets.
pub(crate) fn loss<M: EncoderDecoder>(model: &M, batch: &Seq2SeqBatch, pass: &Pass) -> Loss {
    let tokens @ [_, targets] = &Tokens::of_both(batch, pass);
    if targets.is_empty() {
        return Loss::of_nothing(pass);
    }
    let (x, labels) = (hidden(model, batch, tokens, pass), targets.select(batch.host_labels()));
    Loss { sum: output_loss(x, &model.head(), &labels, pass), items: batch.items() }
}

/// The loss, and the counts of the texts that are generated in evaluation, if there are any.
pub(crate) fn evaluate<M: EncoderDecoder>(model: &M, batch: &Seq2SeqBatch, pass: &Pass) -> Evaluation {
    let Some(scores) = model.written_scores() else { return counted(loss(model, batch, pass)) };
    // A failed device or lost rank also fails the loss, which reports it; here the batch is just not scored.
    let written = counts_of_written(model, batch, scores, pass).unwrap_or(WrittenScores::unknown());
    let Evaluation { loss, mut counts } = counted(loss(model, batch, pass));
    counts.extend(written);
    Evaluation { loss, counts }
}

/// The scores of [`evaluate`]'s counts: `perplexity`, the exponential of the mean loss per token, and those of
/// [`WrittenScores`] if texts are generated.
pub(crate) fn scores<M: EncoderDecoder>(model: &M, counts: &[f64]) -> Vec<Score> {
    let (of_loss, of_written) = counts.split_at(counts.len().min(2));
    let written = model.written_scores().into_iter().flat_map(|_| WrittenScores::scores(of_written));
    [perplexity(of_loss)].into_iter().chain(written).collect()
}

/// The counts of the texts generated for the sources of a batch, compared with the batch's targets. If a target
/// begins with tokens that have no label, generation continues from them.
fn counts_of_written<M: EncoderDecoder>(
    model: &M,
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
    let mut model = Caching::within(model, pass, &prompts, Some(batch.source()));
    let texts = scores.decoding().write(&mut model, &prompts)?;
    let best = |texts: &Vec<Text>| texts.first().map(|text| text.without_end().to_vec()).unwrap_or_default();
    let wanted = if prompts.is_empty() { &[][..] } else { batch.host_targets() };
    scores.counts(&texts.iter().map(best).collect::<Vec<_>>(), wanted)
}
