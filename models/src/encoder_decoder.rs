//! Models with an encoder and a decoder.

use burn::module::{Module, ModuleDisplay, Param};
use burn::nn::Embedding;
use burn::tensor::{FloatDType, Int, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, Reads, Samples, cast};
use firebrick_strategies::{Pass, TensorPlan};

use crate::attention::starts_of;
use crate::causal::PlacedTokens;
use crate::decoding::{Prompt, Text};
use crate::family::{Family, Trainable};
use crate::inference::{Answer, Answers, Inference, Question, written_from};
use crate::key_value::{KeyValue, Past, PastSource, RealColumns};
use crate::pretrained::Pretrained;
use crate::ragged::Tokens;
use crate::vocabulary::{counted, embedded_tokens, output_layer, output_loss, perplexity, vocabulary_plan};
use crate::writing::{Caching, ReadsOn, Writes, last_column};
use crate::{Linear, WrittenScores};

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

/// The encoder of an [`EncoderDecoder`].
pub(crate) trait Encodes: Module + ModuleDisplay + 'static {
    /// Maps the embeddings of tokens at these `places` to hidden states, `[batch, length, width]` both.
    fn forward(&self, x: Tensor<3>, places: Tensor<2, Int>, reads: Reads, pass: &Pass) -> Tensor<3>;

    /// The layers that ranks may divide, of an encoder at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan;

    /// The dtype of the weights of its blocks. Default: that of the embedding of tokens.
    fn dtype(&self) -> Option<FloatDType> {
        None
    }
}

/// The decoder of an [`EncoderDecoder`].
pub(crate) trait Decodes: Module + ModuleDisplay + 'static {
    /// Maps the embeddings of tokens at these `places` to hidden states, `[batch, length, width]` both.
    fn forward(
        &self,
        x: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: Source,
        pass: &Pass,
    ) -> Tensor<3>;

    /// The keys and values of a source in each block.
    fn of_source(&self, source: Encoded, pass: &Pass) -> PastSource;

    /// Like [`forward`](Self::forward), but continues after the keys and values in `past`, which is empty at first. Also
    /// returns the keys and values of both.
    fn read_on(
        &self,
        x: Tensor<3>,
        places: Tensor<2, Int>,
        reads: Reads,
        source: &PastSource,
        past: Vec<KeyValue>,
        pass: &Pass,
    ) -> (Tensor<3>, Vec<KeyValue>);

    /// The maximum number of positions in a row, if there is one.
    fn positions(&self) -> Option<usize>;

    /// The layers that ranks may divide, of a decoder at this path.
    fn tensor_plan(&self, path: &str) -> TensorPlan;
}

/// The keys and values of a source in each of these blocks, of which `run` computes those of one.
pub(crate) fn of_source<B: Module + 'static>(
    blocks: &[B],
    source: Encoded,
    pass: &Pass,
    run: fn(&B, Tensor<3>, &Pass) -> KeyValue,
) -> PastSource {
    // A stage would need what the encoder returns beside the states of its first block.
    pass.refuse_stages();
    let of_block = |block| {
        let samples = source.samples.clone();
        let run = move |block: &B, states, pass: &Pass| run(block, states, &pass.placed_as(&samples));
        pass.segment(block, source.states.clone(), run)
    };
    PastSource { blocks: blocks.iter().map(of_block).collect(), real: source.real }
}

/// An encoder and a decoder that share the embedding of tokens, with the output layer: [`Bart`](crate::Bart) and
/// [`T5`](crate::T5), which have examples.
#[derive(Module, Debug)]
pub struct EncoderDecoder<E, D> {
    pub(crate) tokens: Embedding,
    pub(crate) encoder: E,
    pub(crate) decoder: D,
    /// The weights of the output layer, if they are not the embedding of tokens.
    pub(crate) head: Option<Linear>,
    /// The bias of the output layer, `[1, vocabulary]`, without a gradient.
    pub(crate) final_logits_bias: Option<Param<Tensor<2>>>,
    /// The factor of the embeddings of tokens.
    pub(crate) scale: f64,
    /// What the input of the output layer is divided by.
    pub(crate) divisor: f64,
    /// How to score generated texts in evaluation, if they are scored.
    #[module(skip)]
    pub(crate) scoring: Option<WrittenScores>,
}

