//! The trait of a model for decoding.

use super::DecodingError;

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
