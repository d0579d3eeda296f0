//! What a text goes on from.

/// What a text goes on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// Its number among all that are ever decoded, whatever batch it is in: what is drawn depends on it.
    pub row: u64,
    /// The tokens that the decoder reads, which may not be written again under some settings. Of an encoder and
    /// decoder, the decoder's start token alone.
    pub tokens: Vec<u32>,
}

impl Prompt {
    /// A prompt of that number.
    pub fn new(row: u64, tokens: impl Into<Vec<u32>>) -> Self {
        Self { row, tokens: tokens.into() }
    }
}
