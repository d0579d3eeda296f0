//! A label for each token.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score, TrainError};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::{Inputs, LabeledBatch};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::{HeadOf, Heads, Transform, added, in_step, rows_at_once};
use crate::attention::starts_of;
use crate::family::Trainable;
use crate::inference::{Answer, Answers, Inference, Question, word_labels};
use crate::pretrained::{KeyMap, Pretrained};
use crate::ragged::Tokens;
use crate::{Linear, TokenScores, smoothed_cross_entropy};

/// Predicts a label for each token: `BertForTokenClassification`, `ModernBertForTokenClassification` and the like.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{BertConfig, BertTokenClassifier};
/// use firebrick_models::pretrained::{Folder, Pretrained, save};
///
/// let config = BertConfig {
///     vocab_size: 30, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
///     ..Default::default()
/// };
/// let config = config.with_labels(["O", "B-LOC", "I-LOC"]);
/// let model = BertTokenClassifier::init(&config, &Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&model, &config, folder.path())?;
/// let loaded = Folder::open(folder.path())?.load::<BertTokenClassifier>(&config, &Device::flex())?;
/// assert!(loaded.fresh.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct TokenClassifier<E> {
    encoder: E,
    transform: Option<Transform>,
    dropout: Dropout,
    classifier: Linear,
    #[module(skip)]
    scores: TokenScores,
}

impl<E: Heads> TokenClassifier<E> {
    /// Maps tokens `[batch, length]` to logits `[batch, length, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// Those of the encoder's `forward`.
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits of some tokens, of their shape.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.encoder.hidden(inputs, tokens, pass);
        let pass = tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        let x = match &self.transform {
            Some(transform) => transform.forward(x, &pass),
            None => x,
        };
        self.classifier.forward(self.dropout.forward(x, &pass), &pass)
    }
}

impl<E: Heads> Objective<LabeledBatch> for TokenClassifier<E> {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::of(batch.inputs(), pass);
        match tokens.is_empty() {
            true => Loss::of_nothing(pass),
            false => loss_of(self.logits(batch.inputs(), &tokens, pass), &batch, &tokens, pass),
        }
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.encoder.tensor_plan()
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        evaluation(&batch, &self.scores, pass, |inputs, tokens| self.logits(inputs, tokens, pass))
    }

    /// The scores of [`TokenScores`].
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.scores.scores(counts)
    }
}

impl<E: Heads> Pretrained for TokenClassifier<E> {
    type Config = E::Config;

    fn architecture(config: &E::Config) -> &'static str {
        E::architecture(config, HeadOf::Tokens)
    }

    fn init(config: &E::Config, device: &Device) -> Self {
        Self {
            encoder: E::new(config, device),
            transform: E::transform(config, HeadOf::Tokens, device),
            dropout: Dropout::new(E::dropout(config, HeadOf::Tokens)),
            classifier: E::classifier(config, device),
            scores: TokenScores::new(E::classes(config).names()),
        }
    }

    fn keys(config: &E::Config) -> KeyMap {
        E::keys(config, HeadOf::Tokens)
    }
}

impl<E: Heads> Trainable for TokenClassifier<E> {
    const TASK: &'static str = "TokenClassification";

    type Batch = LabeledBatch;
}

impl<E: Heads> Answers for TokenClassifier<E> {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        word_labels(questions, inference, |inputs, pass| self.forward(inputs, pass))
    }
}

/// The loss and the counts of the scores. At most as many rows are computed at once as there are records, however many
/// rows a long record has.
pub(super) fn evaluation(
    batch: &LabeledBatch,
    scores: &TokenScores,
    pass: &Pass,
    logits: impl Fn(&Inputs, &Tokens) -> Tensor<3>,
) -> Evaluation {
    let parts = batch.parts(rows_at_once(batch)).into_iter();
    let parts: Vec<_> = parts.map(|part| (Tokens::of(part.inputs(), pass), part)).collect();
    let is_run = |(tokens, _): &(Tokens, LabeledBatch)| !tokens.is_empty();
    let computed = in_step(&parts, pass, is_run, |(tokens, part)| {
        let logits = logits(part.inputs(), tokens);
        // Padding has no label, so that its class doesn't count.
        let classes = tokens.put_back(likeliest(logits.clone()), 0);
        (classes, loss_of(logits, part, tokens, pass).sum)
    });
    let (mut classes, mut sum) = (Vec::with_capacity(batch.host_labels().len()), None);
    for ((_, part), computed) in parts.iter().zip(computed) {
        match computed {
            Some((of_part, loss)) => {
                classes.extend(of_part);
                sum = Some(added(sum, loss));
            }
            None => classes.resize(classes.len() + part.host_labels().len(), 0),
        }
    }
    let loss = sum.map_or_else(|| Loss::of_nothing(pass), |sum| Loss { sum, items: batch.items() });
    Evaluation { loss, counts: scores.counts_of_records(&classes, batch) }
}

/// The most likely class of each token, row by row, from `[batch, length, classes]`.
fn likeliest(logits: Tensor<3>) -> Vec<i32> {
    logits.argmax(2).into_data().iter().collect()
}

fn loss_of(logits: Tensor<3>, batch: &LabeledBatch, tokens: &Tokens, pass: &Pass) -> Loss {
    let labels = tokens.ints(batch.host_labels(), &logits.device());
    let sum = smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), pass);
    Loss { sum, items: batch.items() }
}
