//! BERT with its heads: a label for each token, a label for each text, or the masked tokens.

use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score};
use firebrick_datasets::collators::{Inputs, LabeledBatch, SequenceBatch};
use firebrick_kernels::{Head, cast};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::kind::BertLine;
use super::{Bert, BertConfig, keys};
use crate::attention::starts_of;
use crate::pretrained::{HubConfig, KeyMap, Pretrained, PretrainedError};
use crate::ragged::Tokens;
use crate::vocabulary::output_layer;
use crate::{Activation, Linear, Norm, SequenceScores, TokenScores, heads};

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
        self.classifier.forward(self.dropout.forward(x, &pass), &pass)
    }
}

impl Objective<LabeledBatch> for BertTokenClassifier {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        heads::token_loss(&batch, pass, |tokens| self.logits(batch.inputs(), tokens, pass))
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.bert.tensor_plan()
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        heads::token_evaluation(&batch, &self.scores, pass, |inputs, tokens| {
            self.logits(inputs, tokens, pass)
        })
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
    /// Of the first token, as in RoBERTa.
    first_dropout: Option<Dropout>,
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
        let x = match &self.first_dropout {
            Some(dropout) => dropout.forward(x, pass),
            None => x,
        };
        let x = self.activation.forward(self.dense.forward(x, pass));
        self.classifier.forward(self.dropout.forward(x, pass), pass)
    }
}

impl Objective<SequenceBatch> for BertSequenceClassifier {
    fn loss(&self, batch: SequenceBatch, pass: &Pass) -> Loss {
        heads::text_loss(&batch, pass, |tokens| self.logits(batch.inputs(), tokens, pass))
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.bert.tensor_plan()
    }

    fn evaluate(&self, batch: SequenceBatch, pass: &Pass) -> Evaluation {
        heads::text_evaluation(&batch, &self.scores, pass, |inputs, tokens| self.logits(inputs, tokens, pass))
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

    /// # Panics
    ///
    /// If the configuration's check would fail.
    fn init(config: &BertConfig, device: &Device) -> Self {
        let (kind, width) = (config.kind(), config.hidden_size);
        let deberta = config.deberta().unwrap_or_else(|error| panic!("{error}"));
        let first_dropout = match &deberta {
            Some(deberta) => Some(deberta.pooler_dropout),
            None => {
                matches!(kind, BertLine::Roberta | BertLine::Electra).then(|| config.classifier_dropout())
            }
        };
        let activation = deberta.map(|deberta| deberta.pooler_activation);
        Self {
            bert: Bert::new(config, device),
            dense: config.linear(width, width, device),
            dropout: Dropout::new(config.classifier_dropout()),
            classifier: config.linear(width, config.labels(), device),
            first_dropout: first_dropout.map(Dropout::new),
            activation: activation.unwrap_or(kind.pooler_activation()),
            scores: config.classes.scores(),
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
        let x = self.bert.hidden(inputs, tokens, pass);
        let pass = tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        let x = self.transform.forward(x, &pass);
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
        let tokens = self.bert.shared(batch.inputs(), pass);
        let hidden = |tokens: &Tokens| self.hidden(batch.inputs(), tokens, pass);
        heads::masked_loss(&batch, &self.head(), pass, tokens, hidden)
    }

    fn tensor_plan(&self) -> TensorPlan {
        let plan = self.bert.tensor_plan();
        match plan.is_empty() {
            true => plan,
            false => plan.vocabulary("bias", self.bias.lazy_shape()[0]).logits("*tokens"),
        }
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        let tokens = self.bert.shared(batch.inputs(), pass);
        heads::masked_evaluation(&batch, &self.head(), pass, tokens, |tokens| {
            self.hidden(batch.inputs(), tokens, pass)
        })
    }

    /// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        heads::masked_scores(counts)
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
                BertLine::Bert | BertLine::DistilBert | BertLine::Deberta => config.hidden_act,
                BertLine::Roberta | BertLine::Electra => Activation::Gelu,
            },
        }
    }

    fn keys(config: &BertConfig) -> KeyMap {
        keys::masked_lm(config)
    }
}

const TOKEN_CLASSIFIERS: [&str; 7] = [
    "BertForTokenClassification",
    "RobertaForTokenClassification",
    "XLMRobertaForTokenClassification",
    "CamembertForTokenClassification",
    "DistilBertForTokenClassification",
    "ElectraForTokenClassification",
    "DebertaV2ForTokenClassification",
];
const SEQUENCE_CLASSIFIERS: [&str; 7] = [
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "XLMRobertaForSequenceClassification",
    "CamembertForSequenceClassification",
    "DistilBertForSequenceClassification",
    "ElectraForSequenceClassification",
    "DebertaV2ForSequenceClassification",
];
const MASKED_LMS: [&str; 7] = [
    "BertForMaskedLM",
    "RobertaForMaskedLM",
    "XLMRobertaForMaskedLM",
    "CamembertForMaskedLM",
    "DistilBertForMaskedLM",
    "ElectraForMaskedLM",
    "DebertaV2ForMaskedLM",
];

/// The transformers class for the configuration's model family. `classes` are in the order of
/// [`MODEL_TYPES`](HubConfig::MODEL_TYPES).
fn named(config: &BertConfig, classes: [&'static str; 7]) -> &'static str {
    let found = BertConfig::MODEL_TYPES.iter().zip(classes).find(|(family, _)| **family == config.model_type);
    found.map_or(classes[0], |(_, class)| class)
}