#[allow(private_bounds, reason = "how a model reads a batch is its own matter")]
impl<E: Encodes, D: Decodes> EncoderDecoder<E, D> {
    /// Computes logits `[batch, target length, vocabulary]`, in the dtype of the output layer's weights. The logits in
    /// each column are those of the target's token in that column.
    ///
    /// # Panics
    ///
    /// If there is no token, a row has more tokens than the model has positions, or an id is not in the vocabulary.
    pub fn forward(&self, batch: &Seq2SeqBatch, pass: &Pass) -> Tensor<3> {
        self.output_layer().logits(self.hidden(batch, &Tokens::padded_both(batch), pass))
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
        let (states, samples) = self.states(source, &Tokens::padded(source), pass);
        Encoded { states, real: RealColumns::of(source), samples }
    }

    /// The logits of the token after each of these, `[batch, length, vocabulary]`.
    pub(crate) fn logits(&self, read: PlacedTokens, source: Encoded, pass: &Pass) -> Tensor<3> {
        let [_, length] = read.ids.dims();
        self.output_layer().logits(self.read(read, source.read_by(length), pass))
    }

    /// The output layer's input for some tokens of the targets, of their shape.
    fn hidden(&self, batch: &Seq2SeqBatch, [sources, targets]: &[Tokens; 2], pass: &Pass) -> Tensor<3> {
        let (states, samples) = self.states(batch.source(), sources, pass);
        let source = Source { states, reads: sources.read_by(targets), samples };
        let (real, [_, length]) = (batch.host_decoder_mask(), batch.target_shape());
        let read = placed(targets, batch.host_decoder_ids(), targets.read_causally(real), pass);
        self.read(read, source, &targets.pass(pass, || starts_of(real, length)))
    }

    /// The encoder's output for some tokens of a source, of their shape, and where the samples stand in it.
    fn states(&self, source: &Inputs, tokens: &Tokens, pass: &Pass) -> (Tensor<3>, Samples) {
        let [_, length] = source.shape();
        let read = placed(tokens, source.host_ids(), tokens.read_whole_rows(), pass);
        let pass = tokens.pass(pass, || starts_of(source.host_mask(), length));
        let PlacedTokens { ids, places, reads, .. } = read;
        let states = self.encoder.forward(self.embedded(ids, &pass), places, reads, &pass);
        (states, pass.samples().clone())
    }

    /// The output layer's input for tokens of targets, `[batch, length, width]`.
    fn read(
        &self,
        PlacedTokens { ids, places, reads, .. }: PlacedTokens,
        source: Source,
        pass: &Pass,
    ) -> Tensor<3> {
        self.divided(self.decoder.forward(self.embedded(ids, pass), places, reads, source, pass))
    }

    /// The embeddings of tokens, `[batch, length, width]`, in the dtype of the pass.
    fn embedded(&self, ids: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let x = cast(embedded_tokens(&self.tokens, ids, pass), pass.dtype());
        if self.scale == 1.0 { x } else { x * self.scale }
    }

    fn divided(&self, x: Tensor<3>) -> Tensor<3> {
        if self.divisor == 1.0 { x } else { x / self.divisor }
    }

    fn output_layer(&self) -> Head {
        let head = output_layer(&self.tokens, self.head.as_ref());
        let dtype = self.dtype_of_tokens();
        let bias = self.final_logits_bias.as_ref().map(|bias| cast(bias.val(), dtype).squeeze_dim(0));
        Head { bias: bias.or(head.bias), ..head }
    }

