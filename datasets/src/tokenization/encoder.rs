//! Encodes texts with settings.

use std::sync::{Arc, OnceLock};

use tokenizers::{Result as CrateResult, TruncationDirection, TruncationParams, TruncationStrategy};

use super::{
    Encoding, Input, Truncated, Truncation,
    characters::Characters,
    fast::{Fast, Tokens},
    finish::Finish,
    pieces::on_all_cores,
    pipeline::added_tokens,
    tokenizer_file::guarded,
};
use crate::{DataError, Fingerprint, Side, Tokenizer, TokenizerError};

/// A tokenizer with settings: how to cut texts, and whether to add special tokens.
///
/// It is cheap to clone. The first text initializes the encoder.
///
/// Words and pieces of text that occur again are taken from a cache. The result is always that of the `tokenizers`
/// library, regardless of the number of threads and of earlier texts.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
///
/// use firebrick_datasets::{Encoder, Input, Tokenizer};
///
/// let tokenizer = Arc::new(Tokenizer::characters("to be")?); // space, b, e, o, t
/// let encoder = Encoder::new(tokenizer).max_length(Some(3));
/// let encodings = encoder.encode(Input::Text("to be"), None)?;
/// assert_eq!(encodings[0].ids, [4, 3, 0]);
/// assert_eq!(encodings[0].offsets, [(0, 1), (1, 2), (2, 3)]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Encoder {
    tokenizer: Arc<Tokenizer>,
    special: bool,
    max_length: Option<usize>,
    stride: Option<usize>,
    cut: Side,
    truncation: Truncation,
    truncated: Option<Truncated>,
    /// Whether a text is encoded only as far as it is kept.
    stops: bool,
    finish: OnceLock<Arc<Finish>>,
}

