//! A character vocabulary with a fast encoder.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use tokenizers::{
    ModelWrapper, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer,
    decoders::fuse::Fuse,
    models::wordlevel::WordLevel,
    pre_tokenizers::split::{Split, SplitPattern},
};

use crate::{DataError, TokenizerError};

/// Any single character, including newlines. Unlike `(?s).`, it has the same meaning in every engine that reads a
/// `tokenizer.json`.
const ANY_CHARACTER: &str = r"[\s\S]";

/// The name of the unknown token, which is not in the vocabulary, so an unknown character is an error. It is longer
/// than one character, so it cannot collide with one.
const UNKNOWN: &str = "<unk>";

/// The ids of single characters.
///
/// The pipeline of the `tokenizers` crate gives the same ids but takes about forty times as long.
#[derive(Debug, Clone)]
pub(crate) struct Characters {
    ids: HashMap<char, u32>,
}

impl Characters {
    /// Creates an ordinary tokenizer whose vocabulary is the sorted distinct characters of `text`.
    pub(crate) fn tokenizer(text: &str) -> Result<Tokenizer, DataError> {
        let characters: BTreeSet<char> = text.chars().collect();
        let vocabulary = (0..).zip(characters).map(|(id, character)| (character.to_string(), id)).collect();
        let model = WordLevel::builder()
            .vocab(vocabulary)
            .unk_token(UNKNOWN.to_owned())
            .build()
            .map_err(DataError::tokenizer("list the characters"))?;
        let pattern = SplitPattern::Regex(ANY_CHARACTER.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
            .map_err(DataError::tokenizer("split a text into characters"))?;

        let mut tokenizer = Tokenizer::new(model);
        tokenizer.with_pre_tokenizer(Some(split)).with_decoder(Some(Fuse::new()));
        Ok(tokenizer)
    }

    /// Returns the table of a tokenizer made by [`Characters::tokenizer`], also after saving and loading, or `None` for
    /// any other tokenizer.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let ModelWrapper::WordLevel(model) = tokenizer.get_model() else {
            return None;
        };
        let Some(PreTokenizerWrapper::Split(split)) = tokenizer.get_pre_tokenizer() else {
            return None;
        };
        let splits_characters = split.pattern == SplitPattern::Regex(ANY_CHARACTER.to_owned())
            && split.behavior == SplitDelimiterBehavior::Isolated
            && !split.invert;
        let does_more = tokenizer.get_normalizer().is_some()
            || tokenizer.get_post_processor().is_some()
            || !tokenizer.get_added_vocabulary().is_empty();
        if !splits_characters || does_more || model.unk_token != UNKNOWN {
            return None;
        }
        let ids = tokenizer
            .get_vocab(false)
            .into_iter()
            .map(|(token, id)| {
                let mut characters = token.chars();
                let character = characters.next()?;
                characters.next().is_none().then_some((character, id))
            })
            .collect::<Option<_>>()?;
        Some(Self { ids })
    }

    /// Returns the id of each character. `origin` is the file of the vocabulary, if it has one.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownCharacter`] for the first character that is not in the vocabulary.
    pub(crate) fn encode(&self, text: &str, origin: Option<&Path>) -> Result<Vec<u32>, DataError> {
        let id = |(offset, character)| {
            self.ids.get(&character).copied().ok_or_else(|| unknown(character, &text[..offset], origin))
        };
        text.char_indices().map(id).collect()
    }

    /// Returns the error of the first character in `texts` that a vocabulary of single characters lacks; `None` if the
    /// vocabulary is another, or has them all. The `tokenizers` crate says only that the text is not known.
    pub(crate) fn missing<'a>(
        tokenizer: &Tokenizer,
        texts: impl IntoIterator<Item = &'a str>,
        origin: Option<&Path>,
    ) -> Option<DataError> {
        let Some(PreTokenizerWrapper::Split(split)) = tokenizer.get_pre_tokenizer() else { return None };
        let reads_characters = split.pattern == SplitPattern::Regex(ANY_CHARACTER.to_owned());
        if !reads_characters || tokenizer.get_normalizer().is_some() {
            return None;
        }
        texts.into_iter().find_map(|text| {
            let lacks =
                |(_, character): &(usize, char)| tokenizer.token_to_id(&character.to_string()).is_none();
            let (offset, character) = text.char_indices().find(lacks)?;
            Some(unknown(character, &text[..offset], origin))
        })
    }
}

/// Returns the error of a character that the vocabulary lacks, after the text `before` it.
fn unknown(character: char, before: &str, origin: Option<&Path>) -> DataError {
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    DataError::Tokenizer(TokenizerError::UnknownCharacter {
        character,
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        origin: origin.map(Path::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_follow_the_order_of_characters() {
        let tokenizer = Characters::tokenizer("banana\n").unwrap();
        let characters = Characters::of(&tokenizer).unwrap();
        assert_eq!(characters.encode("\nabn", None).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn an_unknown_character_is_placed() {
        let tokenizer = Characters::tokenizer("é\nb").unwrap();
        let characters = Characters::of(&tokenizer).unwrap();
        let error = characters.encode("b\nééx", Some(Path::new("tokenizer.json"))).unwrap_err();
        assert!(matches!(
            error,
            DataError::Tokenizer(TokenizerError::UnknownCharacter { character: 'x', line: 2, column: 3, .. })
        ));
        assert!(error.to_string().contains("'x' is not in the vocabulary of tokenizer.json"), "{error}");
        assert!(tokenizer.encode_fast("x", false).is_err());
    }

    #[test]
    fn only_character_tokenizers_have_a_table() {
        let mut more = Characters::tokenizer("ab").unwrap();
        more.with_normalizer(Some(tokenizers::normalizers::Lowercase)).unwrap();
        assert!(Characters::of(&more).is_none());

        let mut other = Characters::tokenizer("ab").unwrap();
        other.with_model(tokenizers::models::bpe::BPE::default());
        assert!(Characters::of(&other).is_none());
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_the_pipeline(text in "(?s).{1,40}") {
            let tokenizer = Characters::tokenizer(&text).unwrap();
            let fast = Characters::of(&tokenizer).unwrap().encode(&text, None).unwrap();
            let slow = tokenizer.encode_fast(text.as_str(), false).unwrap();
            prop_assert_eq!(fast, slow.get_ids());
        }
    }
}
