//! What a model must do to be decoded.

use super::DecodingError;

/// A model that has some prompts, and says what may come after each.
///
/// It holds rows: one for each prompt at first, then those of the last call. [`Decoding::write`](super::Decoding::write)
/// makes each call with all rows that still write, so that a cache of keys and values moves along: row `i` of a call
/// goes on from row `from[i]` of the call before. A row that is not named has ended, and one that is named twice has
/// become two. Rows of a prompt stay together, in the order of the prompts.
pub trait NextToken {
    /// Why the model could not be read, or its logits not be used.
    type Error: From<DecodingError>;

    /// Tokens that the model has logits for.
    fn vocabulary(&self) -> usize;

    /// Logits of the first token of each text, `[prompts * vocabulary]`, one prompt after the other.
    ///
    /// # Errors
    ///
    /// The model could not be read.
    fn start(&mut self) -> Result<Vec<f32>, Self::Error>;

    /// Appends `tokens[i]` to row `from[i]`, which becomes row `i`, and returns the logits of the token after it,
    /// `[rows * vocabulary]`, one row after the other.
    ///
    /// Without rows, this rank has nothing more to write but another has: do what all ranks do together, and return
    /// no logits.
    ///
    /// # Errors
    ///
    /// The model could not be read.
    fn append(&mut self, from: &[usize], tokens: &[u32]) -> Result<Vec<f32>, Self::Error>;

    /// Refuses to go on with `rows` rows that become `tokens` tokens longer, where there is no memory for them. It is
    /// asked once, after [`start`](Self::start), with the most rows that there may be. Default: never refuses.
    ///
    /// # Errors
    ///
    /// They need more memory than there is.
    fn require_room(&self, rows: usize, tokens: usize) -> Result<(), Self::Error> {
        let _ = (rows, tokens);
        Ok(())
    }

    /// Whether any rank still writes, where `here` says so of this one. It is asked before each call of the other two,
    /// and no call follows where it says no. So ranks that share a model make as many calls, whichever ends last.
    /// Default: what `here` says, for a rank that is alone.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    fn any_writes(&mut self, here: bool) -> Result<bool, Self::Error> {
        Ok(here)
    }
}
