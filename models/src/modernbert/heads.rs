//! ModernBERT with its heads: a label for each token, a label for each text, or the masked tokens.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::{Evaluation, Loss, Objective, Score};
use firebrick_datasets::collators::{Inputs, LabeledBatch, SequenceBatch};
use firebrick_kernels::{Head, cast};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::config::Pooling;
use super::{ModernBert, ModernBertConfig, keys};
use crate::attention::starts_of;
use crate::pretrained::{HubConfig, KeyMap, Pretrained, PretrainedError};
use crate::ragged::Tokens;
use crate::vocabulary::output_layer;
use crate::{Activation, Linear, Norm, SequenceScores, TokenScores, heads};

/// The layer before a classifier or the output of a masked LM.
#[derive(Module, Debug)]
struct Transform {
    dense: Linear,
    norm: Norm,
    #[module(skip)]
    activation: Activation,
}

impl Transform {
    fn new(config: &ModernBertConfig, device: &Device) -> Self {
        Self {
            dense: config.ending(config.hidden_size, config.classifier_bias, device),
            norm: config.norm(device),
            activation: config.classifier_activation,
        }
    }

    fn forward<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        self.norm.forward(self.activation.forward(self.dense.forward(x, pass)))
    }
}

/// A classifier of the transformed hidden state.
fn classifier(config: &ModernBertConfig, device: &Device) -> Linear {
    let normal = Initializer::Normal { mean: 0.0, std: (config.hidden_size as f64).powf(-0.5) };
    Linear::new(config.hidden_size, config.classes.count(), true, normal, device)
}

/// Predicts a label for each token: `ModernBertForTokenClassification`.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{ModernBertConfig, ModernBertTokenClassifier};
/// use firebrick_models::pretrained::{Folder, Pretrained, save};
///
/// let config = ModernBertConfig {
///     vocab_size: 30, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 24,
///     ..Default::default()
/// };
/// let config = config.with_labels(["O", "B-LOC", "I-LOC"]);
/// let model = ModernBertTokenClassifier::init(&config, &Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&model, &config, folder.path())?;
/// let loaded = Folder::open(folder.path())?.load::<ModernBertTokenClassifier>(&config, &Device::flex())?;
/// assert!(loaded.fresh.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct ModernBertTokenClassifier {
    body: ModernBert,
    transform: Transform,
    dropout: Dropout,
    classifier: Linear,
    #[module(skip)]
    scores: TokenScores,
}

impl ModernBertTokenClassifier {
    /// Maps tokens `[batch, length]` to logits `[batch, length, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// See [`ModernBert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits of some tokens, of their shape.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.body.hidden(inputs, tokens, pass);
        let pass = tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1]));
        let x = self.transform.forward(x, &pass);
        self.classifier.forward(self.dropout.forward(x, &pass), &pass)
    }
}

impl Objective<LabeledBatch> for ModernBertTokenClassifier {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        heads::token_loss(&batch, pass, |tokens| self.logits(batch.inputs(), tokens, pass))
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.body.tensor_plan()
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

impl Pretrained for ModernBertTokenClassifier {
    type Config = ModernBertConfig;

    fn architecture(_: &ModernBertConfig) -> &'static str {
        "ModernBertForTokenClassification"
    }

    fn init(config: &ModernBertConfig, device: &Device) -> Self {
        Self {
            body: ModernBert::new(config, device),
            transform: Transform::new(config, device),
            dropout: Dropout::new(config.classifier_dropout),
            classifier: classifier(config, device),
            scores: TokenScores::new(config.classes.names()),
        }
    }

    fn keys(config: &ModernBertConfig) -> KeyMap {
        keys::classifier(config)
    }
}

/// Predicts a label for each text from its first token or from the mean of its tokens:
/// `ModernBertForSequenceClassification`.
///
/// In a row that is padded at the left, it uses the first real token; transformers uses the padding in the first
/// column.
#[derive(Module, Debug)]
pub struct ModernBertSequenceClassifier {
    body: ModernBert,
    transform: Transform,
    dropout: Dropout,
    classifier: Linear,
    #[module(skip)]
    pooling: Pooling,
    #[module(skip)]
    scores: SequenceScores,
}

impl ModernBertSequenceClassifier {
    /// Maps tokens `[batch, length]` to logits `[batch, classes]`, in the dtype of the pass.
    ///
    /// # Panics
    ///
    /// See [`ModernBert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<2> {
        self.logits(inputs, &Tokens::padded(inputs), pass)
    }

    /// The logits, computed from some tokens.
    fn logits(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<2> {
        let x = self.body.hidden(inputs, tokens, pass);
        let x = match self.pooling {
            Pooling::Cls => tokens.first_of(x),
            Pooling::Mean => tokens.mean_of(x),
        };
        self.classifier.forward(self.dropout.forward(self.transform.forward(x, pass), pass), pass)
    }
}

