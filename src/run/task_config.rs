//! What a model is to learn from the data.

use firebrick_datasets::{DataError, Masking, Subwords, Tokenizer};
use serde::{Deserialize, Serialize};

/// What a model is to learn: which fields of a record are read, and what becomes of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TaskConfig {
    /// Predicts the next token.
    CausalLm {
        /// Windows of one long text, samples padded, or samples packed. Default: `Windows`.
        #[serde(default)]
        rows: Rows,
        /// The field of the text, or of the completion where there is a prompt. Default: `text`.
        #[serde(default = "text")]
        text: String,
        /// The field of a prompt, which is read but does not count in the loss. Default: none.
        #[serde(default)]
        prompt: Option<String>,
        /// Whether an end token follows each text. Default: where the tokenizer has one.
        #[serde(default)]
        end: Option<bool>,
    },
    /// Predicts tokens that are hidden.
    MaskedLm {
        /// The field of the text. Default: `text`.
        #[serde(default = "text")]
        text: String,
        /// How much is masked, and with what: `(probability: 0.15, masked: 0.8, random: 0.1,
        /// whole_words: false)`. Its seed is the run's.
        #[serde(default)]
        masking: Masking,
    },
    /// Gives each word a label.
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
        /// The names of the labels, in the order of their ids. Default: those of the training data. A
        /// `Pretrained` folder that has a classifier already must have the same names, and its order holds.
        #[serde(default)]
        names: Vec<String>,
        /// Whether the classifier of a `Pretrained` folder is left out, and a new one learns these labels.
        /// Default: false.
        #[serde(default)]
        new_head: bool,
    },
    /// Gives a text, or a pair of them, a class, several classes, or a number.
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
        /// The names of the classes, in the order of their ids. Default: those of the training data. A
        /// `Pretrained` folder that has a classifier already must have the same names, and its order holds.
        #[serde(default)]
        names: Vec<String>,
        /// Whether the classifier of a `Pretrained` folder is left out, and a new one learns these classes.
        /// Default: false.
        #[serde(default)]
        new_head: bool,
    },
    /// Makes one text of another.
    Seq2Seq {
        /// The field of the text that is read. Default: `source`.
        #[serde(default = "source")]
        source: String,
        /// The field of the text that is written. Default: `target`.
        #[serde(default = "target")]
        target: String,
        /// What is put before each source. Default: nothing.
        #[serde(default)]
        prefix: String,
        /// A field with a beginning of the target that does not count in the loss. Default: none.
        #[serde(default)]
        target_prompt: Option<String>,
        /// The most tokens of a target. Default: as `data.max_length`.
        #[serde(default)]
        max_target_length: Option<usize>,
        /// The token with which the decoder starts, by name. Default: what `decoder_start_token_id` says in the
        /// configuration of a `Pretrained` folder, or else the padding token.
        #[serde(default)]
        start: Option<String>,
        /// The most tokens of a text that each evaluation writes for each source, so that it has the scores of
        /// [`WrittenScores`](crate::models::WrittenScores) too. Default: it writes none.
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

/// What a row of a causal language model's batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// A window of one long text, `data.block` tokens that are predicted.
    #[default]
    Windows,
    /// A sample, padded.
    Samples,
    /// Whole samples, as many as `data.max_length` has room for, kept apart.
    Packed,
}

/// What the label of a sequence is.
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
    /// What it is called in a run file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::CausalLm { .. } => "CausalLm",
            Self::MaskedLm { .. } => "MaskedLm",
            Self::TokenClassification { .. } => "TokenClassification",
            Self::SequenceClassification { .. } => "SequenceClassification",
            Self::Seq2Seq { .. } => "Seq2Seq",
        }
    }

    /// Whether the classifier of a folder is left out for a new one.
    pub(crate) fn has_new_head(&self) -> bool {
        let (Self::TokenClassification { new_head, .. } | Self::SequenceClassification { new_head, .. }) =
            self
        else {
            return false;
        };
        *new_head
    }

    /// The token that the decoder starts with in training, evaluation and writing alike: what the task names, or else
    /// the model's configuration, or else the padding token.
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

    /// Whether it learns a number, which has no name.
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
