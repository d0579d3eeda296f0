//! A label for each text.

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::{Inputs, SequenceBatch};
use firebrick_kernels::cast;
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::{HeadOf, Heads, Pooling, Transform, added, in_step, rows_at_once};
use crate::family::Trainable;
use crate::inference::{Answer, Answers, Inference, Question, text_classes};
use crate::pretrained::{KeyMap, Pretrained};
use crate::ragged::Tokens;
use crate::{Linear, SequenceScores, sequence_loss};

/// Predicts a label for each text from its first token or from the mean of its tokens: `BertForSequenceClassification`,
/// `ModernBertForSequenceClassification` and the like.
///
/// In a row that is padded at the left, it uses the first real token; transformers uses the padding in the first
/// column.
#[derive(Module, Debug)]
pub struct SequenceClassifier<E> {
    encoder: E,
    transform: Option<Transform>,
    dropout: Dropout,
    classifier: Linear,
    /// Of the pooled token, as in RoBERTa.
    pooled_dropout: Option<Dropout>,
    #[module(skip)]
    pooling: Pooling,
    #[module(skip)]
    scores: SequenceScores,
}

impl<E: Heads> SequenceClassifier<E> {
    /// Maps tokens `[batch, length]` to logits `[batch, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// Those of the encoder's `forward`.
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<2> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits, computed from some tokens.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<2> {
        let x = self.encoder.hidden(inputs, tokens, pass);
        let x = match self.pooling {
            Pooling::Cls => tokens.first_of(x),
            Pooling::Mean => tokens.mean_of(x),
        };
        let x = match &self.pooled_dropout {
            Some(dropout) => dropout.forward(x, pass),
            None => x,
        };
        let x = match &self.transform {
            Some(transform) => transform.forward(x, pass),
            None => x,
        };
        self.classifier.forward(self.dropout.forward(x, pass), pass)
    }
}

impl<E: Heads> Objective<SequenceBatch> for SequenceClassifier<E> {
    fn loss(&self, batch: SequenceBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::of(batch.inputs(), pass);
        match tokens.is_empty() {
            true => Loss::of_nothing(pass),
            false => sequence_loss(self.logits(batch.inputs(), &tokens, pass), &batch, pass),
        }
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.encoder.tensor_plan()
    }

    /// At most as many rows are computed at once as there are records, however many rows a long record has.
    fn evaluate(&self, batch: SequenceBatch, pass: &Pass) -> Evaluation {
        let mut parts = batch.parts(rows_at_once(&batch));
        // Rows without a token are read with others that have some.
        if parts.iter().any(|part| Tokens::of(part.inputs(), pass).is_empty()) {
            parts = vec![batch.clone()];
        }
        let is_run = |part: &SequenceBatch| !Tokens::of(part.inputs(), pass).is_empty();
        let computed = in_step(&parts, pass, is_run, |part| {
            let tokens = Tokens::of(part.inputs(), pass);
            let logits = cast(self.logits(part.inputs(), &tokens, pass), FloatDType::F32);
            let host: Vec<f32> = logits.clone().into_data().iter().collect();
            (host, sequence_loss(logits, part, pass).sum)
        });
        let (mut host, mut sum): (Vec<f32>, _) = (Vec::new(), None);
        for (of_part, loss) in computed.into_iter().flatten() {
            host.extend(of_part);
            sum = Some(added(sum, loss));
        }
        let loss = sum.map_or_else(|| Loss::of_nothing(pass), |sum| Loss { sum, items: batch.items() });
        Evaluation { loss, counts: self.scores.counts(&host, &batch) }
    }

    /// The scores of [`SequenceScores`], of the kind that `problem_type` selects. Without `problem_type`, they are
    /// those of a number if there is one label, and of classes if there are several.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.scores.scores(counts)
    }
}

impl<E: Heads> Pretrained for SequenceClassifier<E> {
    type Config = E::Config;

    fn architecture(config: &E::Config) -> &'static str {
        E::architecture(config, HeadOf::Texts)
    }

    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn init(config: &E::Config, device: &Device) -> Self {
        Self {
            encoder: E::new(config, device),
            transform: E::transform(config, HeadOf::Texts, device),
            dropout: Dropout::new(E::dropout(config, HeadOf::Texts)),
            classifier: E::classifier(config, device),
            pooled_dropout: E::pooled_dropout(config).map(Dropout::new),
            pooling: E::pooling(config),
            scores: E::classes(config).scores(),
        }
    }

    fn keys(config: &E::Config) -> KeyMap {
        E::keys(config, HeadOf::Texts)
    }
}

impl<E: Heads> Trainable for SequenceClassifier<E> {
    const TASK: &'static str = "SequenceClassification";

    type Batch = SequenceBatch;
}

impl<E: Heads> Answers for SequenceClassifier<E> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        text_classes(questions, inference, |inputs, pass| self.forward(inputs, pass))
    }
}