impl Encoder {
    /// Creates an encoder that adds special tokens and does not cut.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self {
            tokenizer,
            special: true,
            max_length: None,
            stride: None,
            cut: Side::Right,
            truncation: Truncation::LongestFirst,
            truncated: None,
            stops: false,
            finish: OnceLock::new(),
        }
    }

    /// Sets the maximum number of tokens, including the special ones. Default: no maximum.
    pub fn max_length(self, tokens: Option<usize>) -> Self {
        Self { max_length: tokens, finish: OnceLock::new(), ..self }
    }

    /// Turns the rest of a cut text into further encodings, each of which repeats `tokens` tokens of the previous one.
    /// Default: none; the rest is lost. If both sequences of a pair are cut, each part of one is combined with each
    /// part of the other.
    pub fn stride(self, tokens: Option<usize>) -> Self {
        Self { stride: tokens, finish: OnceLock::new(), ..self }
    }

    /// Sets the side at which an overlong sequence is cut. Default: the right.
    pub fn cut(self, side: Side) -> Self {
        Self { cut: side, finish: OnceLock::new(), ..self }
    }

    /// Sets which sequence of a pair is cut. Default: the longer one.
    pub fn truncation(self, truncation: Truncation) -> Self {
        Self { truncation, finish: OnceLock::new(), ..self }
    }

    /// Counts the texts that are cut and the tokens that are lost. Default: counts nothing.
    pub fn counting(self, truncated: Truncated) -> Self {
        Self { truncated: Some(truncated), ..self }
    }

    /// Sets whether [`encode`](Self::encode) stops at the maximum number of tokens where it can, so that a long text costs
    /// no more than its beginning. The encodings are the same, but only the texts that are cut are
    /// [counted](Self::counting) exactly, and not their tokens. Default: no.
    ///
    /// A text is encoded whole if its end is needed, as with a stride, for a pair, or if it is cut on the left; and if its
    /// tokenizer has parts that may look further than a word, or the text has a special token.
    pub fn stopping(self, stops: bool) -> Self {
        Self { stops, ..self }
    }

    /// Counts a text that lost so many tokens.
    pub(crate) fn lose(&self, tokens: usize) {
        self.truncated.iter().for_each(|truncated| truncated.add(tokens));
    }

    /// Sets whether to add special tokens. Default: yes.
    pub fn special(self, add: bool) -> Self {
        Self { special: add, finish: OnceLock::new(), ..self }
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Returns a hash of everything that encodings depend on besides the text: the tokenizer and the settings. `None` if
    /// the tokenizer cannot be written as JSON.
    pub fn settings(&self) -> Option<Fingerprint> {
        let Self {
            tokenizer,
            special,
            max_length,
            stride,
            cut,
            truncation,
            truncated: _,
            stops: _,
            finish: _,
        } = self;
        Fingerprint::of_settings(&(tokenizer.settings()?, special, max_length, stride, cut, truncation))
    }

    /// Returns the maximum number of tokens in an encoding, the number that the next one repeats, and the side at which
    /// texts are cut.
    pub(crate) fn limits(&self) -> (Option<usize>, Option<usize>, Side) {
        (self.max_length, self.stride, self.cut)
    }

    /// Encodes a sequence or a pair of sequences. Returns one encoding, or several with a stride.
    ///
    /// An empty text, an empty list of words, and empty words have no tokens of their own, but special tokens are still
    /// added.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if the tokenizer cannot encode the text, or if the sequence that may be cut
    /// is too short to make room for the other, and [`TokenizerError::TooFewTokens`] if the maximum leaves no room
    /// besides special tokens and stride, regardless of the text.
    pub fn encode(&self, first: Input<'_>, second: Option<Input<'_>>) -> Result<Vec<Encoding>, DataError> {
        self.check_room(second.is_some())?;
        let finish = self.finish()?;
        let texts = finish.needs_texts(second.is_some());
        let encode = || {
            let fast = self.tokenizer.fast();
            let most = if second.is_none() { self.most() } else { None };
            let first = sequence(fast, first, texts, most)?;
            let second = second.map(|second| sequence(fast, second, texts, None)).transpose()?;
            let tokens = first.ids.len() + second.as_ref().map_or(0, |second| second.ids.len());
            Ok((finish.finish(first, second)?, tokens))
        };
        let (encodings, tokens) =
            guarded(encode).map_err(|reason| self.not_encoded([Some(first), second], reason))?;
        if let (None, [encoding]) = (self.stride, encodings.as_slice()) {
            self.lose(tokens.saturating_sub(encoding.own_tokens()));
        }
        Ok(encodings)
    }

    /// Returns the number of tokens of a single sequence after which the rest is of no use, if there is one.
    fn most(&self) -> Option<usize> {
        let keeps_beginning = self.cut == Side::Right && self.truncation != Truncation::OnlySecond;
        self.max_length.filter(|_| self.stops && self.stride.is_none() && keeps_beginning)
    }

    /// Encodes many inputs, on all cores. The results are in order.
    ///
    /// # Errors
    ///
    /// The first error of [`encode`](Self::encode), in order.
    pub fn encode_batch(
        &self,
        inputs: &[(Input<'_>, Option<Input<'_>>)],
    ) -> Result<Vec<Vec<Encoding>>, DataError> {
        on_all_cores(inputs, |_, &(first, second)| self.encode(first, second))
    }

    /// Returns the ids of the first encoding of a text: the same ids as [`encode`](Self::encode), but faster, since it
    /// computes nothing else.
    ///
    /// # Errors
    ///
    /// Those of [`encode`](Self::encode).
    pub fn ids(&self, text: &str) -> Result<Vec<u32>, DataError> {
        self.check_room(false)?;
        let finish = self.finish()?;
        let Some((before, after)) = finish.around().filter(|_| self.truncation != Truncation::OnlySecond)
        else {
            let encodings = self.encode(Input::Text(text), None)?;
            return Ok(encodings.into_iter().next().map(|encoding| encoding.ids).unwrap_or_default());
        };
        let ids = guarded(|| self.tokenizer.fast().ids(text));
        let mut ids = ids.map_err(|reason| self.not_encoded([Some(Input::Text(text)), None], reason))?;
        let added = before.len() + after.len();
        if let Some(max_length) = self.max_length {
            let room = max_length.saturating_sub(added);
            self.lose(ids.len().saturating_sub(room));
            match self.cut {
                Side::Right => ids.truncate(room),
                Side::Left => drop(ids.drain(..ids.len().saturating_sub(room))),
            }
        }
        if added > 0 {
            ids.reserve_exact(added);
            ids.splice(..0, before.iter().copied());
            ids.extend_from_slice(after);
        }
        Ok(ids)
    }

    /// Returns the [`ids`](Self::ids) of many texts, on all cores. The results are in order.
    ///
    /// # Errors
    ///
    /// The first error of [`encode`](Self::encode), in order.
    pub fn ids_batch(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DataError> {
        on_all_cores(texts, |_, text| self.ids(text))
    }

    /// Returns the error of inputs that cannot be encoded.
    fn not_encoded(&self, inputs: [Option<Input<'_>>; 2], reason: String) -> DataError {
        let texts = inputs.into_iter().flatten().flat_map(|input| match input {
            Input::Text(text) => vec![text],
            Input::Words(words) => words.to_vec(),
        });
        let (tokenizer, origin) = (self.tokenizer.fast().tokenizer(), self.tokenizer.origin.as_deref());
        Characters::missing(tokenizer, texts, origin)
            .unwrap_or_else(|| DataError::tokenizer("encode a text")(reason))
    }

    /// Checks the room, since the crate treats a maximum without room for text as a huge one, or panics.
    fn check_room(&self, pair: bool) -> Result<(), DataError> {
        let Some(max_length) = self.max_length else {
            return Ok(());
        };
        let special = if self.special { added_tokens(self.tokenizer.inner(), pair) } else { 0 };
        let stride = self.stride.unwrap_or(0);
        if max_length.saturating_sub(special) <= stride {
            return Err(TokenizerError::TooFewTokens { max_length, special, stride }.into());
        }
        Ok(())
    }

    fn finish(&self) -> Result<&Finish, DataError> {
        if let Some(finish) = self.finish.get() {
            return Ok(finish);
        }
        let finish = self.make_finish().map_err(DataError::tokenizer("be prepared"))?;
        Ok(self.finish.get_or_init(|| Arc::new(finish)))
    }

    fn make_finish(&self) -> Result<Finish, String> {
        let truncation = self.max_length.map(|max_length| TruncationParams {
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
        });
        let loses = self.stride.is_none();
        guarded(|| Finish::new(self.tokenizer.inner(), self.special, truncation, loses))
    }
}

/// Returns the tokens of a sequence. If there are more than `most`, the rest may be missing.
fn sequence(fast: &Fast, input: Input<'_>, texts: bool, most: Option<usize>) -> CrateResult<Tokens> {
    let bytes = match input {
        Input::Text(text) => text.len(),
        Input::Words(words) => words.iter().map(|word| word.len()).max().unwrap_or(0),
    };
    // Offsets are `u32`.
    u32::try_from(bytes).map_err(|_| format!("it has {bytes} bytes; the limit is {}", u32::MAX))?;
    match input {
        Input::Text(text) => fast.text(text, texts, most),
        Input::Words(words) => fast.words(words, texts, most),
    }
}

#[cfg(test)]
#[path = "encoder_tests.rs"]
mod tests;
