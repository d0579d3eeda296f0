//! The steps of the `tokenizers` crate, run one by one, and the added tokens that it finds in a text.

use tokenizers::{
    Encoding, Model, OffsetReferential, OffsetType, PostProcessor, PreTokenizer, Result, Tokenizer,
};

/// An encoded piece of text, before truncation and special tokens.
pub(super) struct Raw {
    /// The tokens.
    pub(super) encoding: Encoding,
    /// The number of words in the piece, including those without a token.
    pub(super) words: usize,
    /// The piece after normalization, unless added tokens were cut out of it.
    pub(super) normalized: Option<String>,
}

/// Encodes `text` like [`Tokenizer::encode`], up to the post-processor.
///
/// It does not call that function, which also truncates: it stops at the maximum length, and tokens that should
/// overflow are lost.
pub(super) fn raw(tokenizer: &Tokenizer, text: &str) -> Result<Raw> {
    let added = tokenizer.get_added_vocabulary();
    let mut pieces = added.extract_and_normalize(tokenizer.get_normalizer(), text);
    let normalized = match pieces.get_splits(OffsetReferential::Original, OffsetType::None)[..] {
        [(normalized, _, None)] => Some(normalized.to_owned()),
        [] => Some(String::new()),
        _ => None,
    };
    if let Some(pre_tokenizer) = tokenizer.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut pieces)?;
    }
    tokenizer.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
    let words = pieces.get_splits(OffsetReferential::Original, OffsetType::None).len();
    let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
    Ok(Raw { encoding, words, normalized })
}

/// Returns the number of special tokens added to one sequence or to a pair.
pub(super) fn added_tokens(tokenizer: &Tokenizer, pair: bool) -> usize {
    tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(pair))
}

/// The texts of the added tokens, such as `[MASK]`, by their first byte.
///
/// The `tokenizers` crate splits a text at added tokens in ways that depend on their settings. This type only rules out
/// that a text contains any.
#[derive(Debug, Clone)]
pub(super) struct AddedTokens {
    begins: Box<[bool; 256]>,
    /// Sorted, so that texts with the same first byte are adjacent.
    texts: Vec<Box<[u8]>>,
}

impl AddedTokens {
    pub(super) fn of(tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.get_added_vocabulary().get_vocab().keys();
        let mut texts: Vec<Box<[u8]>> =
            added.filter(|text| !text.is_empty()).map(|text| text.as_bytes().into()).collect();
        texts.sort_unstable();
        let mut begins = Box::new([false; 256]);
        for text in &texts {
            begins[usize::from(text[0])] = true;
        }
        Self { begins, texts }
    }

    /// Returns whether an added token occurs in `text`, as a word or within one.
    pub(super) fn occur_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        if self.texts.is_empty() {
            return false;
        }
        bytes.iter().enumerate().any(|(at, &byte)| {
            self.begins[usize::from(byte)] && {
                let first = self.texts.partition_point(|text| text[0] < byte);
                let same = self.texts[first..].iter().take_while(|text| text[0] == byte);
                let rest = &bytes[at..];
                same.into_iter().any(|text| rest.starts_with(text))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::{AddedToken, models::wordlevel::WordLevel};

    use super::*;

    #[test]
    fn anywhere_in_a_text() {
        let mut tokenizer = Tokenizer::new(WordLevel::default());
        assert!(!AddedTokens::of(&tokenizer).occur_in("[MASK]"));
        let tokens = ["[MASK]", "[SEP]", "é"].map(|text| AddedToken::from(text, true));
        tokenizer.add_special_tokens(tokens).unwrap();
        let added = AddedTokens::of(&tokenizer);
        for (text, occurs) in [
            ("", false),
            ("[MAS", false),
            ("[[MASK]", true),
            ("a[SEP]b", true),
            ("[CLS] ê", false),
            ("caf\u{e9}", true),
        ] {
            assert_eq!(added.occur_in(text), occurs, "{text}");
        }
    }
}
