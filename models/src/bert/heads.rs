//! BERT with its heads: a label for each token, a label for each text, or the masked tokens.

use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_datasets::collators::{Inputs, LabeledBatch, SequenceBatch};
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::{Head, cast};
use firebrick_metrics::Classification;
use firebrick_strategies::{Dropout, Pass};

use super::kind::Kind;
use super::{Bert, BertConfig, keys};
use crate::attention::starts_of;
use crate::output_layer::{output_layer, output_loss};
use crate::perplexity::{counted, perplexity};
use crate::pretrained::{HubConfig, KeyMap, Pretrained, PretrainedError};
use crate::ragged::Tokens;
use crate::{Activation, Linear, Norm, SequenceScores, TokenScores, sequence_loss, smoothed_cross_entropy};
use firebrick::{Evaluation, Loss, Objective, Score};

/// Predicts a label for each token: `BertForTokenClassification`, `RobertaForTokenClassification`.
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
pub struct BertTokenClassifier {
    bert: Bert,
    dropout: Dropout,
    classifier: Linear,
    #[module(skip)]
    scores: TokenScores,
}

impl BertTokenClassifier {
    /// Maps tokens `[batch, length]` to logits `[batch, length, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// See [`Bert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits of some tokens, of their shape.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.bert.hidden(inputs, tokens, pass);
        let pass = tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        self.classifier.forward(self.dropout.forward(x, &pass))
    }
}

impl Objective<LabeledBatch> for BertTokenClassifier {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            return Loss::of_nothing(pass);
        }
        token_loss(self.logits(batch.inputs(), &tokens, pass), &batch, &tokens, pass)
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            return Evaluation { loss: Loss::of_nothing(pass), counts: self.scores.counts(&[], &[], 1) };
        }
        let logits = self.logits(batch.inputs(), &tokens, pass);
        let length = batch.inputs().shape()[1];
        // Padding has no label, so that its class doesn't count.
        let classes = tokens.put_back(likeliest(logits.clone()), 0);
        let counts = self.scores.counts(&classes, batch.host_labels(), length);
        Evaluation { loss: token_loss(logits, &batch, &tokens, pass), counts }
    }

    /// The scores of [`TokenScores`].
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.scores.scores(counts)
    }
}

impl Pretrained for BertTokenClassifier {
    type Config = BertConfig;

    fn architecture(config: &BertConfig) -> &'static str {
        named(config, TOKEN_CLASSIFIERS)
    }

    fn init(config: &BertConfig, device: &Device) -> Self {
        Self {
            bert: Bert::new(config, device),
            dropout: Dropout::new(config.token_dropout()),
            classifier: config.linear(config.hidden_size, config.labels(), device),
            scores: TokenScores::new(config.label_names()),
        }
    }

    fn keys(config: &BertConfig) -> KeyMap {
        keys::token_classifier(config)
    }
}

/// Predicts a label for each text from its first token: `BertForSequenceClassification`,
/// `RobertaForSequenceClassification`.
///
/// In a row that is padded at the left, it uses the first real token; transformers uses the padding in the first
/// column.
#[derive(Module, Debug)]
pub struct BertSequenceClassifier {
    bert: Bert,
    dense: Linear,
    dropout: Dropout,
    classifier: Linear,
    /// Whether dropout also applies to the first token, as in RoBERTa.
    drops_first: bool,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    scores: SequenceScores,
}

impl BertSequenceClassifier {
    /// Maps tokens `[batch, length]` to logits `[batch, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// See [`Bert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<2> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits, computed from some tokens.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<2> {
        let x = tokens.first_of(self.bert.hidden(inputs, tokens, pass));
        let x = if self.drops_first { self.dropout.forward(x, pass) } else { x };
        let x = self.activation.forward(self.dense.forward(x));
        self.classifier.forward(self.dropout.forward(x, pass))
    }
}

