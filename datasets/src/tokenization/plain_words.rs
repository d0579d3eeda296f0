//! Finds words that the steps before the model leave unchanged or change in a known way.

use std::borrow::Cow;

use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use super::pipeline::AddedTokens;

/// Finds words for which the steps before the model can be skipped because their effect is known: ASCII words that are
/// at most converted to lower case and split at punctuation.
///
/// Most words of most texts are of this kind, and these steps cost several times as much as the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlainWords {
    lowercase: bool,
    /// Whether words may contain punctuation, each character of which is a separate word.
    punctuation: bool,
}

impl PlainWords {
    /// Returns the rule for this tokenizer, if its pipeline is known to do nothing else:
    ///
    /// - Normalizers: `BertNormalizer`, `Lowercase`, `StripAccents`, `Nmt`, `NFC`, `NFD`, `NFKC`, `NFKD`, sequences of
    ///   these, none.
    /// - Pre-tokenizers: `BertPreTokenizer`; `Whitespace` and `WhitespaceSplit`, for words without punctuation.
    /// - Added tokens all contain some punctuation. Words with punctuation may contain an added token, which the caller
    ///   checks; such words are excluded if added tokens match after normalization.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let punctuation = match tokenizer.get_pre_tokenizer()? {
            PreTokenizerWrapper::BertPreTokenizer(_) => true,
            PreTokenizerWrapper::Whitespace(_) | PreTokenizerWrapper::WhitespaceSplit(_) => false,
            _ => return None,
        };
        let added = tokenizer.get_added_vocabulary();
        let punctuated = |text: &String| text.chars().any(|character| character.is_ascii_punctuation());
        if !added.get_vocab().keys().all(punctuated) {
            return None;
        }
        let normalized = added.get_added_tokens_decoder().values().any(|token| token.normalized);
        let lowercase = match tokenizer.get_normalizer() {
            Some(normalizer) => makes_lowercase(normalizer)?,
            None => false,
        };
        Some(Self { lowercase, punctuation: punctuation && !normalized })
    }

    /// Returns the word of `text` after normalization, and the byte at which it begins: 1 if there is a space before
    /// it. Returns `None` if it is not a plain word.
    pub(super) fn word<'a>(&self, text: &'a str, added: &AddedTokens) -> Option<(Cow<'a, str>, u32)> {
        let (word, start) = match text.strip_prefix(' ') {
            Some(word) => (word, 1),
            None => (text, 0),
        };
        let plain =
            |byte: u8| byte.is_ascii_alphanumeric() || self.punctuation && byte.is_ascii_punctuation();
        if word.is_empty() || !word.bytes().all(plain) {
            return None;
        }
        if self.punctuation && added.occur_in(word) {
            return None;
        }
        let changes = self.lowercase && word.bytes().any(|byte| byte.is_ascii_uppercase());
        Some((if changes { word.to_ascii_lowercase().into() } else { word.into() }, start))
    }

    /// Splits a word into the model's inputs: runs of letters and digits, and single punctuation characters.
    pub(super) fn split(word: &str) -> impl Iterator<Item = &str> {
        let mut rest = word;
        std::iter::from_fn(move || {
            let letters = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
            let (part, after) = rest.split_at_checked(letters.max(1))?;
            rest = after;
            Some(part)
        })
    }
}

/// Returns whether the normalizer converts ASCII letters to lower case, or `None` if it may change letters or digits in
/// other ways.
fn makes_lowercase(normalizer: &NormalizerWrapper) -> Option<bool> {
    match normalizer {
        NormalizerWrapper::BertNormalizer(bert) => Some(bert.lowercase),
        NormalizerWrapper::Lowercase(_) => Some(true),
        NormalizerWrapper::StripAccents(_)
        | NormalizerWrapper::Nmt(_)
        | NormalizerWrapper::NFC(_)
        | NormalizerWrapper::NFD(_)
        | NormalizerWrapper::NFKC(_)
        | NormalizerWrapper::NFKD(_) => Some(false),
        NormalizerWrapper::Sequence(steps) => {
            let mut lowercase = false;
            for step in steps.as_ref() {
                lowercase |= makes_lowercase(step)?;
            }
            Some(lowercase)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{
        AddedToken,
        models::wordlevel::WordLevel,
        normalizers::{BertNormalizer, Prepend},
        pre_tokenizers::{bert::BertPreTokenizer, metaspace::Metaspace, whitespace::WhitespaceSplit},
    };

    use super::*;

    fn bert() -> Tokenizer {
        let mut tokenizer = Tokenizer::new(WordLevel::default());
        tokenizer.with_normalizer(Some(BertNormalizer::default())).unwrap();
        tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
        tokenizer
    }

    #[test]
    fn words() {
        let mut tokenizer = bert();
        tokenizer.add_special_tokens([AddedToken::from("[MASK]", true)]).unwrap();
        let (plain, added) = (PlainWords::of(&tokenizer).unwrap(), AddedTokens::of(&tokenizer));
        assert_eq!(plain.word("Abc1", &added), Some(("abc1".into(), 0)));
        assert_eq!(plain.word(" a-B", &added), Some(("a-b".into(), 1)));
        for text in ["", " ", "  a", "a ", "é", "a\n", "a\u{7f}", "x[MASK]"] {
            assert_eq!(plain.word(text, &added), None, "{text:?}");
        }
        assert_eq!(PlainWords::split("it's:)").collect::<Vec<_>>(), ["it", "'", "s", ":", ")"]);
    }

    #[test]
    fn punctuation_that_stays_in_a_word() {
        let mut tokenizer = bert();
        tokenizer.with_pre_tokenizer(Some(WhitespaceSplit));
        let (plain, added) = (PlainWords::of(&tokenizer).unwrap(), AddedTokens::of(&tokenizer));
        assert!(plain.word("ab", &added).is_some() && plain.word("a-b", &added).is_none());

        let mut normalized = bert();
        normalized.add_tokens([AddedToken::from("[X]", false).normalized(true)]).unwrap();
        assert_eq!(PlainWords::of(&normalized).unwrap().word("[x]", &added), None);
    }

    #[test]
    fn pipelines_without_plain_words() {
        let mut prepends = bert();
        prepends.with_normalizer(Some(Prepend::new("x".to_owned()))).unwrap();
        let mut splits = bert();
        splits.with_pre_tokenizer(Some(Metaspace::default()));
        let mut within = bert();
        within.add_tokens([AddedToken::from("ing", false)]).unwrap();
        for tokenizer in [prepends, splits, within] {
            assert!(PlainWords::of(&tokenizer).is_none());
        }
    }
}
