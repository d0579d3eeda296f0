//! An encoded text with the origin of each token, and counts of texts that were cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The input of an encoder: a text, or words that are already split.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A text. The tokenizer's pre-tokenizer splits it into words.
    Text(&'a str),
    /// Words. Adjacent words are never joined.
    Words(&'a [&'a str]),
}

/// The sequence of a pair to cut if both together are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Truncation {
    /// The longer one, token by token.
    #[default]
    LongestFirst,
    /// The first one.
    OnlyFirst,
    /// The second one.
    OnlySecond,
}

/// Token ids, and the origin of each. All fields have the same length.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The segment, BERT's token type: 0 for the first sequence, usually 1 for the second.
    pub type_ids: Vec<u32>,
    /// Whether the tokenizer added the token, such as `[CLS]`.
    pub special: Vec<bool>,
    /// The index of the word in its sequence; `None` for added tokens.
    pub words: Vec<Option<u32>>,
    /// The start and end of the token in bytes of the text; for words that are already split, in bytes of the word.
    pub offsets: Vec<(u32, u32)>,
    /// The sequence, 0 or 1; `None` for added tokens.
    pub sequences: Vec<Option<u8>>,
}

impl Encoding {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the number of tokens of the texts, without those that the tokenizer adds around them.
    pub(crate) fn own_tokens(&self) -> usize {
        self.special.iter().filter(|special| !**special).count()
    }

    pub(super) fn with_capacity(len: usize) -> Self {
        Self {
            ids: Vec::with_capacity(len),
            type_ids: Vec::with_capacity(len),
            special: Vec::with_capacity(len),
            words: Vec::with_capacity(len),
            offsets: Vec::with_capacity(len),
            sequences: Vec::with_capacity(len),
        }
    }

    /// Appends the token at index `at` of `other`.
    pub(super) fn extend_from(&mut self, other: &Self, at: usize) {
        self.ids.push(other.ids[at]);
        self.type_ids.push(other.type_ids[at]);
        self.special.push(other.special[at]);
        self.words.push(other.words[at]);
        self.offsets.push(other.offsets[at]);
        self.sequences.push(other.sequences[at]);
    }
}

impl From<&tokenizers::Encoding> for Encoding {
    fn from(encoding: &tokenizers::Encoding) -> Self {
        Self {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
            special: encoding.get_special_tokens_mask().iter().map(|&mask| mask == 1).collect(),
            words: encoding.get_word_ids().to_vec(),
            offsets: encoding.get_offsets().iter().map(|&(start, end)| (start as u32, end as u32)).collect(),
            sequences: (0..encoding.len())
                .map(|token| encoding.token_to_sequence(token).map(|sequence| sequence as u8))
                .collect(),
        }
    }
}

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
