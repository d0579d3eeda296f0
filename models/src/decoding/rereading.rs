//! A model without a cache, which rereads everything for each token.

use super::{DecodingError, NextToken, Prompt};

/// A prompt with the text generated so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The index of the prompt that it continues. Rows with the same prompt have the same encoder states.
    pub prompt: usize,
    /// The tokens of the prompt, then those of the text.
    pub tokens: Vec<u32>,
}

/// A model without a cache: it reads the prompt and the whole text again for each token.
///
/// `read` takes the rows, and returns the logits `[rows * vocabulary]` of the token after each row. See
/// [`Decoding`](super::Decoding) for an example. On a rank that shares the model and is done, `read` is called
/// without rows; see [`NextToken::append`].
pub struct Rereading<'a, R, E> {
    rows: Vec<Row>,
    vocabulary: usize,
    read: R,
    any_writes: Box<dyn FnMut(bool) -> Result<bool, E> + 'a>,
}

impl<'a, R, E> Rereading<'a, R, E>
where
    R: FnMut(&[Row]) -> Result<Vec<f32>, E>,
    E: From<DecodingError> + 'a,
{
    /// Creates a model with `vocabulary` tokens for these prompts.
    pub fn new(prompts: &[Prompt], vocabulary: usize, read: R) -> Self {
        let row = |(prompt, Prompt { tokens, .. }): (usize, &Prompt)| Row { prompt, tokens: tokens.clone() };
        let rows = prompts.iter().enumerate().map(row).collect();
        Self { rows, vocabulary, read, any_writes: Box::new(Ok) }
    }

    /// Sets the function that returns whether any rank still writes. See [`NextToken::any_writes`].
    pub fn among(mut self, any_writes: impl FnMut(bool) -> Result<bool, E> + 'a) -> Self {
        self.any_writes = Box::new(any_writes);
        self
    }
}

impl<R, E> NextToken for Rereading<'_, R, E>
where
    R: FnMut(&[Row]) -> Result<Vec<f32>, E>,
    E: From<DecodingError>,
{
    type Error = E;

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn start(&mut self) -> Result<Vec<f32>, E> {
        (self.read)(&self.rows)
    }

    fn append(&mut self, from: &[usize], tokens: &[u32]) -> Result<Vec<f32>, E> {
        let longer = |(&from, &token): (&usize, &u32)| {
            let mut row = self.rows[from].clone();
            row.tokens.push(token);
            row
        };
        self.rows = from.iter().zip(tokens).map(longer).collect();
        (self.read)(&self.rows)
    }

    fn any_writes(&mut self, here: bool) -> Result<bool, E> {
        (self.any_writes)(here)
    }
}