impl Objective<SequenceBatch> for BertSequenceClassifier {
    fn loss(&self, batch: SequenceBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            return Loss::of_nothing(pass);
        }
        sequence_loss(self.logits(batch.inputs(), &tokens, pass), &batch, pass)
    }

    fn evaluate(&self, batch: SequenceBatch, pass: &Pass) -> Evaluation {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            return Evaluation { loss: Loss::of_nothing(pass), counts: self.scores.counts(&[], &batch) };
        }
        let logits = cast(self.logits(batch.inputs(), &tokens, pass), FloatDType::F32);
        let host: Vec<f32> = logits.clone().into_data().iter().collect();
        let counts = self.scores.counts(&host, &batch);
        Evaluation { loss: sequence_loss(logits, &batch, pass), counts }
    }

    /// The scores of [`SequenceScores`], of the kind that `problem_type` selects. Without `problem_type`, they are
    /// those of a number if there is one label, and of classes if there are several.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.scores.scores(counts)
    }
}

impl Pretrained for BertSequenceClassifier {
    type Config = BertConfig;

    fn architecture(config: &BertConfig) -> &'static str {
        named(config, SEQUENCE_CLASSIFIERS)
    }

    fn init(config: &BertConfig, device: &Device) -> Self {
        let width = config.hidden_size;
        Self {
            bert: Bert::new(config, device),
            dense: config.linear(width, width, device),
            dropout: Dropout::new(config.classifier_dropout()),
            classifier: config.linear(width, config.labels(), device),
            drops_first: config.kind().drops_first(),
            activation: config.kind().pooler_activation(),
            scores: scores_of(config),
        }
    }

    fn keys(config: &BertConfig) -> KeyMap {
        keys::sequence_classifier(config)
    }
}

/// Predicts masked tokens: `BertForMaskedLM`, `RobertaForMaskedLM`, and the generator of an ELECTRA. Its output weights are
/// the token embedding.
#[derive(Module, Debug)]
pub struct BertMaskedLm {
    bert: Bert,
    transform: Linear,
    norm: Norm,
    /// `[vocabulary]`.
    bias: Param<Tensor<1>>,
    #[module(skip)]
    activation: Activation,
}

impl BertMaskedLm {
    /// Maps tokens `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the embedding.
    ///
    /// # Panics
    ///
    /// See [`Bert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.head().logits(self.hidden(inputs, &Tokens::padded(inputs), pass))
    }

    /// The input of the head for some tokens, of their shape.
    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.transform.forward(self.bert.hidden(inputs, tokens, pass));
        self.norm.forward(self.activation.forward(x))
    }

    fn head(&self) -> Head {
        let tokens = self.bert.tokens();
        let bias = cast(self.bias.val(), FloatDType::from(tokens.weight.val().dtype()));
        Head { bias: Some(bias), ..output_layer(tokens, None) }
    }
}

impl Objective<LabeledBatch> for BertMaskedLm {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            return Loss::of_nothing(pass);
        }
        let (x, labels) = (self.hidden(batch.inputs(), &tokens, pass), tokens.select(batch.host_labels()));
        let sum = output_loss(x, &self.head(), &labels, pass);
        Loss { sum, items: batch.items() }
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        let tokens = Tokens::of(batch.inputs(), pass);
        if tokens.is_empty() {
            let Evaluation { loss, counts } = counted(Loss::of_nothing(pass));
            return Evaluation { loss, counts: [counts, vec![0.0]].concat() };
        }
        let (head, x) = (self.head(), self.hidden(batch.inputs(), &tokens, pass));
        let all = tokens.select(batch.host_labels());
        let masked = (0..).zip(&all).filter(|(_, label)| **label != IGNORE);
        let (places, labels): (Vec<i32>, Vec<i32>) = masked.unzip();
        let right = match labels.is_empty() {
            // Burn has no product of no rows.
            true => 0,
            false => {
                let places = Tensor::<1, Int>::from_data(places.as_slice(), &x.device());
                let guesses = head.likeliest(x.clone().flatten::<2>(0, 1).select(0, places)).into_data();
                guesses.iter::<i32>().zip(labels).filter(|(guess, label)| guess == label).count()
            }
        };
        let loss = Loss { sum: output_loss(x, &head, &all, pass), items: batch.items() };
        let Evaluation { loss, mut counts } = counted(loss);
        counts.push(right as f64);
        Evaluation { loss, counts }
    }

    /// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let [loss, items, right] = counts.try_into().unwrap_or([f64::NAN; 3]);
        vec![Score::higher("accuracy", right / items), perplexity(&[loss, items])]
    }
}

