//! One encoded text, with where each token came from.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use tokenizers::{EncodeInput, InputSequence, TruncationDirection, TruncationParams, TruncationStrategy};

use super::tokenizer_file::guarded;
use crate::{DataError, Tokenizer};

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
}

/// A tokenizer with settings: how texts are cut, and whether special tokens are added.
#[derive(Debug, Clone)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    special: bool,
    max_length: Option<usize>,
    stride: Option<usize>,
    cut: Side,
    truncation: Truncation,
}

impl Encoder {
    /// Adds special tokens, and does not cut.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            special: true,
            max_length: None,
            stride: None,
            cut: Side::Right,
            truncation: Truncation::LongestFirst,
        }
    }

    /// At most so many tokens, the special ones included.
    pub fn max_length(mut self, tokens: Option<usize>) -> Self {
        self.max_length = tokens;
        self
    }

    /// What is cut off becomes further encodings, each of which repeats so many tokens of the one
    /// before. Without a stride it is lost.
    pub fn stride(mut self, tokens: Option<usize>) -> Self {
        self.stride = tokens;
        self
    }

    /// Where a sequence that is too long is cut. Default: at its right end.
    pub fn cut(mut self, side: Side) -> Self {
        self.cut = side;
        self
    }

    /// Which sequence of a pair is cut. Default: the longer.
    pub fn truncation(mut self, truncation: Truncation) -> Self {
        self.truncation = truncation;
        self
    }

    /// Whether special tokens are added. Default: yes.
    pub fn special(mut self, add: bool) -> Self {
        self.special = add;
        self
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Encodes a sequence, or a pair of them. It is one encoding, or with a stride several.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenizerFailed`] if the tokenizer cannot encode the text, and
    /// [`DataError::TooFewTokens`] if the maximum leaves no room beside special tokens and stride.
    pub fn encode(&self, first: Input<'_>, second: Option<Input<'_>>) -> Result<Vec<Encoding>, DataError> {
        let side = |input| match input {
            Input::Text(text) => InputSequence::from(text),
            Input::Words(words) => InputSequence::from(words),
        };
        let input = match second {
            Some(second) => EncodeInput::Dual(side(first), side(second)),
            None => EncodeInput::Single(side(first)),
        };
        let mut inner = self.tokenizer.inner().clone();
        let encoding = guarded(|| {
            inner.with_truncation(self.max_length.map(|max_length| TruncationParams {
                max_length,
                stride: self.stride.unwrap_or(0),
                direction: match self.cut {
                    Side::Left => TruncationDirection::Left,
                    Side::Right => TruncationDirection::Right,
                },
                strategy: match self.truncation {
                    Truncation::LongestFirst => TruncationStrategy::LongestFirst,
                    Truncation::OnlyFirst => TruncationStrategy::OnlyFirst,
                    Truncation::OnlySecond => TruncationStrategy::OnlySecond,
                },
            }))?;
            inner.encode(input, self.special)
        })
        .map_err(DataError::tokenizer("encode a text"))?;
        let further = self.stride.is_some().then(|| encoding.get_overflowing().iter());
        Ok([&encoding].into_iter().chain(further.into_iter().flatten()).map(Encoding::from).collect())
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