    fn dtype_of_tokens(&self) -> FloatDType {
        FloatDType::from(self.tokens.weight.base().dtype())
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
}

/// Some tokens of a batch, which has these `ids`. A token's position is its place among the real tokens of its row.
fn placed(tokens: &Tokens, ids: &[i32], reads: Reads, pass: &Pass) -> PlacedTokens {
    let device = pass.device();
    PlacedTokens {
        ids: tokens.ints(ids, device),
        places: tokens.ints(&tokens.places(), device),
        reads,
        sample_lengths: None,
    }
}

impl<E: Encodes, D: Decodes> ReadsOn for EncoderDecoder<E, D> {
    fn vocabulary(&self) -> usize {
        self.tokens.weight.dims()[0]
    }

    fn positions(&self) -> Option<usize> {
        self.decoder.positions()
    }

    fn dtype(&self) -> FloatDType {
        self.encoder.dtype().unwrap_or_else(|| self.dtype_of_tokens())
    }

    fn read_on(
        &self,
        PlacedTokens { ids, places, reads, .. }: PlacedTokens,
        source: Option<&Inputs>,
        past: Option<Past>,
        pass: &Pass,
    ) -> (Tensor<2>, Past) {
        let (own, of_source) = match past {
            Some(Past { own, source }) => (own, source),
            None => {
                let source = source.map(|source| self.decoder.of_source(self.encode(source, pass), pass));
                (Vec::new(), source)
            }
        };
        let of_source = of_source.expect("a decoder has a source");
        let x = self.embedded(ids, pass);
        let (x, own) = self.decoder.read_on(x, places, reads, &of_source, own, pass);
        let logits = pass.logits(last_column(self.divided(x)), &self.output_layer());
        (logits.squeeze_dim(1), Past { own, source: Some(of_source) })
    }
}

impl<E: Encodes, D: Decodes> Writes for EncoderDecoder<E, D> {}

impl<E: Encodes, D: Decodes> Objective<Seq2SeqBatch> for EncoderDecoder<E, D> {
    fn loss(&self, batch: Seq2SeqBatch, pass: &Pass) -> Loss {
        let tokens @ [_, targets] = &Tokens::of_both(&batch, pass);
        if targets.is_empty() {
            return Loss::of_nothing(pass);
        }
        let (x, labels) = (self.hidden(&batch, tokens, pass), targets.select(batch.host_labels(), IGNORE));
        Loss { sum: output_loss(x, &self.output_layer(), &labels, pass), items: batch.items() }
    }

    fn tensor_plan(&self) -> TensorPlan {
        let plan = self.encoder.tensor_plan("*encoder").and(self.decoder.tensor_plan("*decoder"));
        let plan = vocabulary_plan(plan, &self.tokens, self.head.is_some());
        match &self.final_logits_bias {
            Some(bias) => plan.vocabulary("final_logits_bias", bias.lazy_shape()[1]),
            None => plan,
        }
    }

    fn evaluate(&self, batch: Seq2SeqBatch, pass: &Pass) -> Evaluation {
        // A failed device or lost rank also fails the loss, which reports it; here the batch is just not scored.
        let written = self
            .scoring
            .as_ref()
            .map(|scores| self.counts_of_written(&batch, scores, pass).unwrap_or(WrittenScores::unknown()));
        let Evaluation { loss, mut counts } = counted(self.loss(batch, pass), pass);
        counts.extend(written.into_iter().flatten());
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

impl<E: Encodes, D: Decodes> Trainable for EncoderDecoder<E, D>
where
    Self: Pretrained<Config: Family>,
{
    const TASK: &'static str = "Seq2Seq";

    type Batch = Seq2SeqBatch;

    fn scoring(self, scores: WrittenScores) -> Self {
        EncoderDecoder::scoring(self, scores)
    }
}

impl<E: Encodes, D: Decodes> Answers for EncoderDecoder<E, D> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        written_from(self, questions, inference)
    }
}
