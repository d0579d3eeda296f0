//! Why a model cannot be measured.

use firebrick_datasets::counted;
use thiserror::Error;

/// A measure that does not fit a run, its data or its model.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MeasureError {
    /// The model predicts no next tokens.
    #[error(
        "`--{measure}` measures how likely texts are under a causal language model (`task: CausalLm()`), and the task of this run is {task}; without `--{measure}`, `firebrick eval` has the scores of its task"
    )]
    NotCausal {
        /// The measure, by its option.
        measure: &'static str,
        /// The run's task.
        task: &'static str,
    },
    /// A setting is out of range.
    #[error("`--{setting}` must be {expected}, and is {found}")]
    Setting {
        /// The option.
        setting: &'static str,
        /// Its range.
        expected: String,
        /// Its value.
        found: usize,
    },
    /// No token can be predicted.
    #[error("the data has no token to predict: each text needs at least two")]
    Nothing,
    /// An ending is longer than what the model reads.
    #[error("{place}: an ending has {}, and the model reads at most {positions}", counted(*tokens, "token"))]
    Ending {
        /// The file and line.
        place: String,
        /// Tokens of the ending.
        tokens: usize,
        /// Tokens that the model reads.
        positions: usize,
    },
    /// A text has nothing before its first token.
    #[error(
        "{place}: the context is empty, and the tokenizer has neither a begin nor an end token that could stand in its place"
    )]
    NoBegin {
        /// The file and line.
        place: String,
    },
    /// Contexts are to begin with a token that the tokenizer lacks.
    #[error(
        "`--begin-token` puts the tokenizer's begin token before each text, and the tokenizer has neither a begin nor an end token: leave the option out, or name the token, as with `--set 'data.special=(bos: \"<s>\")'`"
    )]
    NoBeginToken,
    /// Records do not say what is expected.
    #[error(
        "{missing} of {} without an expected text: `task` names the field that holds it, as in `CausalLm(prompt: \"question\", text: \"answer\")` or `Seq2Seq(target: \"summary\")`",
        counted(*all, "record")
    )]
    NothingExpected {
        /// Records without.
        missing: usize,
        /// All records.
        all: usize,
    },
    /// Texts cannot be scored.
    #[error("scoring the texts: {0}")]
    Scores(String),
}
