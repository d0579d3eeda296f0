//! Detects added tokens in a text.

use tokenizers::Tokenizer;

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
