//! The task: what a model learns from the data.

use firebrick_datasets::{DataError, Masking, Subwords, Tokenizer};
use serde::{Deserialize, Serialize};

/// The task: which fields of a record are read, and what the model learns from them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TaskConfig {
    /// Predicts the next token.
    CausalLm {
        /// Whether rows are windows of one long text, padded samples, or packed samples. Default: `Windows`.
        #[serde(default)]
        rows: Rows,
        /// The field of the text, or of the completion if there is a prompt. Default: `text`.
        #[serde(default = "text")]
        text: String,
        /// The field of a prompt, which the model reads but which does not count in the loss. Default: none.
        #[serde(default)]
        prompt: Option<String>,
        /// Whether an end token follows each text. Default: yes, if the tokenizer has one.
        #[serde(default)]
        end: Option<bool>,
    },
    /// Predicts masked tokens.
    MaskedLm {
        /// The field of the text. Default: `text`.
        #[serde(default = "text")]
        text: String,
        /// How many tokens are masked, and with what:
        /// `(probability: 0.15, masked: 0.8, random: 0.1, whole_words: false)`. It uses the run's seed.
        #[serde(default)]
        masking: Masking,
    },
    /// Assigns a label to each word.
    TokenClassification {
        /// The field of the words. Default: `words`.
        #[serde(default = "words")]
        words: String,
        /// The field of their labels. Default: `labels`.
        #[serde(default = "labels")]
        labels: String,
        /// Which tokens of a word carry its label: `First`, `Inside` or `All`. Default: `First`.
        #[serde(default)]
        subwords: Subwords,
        /// The names of the labels, in the order of their ids. Default: those of the training data. If a `Pretrained`
        /// folder already has a classifier, the names must be the same, and the folder's order applies.
        #[serde(default)]
        names: Vec<String>,
        /// Whether to drop the classifier of a `Pretrained` folder and train a new one for these labels. Default:
        /// false.
        #[serde(default)]
        new_head: bool,
    },
    /// Assigns a class, several classes or a number to a text or a pair of texts.
    SequenceClassification {
        /// The field of the text. Default: `text`.
        #[serde(default = "text")]
        text: String,
        /// The field of a second text. Default: none.
        #[serde(default)]
        pair: Option<String>,
        /// The field of the label. Default: `label`.
        #[serde(default = "label")]
        label: String,
        /// What the label is: `Class`, `Classes` or `Number`. Default: `Class`.
        #[serde(default)]
        kind: LabelKind,
        /// The names of the classes, in the order of their ids. Default: those of the training data. If a `Pretrained`
        /// folder already has a classifier, the names must be the same, and the folder's order applies.
        #[serde(default)]
        names: Vec<String>,
        /// Whether to drop the classifier of a `Pretrained` folder and train a new one for these classes. Default:
        /// false.
        #[serde(default)]
        new_head: bool,
    },
    /// Generates one text from another.
    Seq2Seq {
        /// The field of the input text. Default: `source`.
        #[serde(default = "source")]
        source: String,
        /// The field of the output text. Default: `target`.
        #[serde(default = "target")]
        target: String,
        /// Text that is added before each source. Default: none.
        #[serde(default)]
        prefix: String,
        /// The field of a beginning of the target that does not count in the loss. Default: none.
        #[serde(default)]
        target_prompt: Option<String>,
        /// The most tokens of a target. Default: `data.max_length`.
        #[serde(default)]
        max_target_length: Option<usize>,
        /// The name of the token that the decoder starts with. Default: the `decoder_start_token_id` in the
        /// configuration of a `Pretrained` folder, otherwise the padding token.
        #[serde(default)]
        start: Option<String>,
        /// The most tokens that each evaluation generates for each source, which adds the metrics of
        /// [`WrittenScores`](firebrick_models::WrittenScores). Default: evaluation generates none.
        #[serde(default)]
        generate: Option<usize>,
    },
}

impl Default for TaskConfig {
    fn default() -> Self {
        Self::CausalLm { rows: Rows::Windows, text: text(), prompt: None, end: None }
    }
}

fn text() -> String {
    "text".into()
}

fn words() -> String {
    "words".into()
}

fn label() -> String {
    "label".into()
}

fn labels() -> String {
    "labels".into()
}

fn source() -> String {
    "source".into()
}

fn target() -> String {
    "target".into()
}

/// A row of a causal language model's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// A window of one long text with `data.block` tokens to predict.
    #[default]
    Windows,
    /// A sample, padded.
    Samples,
    /// As many whole samples as fit into `data.max_length`, kept apart.
    Packed,
}

/// The label of a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelKind {
    /// One class.
    #[default]
    Class,
    /// Any number of classes.
    Classes,
    /// A number.
    Number,
}

impl TaskConfig {
    /// Returns the task's name in a run file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::CausalLm { .. } => "CausalLm",
            Self::MaskedLm { .. } => "MaskedLm",
            Self::TokenClassification { .. } => "TokenClassification",
            Self::SequenceClassification { .. } => "SequenceClassification",
            Self::Seq2Seq { .. } => "Seq2Seq",
        }
    }

    /// Whether the classifier of a folder is dropped for a new one.
    pub(crate) fn has_new_head(&self) -> bool {
        let (Self::TokenClassification { new_head, .. } | Self::SequenceClassification { new_head, .. }) =
            self
        else {
            return false;
        };
        *new_head
    }

    /// Returns the token that the decoder starts with in training, evaluation and generation: the one that the task
    /// names, otherwise the one in the model's configuration, otherwise the padding token.
    pub(crate) fn start_id(
        &self,
        of_model: Option<u32>,
        tokenizer: &Tokenizer,
    ) -> Result<Option<u32>, DataError> {
        match self {
            Self::Seq2Seq { start: Some(name), .. } => tokenizer.id(name).map(Some),
            Self::Seq2Seq { start: None, .. } => Ok(of_model.or(tokenizer.special().pad)),
            _ => Ok(None),
        }
    }

    /// Whether the label is a number, which has no name.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Self::SequenceClassification { kind: LabelKind::Number, .. })
    }

    /// Whether rows are windows of one long text.
    pub(crate) fn is_windows(&self) -> bool {
        matches!(self, Self::CausalLm { rows: Rows::Windows, .. })
    }

    /// The fields whose text is tokenized.
    pub(crate) fn text_fields(&self) -> Vec<&str> {
        match self {
            Self::CausalLm { text, prompt, .. } => prompt.iter().chain([text]).map(String::as_str).collect(),
            Self::MaskedLm { text, .. } => vec![text],
            Self::TokenClassification { words, .. } => vec![words],
            Self::SequenceClassification { text, pair, .. } => {
                [text].into_iter().chain(pair).map(String::as_str).collect()
            }
            Self::Seq2Seq { source, target, target_prompt, .. } => {
                [source, target].into_iter().chain(target_prompt).map(String::as_str).collect()
            }
        }
    }
}
