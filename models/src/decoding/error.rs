//! Errors of decoding.

/// An invalid [`Decoding`](super::Decoding), or logits that give no text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodingError {
    /// A setting is out of range.
    #[error("the decoding's `{field}` must be {expected}, found {found}")]
    Setting {
        /// The setting's name.
        field: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The value.
        found: String,
    },
    /// Two settings contradict each other.
    #[error("the decoding's `{field}` is {found} and its `{other}` {other_found}: {instead}")]
    Contradiction {
        /// The name of the first setting.
        field: &'static str,
        /// The value of the first setting.
        found: String,
        /// The name of the second setting.
        other: &'static str,
        /// The value of the second setting.
        other_found: String,
        /// Why they contradict each other, and what to do.
        instead: &'static str,
    },
    /// Beam search has more beams than the vocabulary has tokens.
    #[error(
        "the decoding's `beams` must be at most {vocabulary}, one for each token of the vocabulary, found {beams}: lower it; 2 to 10 beams are usual"
    )]
    Beams {
        /// Number of beams.
        beams: usize,
        /// Number of tokens in the vocabulary.
        vocabulary: usize,
    },
    /// The texts do not fit in memory.
    #[error(
        "{rows} texts of up to {tokens} tokens at once need {:.1} GB for their tokens, keys, values and logits, but this machine has {:.1} GB: lower the decoding's `beams`, `returned` or `max_new_tokens`, or generate fewer texts at once",
        needed / 1e9, *available as f64 / 1e9
    )]
    TooLarge {
        /// Number of texts, or beams of texts, at once.
        rows: usize,
        /// Length of each in tokens, prompt included.
        tokens: usize,
        /// Required bytes.
        needed: f64,
        /// Available bytes.
        available: u64,
    },
    /// The model returned a wrong number of logits.
    #[error(
        "the model must return {rows} x {vocabulary} logits, one row after the other, found {found}: return only those of each row's last token"
    )]
    Count {
        /// Number of requested rows.
        rows: usize,
        /// Number of tokens in the vocabulary.
        vocabulary: usize,
        /// Number of returned logits.
        found: usize,
    },
    /// A logit is positive infinity or not a number.
    #[error(
        "row {row}, after {written} tokens: the logit of token {token} must be a number or minus infinity, found {found}: the model's weights or activations exceed the range of their dtype"
    )]
    NotANumber {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Number of tokens in the text so far.
        written: usize,
        /// The first token with such a logit.
        token: usize,
        /// The logit: infinity, or not a number.
        found: f32,
    },
    /// The model rules out every token.
    #[error(
        "row {row}, after {written} tokens: some logit must be above minus infinity, found none: the model masks its whole vocabulary"
    )]
    NoToken {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Number of tokens in the text so far.
        written: usize,
    },
    /// The settings rule out every token.
    #[error(
        "row {row}, after {written} tokens: the settings ban every token: lower `min_new_tokens` or `max_new_tokens`, raise `no_repeat_ngram` or set it to 0, or leave out forced tokens that the model lacks"
    )]
    Banned {
        /// The row's [number](super::Prompt::row).
        row: u64,
        /// Number of tokens in the text so far.
        written: usize,
    },
}

impl From<DecodingError> for firebrick::TrainError {
    fn from(error: DecodingError) -> Self {
        Self::Model(Box::new(error))
    }
}
