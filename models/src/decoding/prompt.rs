//! The beginning of a text.

/// The beginning of a text, which decoding continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The prompt's number among all prompts, independent of its batch. Draws depend on it.
    pub row: u64,
    /// The tokens that the decoder reads; some settings penalize or ban their repetition. For an encoder-decoder
    /// model, usually just the decoder's start token.
    pub tokens: Vec<u32>,
}

impl Prompt {
    /// Creates the prompt with number `row`.
    pub fn new(row: u64, tokens: impl Into<Vec<u32>>) -> Self {
        Self { row, tokens: tokens.into() }
    }
}
