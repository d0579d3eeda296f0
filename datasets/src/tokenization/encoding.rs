//! One encoded text, with where each token came from.

use serde::{Deserialize, Serialize};

/// What is encoded: a text, or words that are split already.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A text. Its words are what the tokenizer's pre-tokenizer makes of it.
    Text(&'a str),
    /// Words. None of them is joined with its neighbour.
    Words(&'a [&'a str]),
}

/// The beginning or the end of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Side {
    /// The beginning.
    Left,
    /// The end.
    #[default]
    Right,
}

/// Which of two sequences is cut if both together are too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Truncation {
    /// The longer one, token by token.
    #[default]
    LongestFirst,
    /// The first.
    OnlyFirst,
    /// The second.
    OnlySecond,
}

/// Token ids, and for each where it came from. All fields are equally long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Encoding {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The segment, as BERT's token types: 0 for the first sequence, usually 1 for the second.
    pub type_ids: Vec<u32>,
    /// Whether the token was added by the tokenizer, such as `[CLS]`.
    pub special: Vec<bool>,
    /// The word, counted in its sequence from 0; `None` for added tokens.
    pub words: Vec<Option<u32>>,
    /// The bytes of the text that the token stands for, as start and end; for words given split,
    /// the bytes of the word.
    pub offsets: Vec<(u32, u32)>,
    /// The sequence, 0 or 1; `None` for added tokens.
    pub sequences: Vec<Option<u8>>,
}

impl Encoding {
    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
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

    /// Adds the token that stands at `at` of another.
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
