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
        let Self { tokenizer, special, max_length, stride, cut, truncation, truncated: _, finish: _ } = self;
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
            let first = sequence(fast, first, texts)?;
            let second = second.map(|second| sequence(fast, second, texts)).transpose()?;
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

fn sequence(fast: &Fast, input: Input<'_>, texts: bool) -> CrateResult<Tokens> {
    let bytes = match input {
        Input::Text(text) => text.len(),
        Input::Words(words) => words.iter().map(|word| word.len()).max().unwrap_or(0),
    };
    // Offsets are `u32`.
    u32::try_from(bytes).map_err(|_| format!("it has {bytes} bytes; the limit is {}", u32::MAX))?;
    match input {
        Input::Text(text) => fast.text(text, texts),
        Input::Words(words) => fast.words(words, texts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer(processor: &str) -> Arc<Tokenizer> {
        let json = format!(
            r#"{{"version": "1.0", "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": {processor},
                "model": {{"type": "WordLevel", "unk_token": "?",
                "vocab": {{"?": 0, "[CLS]": 1, "[SEP]": 2, "a": 3, "b": 4, "c": 5, "d": 6, "e": 7}}}}}}"#
        );
        Arc::new(Tokenizer::new(tokenizers::Tokenizer::from_bytes(json).unwrap()))
    }

    fn bert() -> Arc<Tokenizer> {
        tokenizer(r#"{"type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2]}"#)
    }

    fn ids(encodings: &[Encoding]) -> Vec<&[u32]> {
        encodings.iter().map(|encoding| encoding.ids.as_slice()).collect()
    }

    #[test]
    fn a_pair() {
        let encoder = Encoder::new(bert());
        let second = ["c", "", "d"];
        let [encoding] = &encoder.encode(Input::Text("a b"), Some(Input::Words(&second))).unwrap()[..] else {
            panic!("one encoding")
        };
        assert_eq!(encoding.ids, [1, 3, 4, 2, 5, 6, 2]);
        assert_eq!(encoding.type_ids, [0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(encoding.words, [None, Some(0), Some(1), None, Some(0), Some(2), None]);
        assert_eq!(encoding.offsets, [(0, 0), (0, 1), (2, 3), (0, 0), (0, 1), (0, 1), (0, 0)]);
        assert_eq!(encoding.special, [true, false, false, true, false, false, true]);
        assert_eq!(encoding.sequences, [None, Some(0), Some(0), None, Some(1), Some(1), None]);
    }

    #[test]
    fn cut_at_either_side() {
        let encoder = Encoder::new(bert()).max_length(Some(4));
        let text = Input::Text("a b c d e");
        assert_eq!(ids(&encoder.encode(text, None).unwrap()), [[1, 3, 4, 2]]);
        assert_eq!(encoder.ids("a b c d e").unwrap(), [1, 3, 4, 2]);
        let left = encoder.clone().cut(Side::Left);
        assert_eq!(ids(&left.encode(text, None).unwrap()), [[1, 6, 7, 2]]);
        assert_eq!(left.ids("a b c d e").unwrap(), [1, 6, 7, 2]);
        let bare = encoder.special(false).max_length(Some(2));
        assert_eq!(ids(&bare.encode(text, None).unwrap()), [[3, 4]]);
        assert_eq!(bare.ids("a b c d e").unwrap(), [3, 4]);
    }

    /// The rest of a cut pair is not combined, which would make five million encodings here.
    #[test]
    fn a_long_pair_is_cut_at_once() {
        let text = "the ".repeat(5000);
        let encoder = Encoder::new(bert()).max_length(Some(10));
        let encodings = encoder.encode(Input::Text(&text), Some(Input::Text(&text))).unwrap();
        assert_eq!(encodings.len(), 1);
        assert_eq!(encodings[0].ids.len(), 10);
    }

    #[test]
    fn a_stride_keeps_the_whole_text() {
        let encoder = Encoder::new(bert()).max_length(Some(5)).stride(Some(1));
        let encodings = encoder.encode(Input::Text("a b c d e a b"), None).unwrap();
        assert_eq!(ids(&encodings), [[1, 3, 4, 5, 2], [1, 5, 6, 7, 2], [1, 7, 3, 4, 2]]);
        assert_eq!(encodings[2].words, [None, Some(4), Some(5), Some(6), None]);
        assert_eq!(encodings[2].offsets[1..4], [(8, 9), (10, 11), (12, 13)]);
        assert_eq!(encodings[2].sequences, [None, Some(0), Some(0), Some(0), None]);

        let question = encoder.max_length(Some(7)).truncation(Truncation::OnlySecond);
        let encodings = question.encode(Input::Text("a b"), Some(Input::Text("c d e"))).unwrap();
        assert_eq!(ids(&encodings), [[1, 3, 4, 2, 5, 6, 2], [1, 3, 4, 2, 6, 7, 2]]);
        assert_eq!(encodings[1].type_ids, [0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(encodings[1].sequences, [None, Some(0), Some(0), None, Some(1), Some(1), None]);
    }

    #[test]
    fn too_little_room() {
        for (max_length, stride, pair, special) in [
            (0, 0, false, true),
            (2, 0, false, true),
            (3, 1, false, true),
            (3, 0, true, true),
            (1, 1, false, false),
        ] {
            let encoder =
                Encoder::new(bert()).max_length(Some(max_length)).stride(Some(stride)).special(special);
            let second = pair.then_some(Input::Text("b"));
            let error = encoder.encode(Input::Text("a"), second).unwrap_err();
            assert!(matches!(error, DataError::Tokenizer(TokenizerError::TooFewTokens { .. })), "{error}");
        }
        let encoder = Encoder::new(bert()).max_length(Some(4)).truncation(Truncation::OnlyFirst);
        let error = encoder.encode(Input::Text("a"), Some(Input::Text("a b c d"))).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFailed { .. })), "{error}");
        let encoder = Encoder::new(bert()).max_length(Some(9)).stride(Some(5));
        let error = encoder.encode(Input::Text("a a a a a a"), Some(Input::Text("a b c d"))).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFailed { .. })), "{error}");
    }

    #[test]
    fn an_unknown_character_is_named_beside_special_tokens_too() {
        let vocabulary = crate::Tokenizer::characters("ab\n").unwrap();
        let mut framed = vocabulary.inner().clone();
        framed.add_special_tokens([tokenizers::AddedToken::from("<s>", true)]).unwrap();
        for tokenizer in [vocabulary, crate::Tokenizer::new(framed)] {
            let encoder = Encoder::new(Arc::new(tokenizer));
            let encoded = encoder.encode(Input::Text("ab"), Some(Input::Words(&["a", "bZ"])));
            for error in [encoded.unwrap_err(), encoder.ids("a\nbZ").unwrap_err()] {
                let found = matches!(
                    error,
                    DataError::Tokenizer(TokenizerError::UnknownCharacter { character: 'Z', column: 2, .. })
                );
                assert!(found, "{error}");
            }
        }
    }

    #[test]
    fn nothing_to_encode() {
        let encoder = Encoder::new(bert());
        for input in [Input::Text(""), Input::Text(" \n"), Input::Words(&[]), Input::Words(&["", ""])] {
            assert_eq!(ids(&encoder.encode(input, None).unwrap()), [[1, 2]]);
            assert_eq!(encoder.clone().special(false).encode(input, None).unwrap(), [Encoding::default()]);
        }
        assert_eq!(encoder.encode_batch(&[]).unwrap(), Vec::<Vec<Encoding>>::new());
    }

    #[test]
    fn batches_are_in_order() {
        let encoder = Encoder::new(bert());
        let texts: Vec<String> = (0..500).map(|number| "a b ".repeat(number % 7)).collect();
        let inputs: Vec<_> = texts.iter().map(|text| (Input::Text(text), None)).collect();
        let each: Vec<_> = inputs.iter().map(|&(first, _)| encoder.encode(first, None).unwrap()).collect();
        assert_eq!(encoder.encode_batch(&inputs).unwrap(), each);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let each: Vec<_> = each.into_iter().map(|mut encodings| encodings.remove(0).ids).collect();
        assert_eq!(encoder.ids_batch(&texts).unwrap(), each);
    }
}
