//! Counts texts that were cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the texts that an [`Encoder`](crate::Encoder) cut, and the tokens that were lost.
///
/// Clones share the counts, so you can keep one and read it at the end. With a stride nothing is lost.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use firebrick_datasets::{Encoder, Input, Tokenizer, Truncated};
///
/// let truncated = Truncated::default();
/// let tokenizer = Arc::new(Tokenizer::characters("to be")?);
/// let encoder = Encoder::new(tokenizer).max_length(Some(3)).counting(truncated.clone());
/// encoder.encode(Input::Text("to be"), None)?;
/// encoder.encode(Input::Text("be"), None)?;
/// assert_eq!((truncated.texts(), truncated.tokens()), (1, 2));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Truncated {
    texts: Arc<AtomicU64>,
    tokens: Arc<AtomicU64>,
}

impl Truncated {
    /// Returns the number of texts, or pairs of texts, that were cut.
    pub fn texts(&self) -> u64 {
        self.texts.load(Ordering::Relaxed)
    }

    /// Returns the number of tokens that were lost.
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Adds a text that lost so many tokens; nothing if it lost none.
    pub(crate) fn add(&self, tokens: usize) {
        if tokens > 0 {
            self.texts.fetch_add(1, Ordering::Relaxed);
            self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoder, Input, Tokenizer};

    #[test]
    fn texts_that_are_cut_are_counted() {
        let truncated = Truncated::default();
        let counts = || (truncated.texts(), truncated.tokens());
        let tokenizer = Arc::new(Tokenizer::characters("abcde").unwrap());
        let encoder = Encoder::new(tokenizer).max_length(Some(3)).counting(truncated.clone());
        encoder.encode(Input::Text("abc"), None).unwrap();
        assert_eq!(counts(), (0, 0));
        encoder.encode(Input::Text("abcde"), None).unwrap();
        assert_eq!(counts(), (1, 2));
        encoder.encode(Input::Text("ab"), Some(Input::Text("cde"))).unwrap();
        assert_eq!(counts(), (2, 4));
        encoder.ids("abcd").unwrap();
        assert_eq!(counts(), (3, 5));
        // With a stride, further encodings have the rest.
        encoder.clone().stride(Some(0)).encode(Input::Text("abcde"), None).unwrap();
        assert_eq!(counts(), (3, 5));
    }
}