impl Pretrained for BertMaskedLm {
    type Config = BertConfig;

    fn architecture(config: &BertConfig) -> &'static str {
        named(config, MASKED_LMS)
    }

    fn check(config: &BertConfig) -> Result<(), PretrainedError> {
        config.check()?;
        match config.tie_word_embeddings {
            true => Ok(()),
            false => Err(PretrainedError::setting("tie_word_embeddings", "true", false)),
        }
    }

    fn init(config: &BertConfig, device: &Device) -> Self {
        let width = config.embedding_width();
        Self {
            bert: Bert::new(config, device),
            transform: config.linear(config.hidden_size, width, device),
            norm: config.norm(width, device),
            bias: Param::from_tensor(Tensor::zeros([config.vocab_size], device)),
            activation: match config.kind() {
                Kind::Bert | Kind::DistilBert => config.hidden_act,
                Kind::Roberta | Kind::Electra => Activation::Gelu,
            },
        }
    }

    fn keys(config: &BertConfig) -> KeyMap {
        keys::masked_lm(config)
    }
}

const TOKEN_CLASSIFIERS: [&str; 6] = [
    "BertForTokenClassification",
    "RobertaForTokenClassification",
    "XLMRobertaForTokenClassification",
    "CamembertForTokenClassification",
    "DistilBertForTokenClassification",
    "ElectraForTokenClassification",
];
const SEQUENCE_CLASSIFIERS: [&str; 6] = [
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "CamembertForSequenceClassification",
    "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification",
];
const MASKED_LMS: [&str; 6] = [
    "BertForMaskedLM",
    "RobertaForMaskedLM",
    "XLMRobertaForMaskedLM",
    "CamembertForMaskedLM",
    "DistilBertForMaskedLM",
    "ElectraForMaskedLM",
];

/// The transformers class for the configuration's model family. `classes` are in the order of
/// [`MODEL_TYPES`](HubConfig::MODEL_TYPES).
fn named(config: &BertConfig, classes: [&'static str; 6]) -> &'static str {
    let found = BertConfig::MODEL_TYPES.iter().zip(classes).find(|(family, _)| **family == config.model_type);
    found.map_or(classes[0], |(_, class)| class)
}

/// How this configuration scores texts.
fn scores_of(config: &BertConfig) -> SequenceScores {
    match config.rest.get("problem_type").and_then(|kind| kind.as_str()) {
        Some("regression") => SequenceScores::Number,
        Some("multi_label_classification") => SequenceScores::Classes(config.labels()),
        None if config.labels() == 1 => SequenceScores::Number,
        _ => SequenceScores::Class(Classification::new(config.label_names())),
    }
}

/// The most likely class of each token, row by row, from `[batch, length, classes]`.
fn likeliest(logits: Tensor<3>) -> Vec<i32> {
    logits.argmax(2).into_data().iter().collect()
}

fn token_loss(logits: Tensor<3>, batch: &LabeledBatch, tokens: &Tokens, pass: &Pass) -> Loss {
    let labels = tokens.ints(batch.host_labels(), &logits.device());
    let sum = smoothed_cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), pass);
    Loss { sum, items: batch.items() }
}
