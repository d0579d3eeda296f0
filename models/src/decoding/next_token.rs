//! The trait of a model for decoding, and a model without a cache, which rereads everything for each token.

use super::{DecodingError, Prompt};

/// A model with some prompts that returns the logits of each next token.
///
/// The model holds rows: first one per prompt, then those of the last call.
/// [`Decoding::write`](super::Decoding::write) makes each call with all unfinished rows, so that a cache of keys and
/// values can follow: row `i` of a call continues row `from[i]` of the call before. A row that `from` omits has
/// ended, and a row that it names twice has been duplicated. The rows of a prompt stay together, in the order of the
/// prompts.
pub trait NextToken {
    /// The error of running the model or using its logits.
    type Error: From<DecodingError>;

    /// The number of tokens in the logits.
    fn vocabulary(&self) -> usize;

    /// Returns the logits of the first token of each text, `[prompts * vocabulary]`, one prompt after the other.
    ///
    /// # Errors
    ///
    /// The model failed.
    fn start(&mut self) -> Result<Vec<f32>, Self::Error>;

    /// Appends `tokens[i]` to row `from[i]`, which becomes row `i`, and returns the logits of the token after it,
    /// `[rows * vocabulary]`, one row after the other.
    ///
    /// Without rows, this rank has nothing left to write but another rank does: take part in the collective
    /// operations, and return no logits.
    ///
    /// # Errors
    ///
    /// The model failed.
    fn append(&mut self, from: &[usize], tokens: &[u32]) -> Result<Vec<f32>, Self::Error>;

    /// Fails if memory does not suffice for `rows` rows that grow by `tokens` tokens. Called once, after
    /// [`start`](Self::start), with the maximum number of rows. Default: never fails.
    ///
    /// # Errors
    ///
    /// The rows need more memory than is available.
    fn require_room(&self, rows: usize, tokens: usize) -> Result<(), Self::Error> {
        let _ = (rows, tokens);
        Ok(())
    }

    /// Whether any rank still writes; `here` says whether this one does. Called before each [`start`](Self::start)
    /// and [`append`](Self::append), which follow only if it returns true, so that ranks that share a model make the
    /// same number of calls. Default: returns `here`, for a single rank.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    fn any_writes(&mut self, here: bool) -> Result<bool, Self::Error> {
        Ok(here)
    }
}

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