impl Objective<SequenceBatch> for ModernBertSequenceClassifier {
    fn loss(&self, batch: SequenceBatch, pass: &Pass) -> Loss {
        heads::text_loss(&batch, pass, |tokens| self.logits(batch.inputs(), tokens, pass))
    }

    fn tensor_plan(&self) -> TensorPlan {
        self.body.tensor_plan()
    }

    fn evaluate(&self, batch: SequenceBatch, pass: &Pass) -> Evaluation {
        heads::text_evaluation(&batch, &self.scores, pass, |inputs, tokens| self.logits(inputs, tokens, pass))
    }

    /// The scores of [`SequenceScores`], of the kind that `problem_type` selects.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        self.scores.scores(counts)
    }
}

impl Pretrained for ModernBertSequenceClassifier {
    type Config = ModernBertConfig;

    fn architecture(_: &ModernBertConfig) -> &'static str {
        "ModernBertForSequenceClassification"
    }

    fn init(config: &ModernBertConfig, device: &Device) -> Self {
        Self {
            body: ModernBert::new(config, device),
            transform: Transform::new(config, device),
            dropout: Dropout::new(config.classifier_dropout),
            classifier: classifier(config, device),
            pooling: config.classifier_pooling,
            scores: config.classes.scores(),
        }
    }

    fn keys(config: &ModernBertConfig) -> KeyMap {
        keys::classifier(config)
    }
}

/// Predicts masked tokens: `ModernBertForMaskedLM`. Its output weights are the token embedding.
#[derive(Module, Debug)]
pub struct ModernBertMaskedLm {
    body: ModernBert,
    transform: Transform,
    /// `[vocabulary]`.
    bias: Option<Param<Tensor<1>>>,
}

impl ModernBertMaskedLm {
    /// Maps tokens `[batch, length]` to logits `[batch, length, vocabulary]`, in the dtype of the embedding.
    ///
    /// # Panics
    ///
    /// See [`ModernBert::forward`].
    pub fn forward(&self, inputs: &Inputs, pass: &Pass) -> Tensor<3> {
        self.head().logits(self.hidden(inputs, &Tokens::padded(inputs), pass))
    }

    /// The input of the head for some tokens, of their shape.
    fn hidden(&self, inputs: &Inputs, tokens: &Tokens, pass: &Pass) -> Tensor<3> {
        let x = self.body.hidden(inputs, tokens, pass);
        self.transform.forward(x, &tokens.pass(pass, || starts_of(inputs.host_mask(), inputs.shape()[1])))
    }

    fn head(&self) -> Head {
        let tokens = self.body.tokens();
        let dtype = FloatDType::from(tokens.weight.val().dtype());
        let bias = self.bias.as_ref().map(|bias| cast(bias.val(), dtype));
        Head { bias, ..output_layer(tokens, None) }
    }
}

impl Objective<LabeledBatch> for ModernBertMaskedLm {
    fn loss(&self, batch: LabeledBatch, pass: &Pass) -> Loss {
        let tokens = Tokens::shared(batch.inputs(), pass);
        let hidden = |tokens: &Tokens| self.hidden(batch.inputs(), tokens, pass);
        heads::masked_loss(&batch, &self.head(), pass, tokens, hidden)
    }

    fn tensor_plan(&self) -> TensorPlan {
        let plan = self.body.tensor_plan().logits("*tokens");
        match &self.bias {
            Some(bias) => plan.vocabulary("bias", bias.lazy_shape()[0]),
            None => plan,
        }
    }

    fn evaluate(&self, batch: LabeledBatch, pass: &Pass) -> Evaluation {
        let tokens = Tokens::shared(batch.inputs(), pass);
        heads::masked_evaluation(&batch, &self.head(), pass, tokens, |tokens| {
            self.hidden(batch.inputs(), tokens, pass)
        })
    }

    /// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        heads::masked_scores(counts)
    }
}

impl Pretrained for ModernBertMaskedLm {
    type Config = ModernBertConfig;

    fn architecture(_: &ModernBertConfig) -> &'static str {
        "ModernBertForMaskedLM"
    }

    fn check(config: &ModernBertConfig) -> Result<(), PretrainedError> {
        config.check()?;
        match config.tie_word_embeddings {
            true => Ok(()),
            false => Err(PretrainedError::setting("tie_word_embeddings", "true", false)),
        }
    }

    fn init(config: &ModernBertConfig, device: &Device) -> Self {
        let bias = || Param::from_tensor(Tensor::zeros([config.vocab_size], device));
        Self {
            body: ModernBert::new(config, device),
            transform: Transform::new(config, device),
            bias: config.decoder_bias.then(bias),
        }
    }

    fn keys(config: &ModernBertConfig) -> KeyMap {
        keys::masked_lm(config)
    }
}
