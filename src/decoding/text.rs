//! What was written.

use serde::{Deserialize, Serialize};

/// What was written after a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The tokens after the prompt, with the end token where one ended it.
    pub tokens: Vec<u32>,
    /// The natural logarithm of the text's probability given the prompt, by the model alone: before penalties,
    /// temperature and filters.
    pub log_probability: f64,
    /// What beam search ranks it by: the sum of its log probabilities after the penalties, divided by its length to
    /// the power of the length penalty. Of other texts it is `log_probability`.
    pub score: f64,
    /// Why it ended.
    pub end: End,
}

impl Text {
    /// The tokens without the one that ended it.
    ///
    /// ```
    /// use firebrick::decoding::{End, Text};
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
    /// It has as many tokens as it may have.
    Length,
}
