//! The generated text.

use serde::{Deserialize, Serialize};

/// The text generated after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The tokens after the prompt, including the end token if one ended the text.
    pub tokens: Vec<u32>,
    /// The natural logarithm of the text's probability given the prompt, according to the model alone: before
    /// penalties, temperature and filters.
    pub log_probability: f64,
    /// The score by which beam search ranks texts: the sum of the log probabilities after the penalties, divided by
    /// the length to the power of the length penalty. Without beam search, equal to `log_probability`.
    pub score: f64,
    /// Why the text ended.
    pub end: End,
}

impl Text {
    /// The tokens without the end token.
    ///
    /// ```
    /// use firebrick_models::decoding::{End, Text};
    ///
    /// let text = Text { tokens: vec![5, 6, 2], log_probability: -1.0, score: -1.0, end: End::Token };
    /// assert_eq!(text.without_end(), [5, 6]);
    /// assert_eq!(Text { end: End::Length, ..text }.without_end(), [5, 6, 2]);
    /// ```
    pub fn without_end(&self) -> &[u32] {
        match (self.end, self.tokens.split_last()) {
            (End::Token, Some((_, tokens))) => tokens,
            _ => &self.tokens,
        }
    }
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// Its last token is one of the end tokens.
    Token,
    /// It has reached the maximum length.
    Length,
}
