//! Why there are no texts.

/// Why a [`Decoding`](super::Decoding) cannot be, or why a model's logits make no texts.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodingError {
    /// A setting is out of its range.
    #[error("the decoding's `{field}` must be {expected}, found {found}")]
    Setting {
        /// Its name.
        field: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Two settings that cannot be together.
    #[error("the decoding's `{field}` is {found} and its `{other}` {other_found}: {instead}")]
    Contradiction {
        /// The name of one.
        field: &'static str,
        /// What it is.
        found: String,
        /// The name of the other.
        other: &'static str,
        /// What that one is.
        other_found: String,
        /// Why they cannot be together, and what to do.
        instead: &'static str,
    },
    /// There is no memory for so many texts.
    #[error(
        "{rows} texts of up to {tokens} tokens at once need {:.1} GB for their keys, values and logits, but this machine has {:.1} GB: lower the decoding's `beams`, `returned` or `max_new_tokens`, or write fewer texts at once",
        needed / 1e9, *available as f64 / 1e9
    )]
    TooLarge {
        /// Texts, and beams of texts, at once.
        rows: usize,
        /// Tokens of each, the prompt included.
        tokens: usize,
        /// Bytes.
        needed: f64,
        /// Bytes.
        available: u64,
    },
    /// The model returned another number of logits than it was asked for.
    #[error(
        "the model must return {rows} x {vocabulary} logits, one row after the other, found {found}: return those of each row's last token alone"
    )]
    Count {
        /// Rows that it was asked for.
        rows: usize,
        /// Tokens that it has.
        vocabulary: usize,
        /// Logits that it returned.
        found: usize,
    },
    /// A logit that no probability can be made of.
    #[error(
        "row {row}, after {written} tokens: the logit of token {token} must be a number or minus infinity, found {found}: the model's weights or activations have left their dtype's range"
    )]
    NotANumber {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Tokens of the text so far.
        written: usize,
        /// The first token with such a logit.
        token: usize,
        /// The logit: infinity, or not a number.
        found: f32,
    },
    /// The model says that no token is possible.
    #[error(
        "row {row}, after {written} tokens: some logit must be above minus infinity, found none: the model masks its whole vocabulary"
    )]
    NoToken {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Tokens of the text so far.
        written: usize,
    },
    /// The settings leave no token.
    #[error(
        "row {row}, after {written} tokens: the settings must leave a token to write, found all banned: lower `min_new_tokens` or `max_new_tokens`, or raise `no_repeat_ngram` or set it to 0"
    )]
    Banned {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Tokens of the text so far.
        written: usize,
    },
}
