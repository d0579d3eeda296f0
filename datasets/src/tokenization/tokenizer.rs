//! Text to token ids and back.

use std::{fs, path::Path};

use super::{
    SpecialTokens, bpe,
    characters::Characters,
    pieces::{on_all_cores, pieces},
    tokenizer_file::{self, guarded},
};
use crate::DataError;

/// Turns text into token ids, and ids into text.
///
/// Whichever way it was made, it is saved as an ordinary `tokenizer.json`, which any tool built on
/// the `tokenizers` library reads.
///
/// # Example
///
/// ```
/// use firebrick_datasets::Tokenizer;
///
/// let tokenizer = Tokenizer::characters("hello")?;
/// assert_eq!(tokenizer.vocab_size(), 4); // e, h, l, o
/// assert_eq!(tokenizer.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(tokenizer.decode(&[1, 3, 2, 0])?, "hole");
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The fast way, for a vocabulary of characters.
    characters: Option<Characters>,
    vocab_size: usize,
    special: SpecialTokens,
}

impl Tokenizer {
    /// One token for each distinct character of `text`, in the order of their code points.
    ///
    /// # Errors
    ///
    /// [`DataError::EmptyText`] if there is no character.
    pub fn characters(text: &str) -> Result<Self, DataError> {
        not_empty(text)?;
        Ok(Self::new(Characters::tokenizer(text)?))
    }

    /// Byte-level BPE, trained on `text`: it starts from the 256 bytes, so it encodes any text, and
    /// adds the most frequent pairs until there are `vocab_size` tokens.
    ///
    /// The same text gives the same tokenizer. If `text` is too short to repeat that many pairs,
    /// the vocabulary stays smaller. Tokens do not reach across words, nor across the cuts that
    /// [`encode`](Self::encode) makes.
    ///
    /// # Errors
    ///
    /// [`DataError::VocabularySize`] if `vocab_size` is below 257, [`DataError::EmptyText`] if
    /// there is no text.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_datasets::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::train_bpe("the cat, the dog, the end", 258)?;
    /// assert_eq!(tokenizer.encode("the")?.len(), 1);
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("新しい")?)?, "新しい");
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    pub fn train_bpe(text: &str, vocab_size: usize) -> Result<Self, DataError> {
        not_empty(text)?;
        Ok(Self::new(bpe::train(text, vocab_size)?))
    }

    /// Reads a `tokenizer.json`.
    ///
    /// Its truncation, padding and dropout are turned off: they would cut the text short, or make
    /// its encoding depend on chance.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be read, [`DataError::TokenizerFile`] if it is broken.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DataError> {
        Ok(Self::new(tokenizer_file::read(path.as_ref())?))
    }

    fn new(inner: tokenizers::Tokenizer) -> Self {
        let ids = inner.get_vocab(true).into_values();
        Self {
            vocab_size: ids.max().map_or(0, |largest| largest as usize + 1),
            characters: Characters::of(&inner),
            special: SpecialTokens::default(),
            inner,
        }
    }

    /// The ids of `text`, without adding special tokens at its ends.
    ///
    /// A text of more than 64 KiB is first cut into pieces, each ending with the first newline
    /// past 64 KiB, and the pieces are encoded on all cores. The cuts are part of what this
    /// function means: they are the same on every machine, and so are the ids. With a vocabulary
    /// of characters they change nothing.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownCharacter`] if a vocabulary of characters lacks one,
    /// [`DataError::TokenizerFailed`] if a tokenizer from a file cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        if let Some(characters) = &self.characters {
            return characters.encode(text);
        }
        let pieces = pieces(text);
        let ids = on_all_cores(&pieces, |index, &piece| {
            let encode = || Ok(self.inner.encode_fast(piece, false)?.get_ids().to_vec());
            guarded(encode).map_err(|reason| {
                let start: usize = pieces[..index].iter().map(|piece| piece.len()).sum();
                DataError::tokenizer(format!("encode the text from byte {start} on"))(reason)
            })
        })?;
        Ok(ids.concat())
    }

    /// The text of `ids`.
    ///
    /// With BPE, ids that end within a character give a `U+FFFD` (�) in its place.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownId`] if an id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        let unknown = |id: &&u32| self.inner.id_to_token(**id).is_none();
        if let Some(&id) = ids.iter().find(unknown) {
            return Err(DataError::UnknownId { id, vocab_size: self.vocab_size });
        }
        guarded(|| self.inner.decode(ids, false)).map_err(DataError::tokenizer("decode the ids"))
    }

    /// One more than the largest id: the rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The tokens that have a role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// What does the work.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Saves as a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let path = path.as_ref();
        let json =
            guarded(|| self.inner.to_string(true)).map_err(DataError::tokenizer("write itself as JSON"))?;
        fs::write(path, json).map_err(DataError::io(path))
    }
}

fn not_empty(text: &str) -> Result<(), DataError> {
    if text.is_empty() {
        return Err(DataError::EmptyText { place: "the text to build a vocabulary from".to_owned() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of several pieces.
    fn long_text() -> String {
        (0..20_000).map(|line| format!("line {line} and its neighbour {}\n", line + 1)).collect()
    }

    /// Writes `json` to a file and reads it as a tokenizer.
    fn read(json: &str) -> Result<Tokenizer, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json).unwrap();
        Tokenizer::from_file(file.path())
    }

    fn saved(tokenizer: &Tokenizer) -> String {
        let file = tempfile::NamedTempFile::new().unwrap();
        tokenizer.save(file.path()).unwrap();
        fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn characters_survive_a_file() {
        let tokenizer = read(&saved(&Tokenizer::characters("añ \n\"").unwrap())).unwrap();
        assert!(tokenizer.characters.is_some());
        let ids = tokenizer.encode("a \nñ\"").unwrap();
        assert_eq!(ids, [3, 1, 0, 4, 2]);
        assert_eq!(tokenizer.decode(&ids).unwrap(), "a \nñ\"");
    }

    #[test]
    fn bpe_survives_a_file() {
        let text = long_text();
        let trained = Tokenizer::train_bpe(&text, 300).unwrap();
        assert_eq!(trained.vocab_size(), 300);
        let read = read(&saved(&trained)).unwrap();
        let ids = trained.encode(&text).unwrap();
        assert!(ids.len() < text.len() / 2);
        assert_eq!(read.encode(&text).unwrap(), ids);
        assert_eq!(read.decode(&ids).unwrap(), text);
    }

    #[test]
    fn pieces_are_encoded_on_their_own_and_in_order() {
        let text = long_text();
        let tokenizer = Tokenizer::train_bpe(&text, 300).unwrap();
        let pieces = pieces(&text);
        assert!(pieces.len() > 4);
        let each = pieces.iter().map(|piece| tokenizer.encode(piece).unwrap());
        let each: Vec<u32> = each.flatten().collect();
        assert_eq!(tokenizer.encode(&text).unwrap(), each);
    }

    #[test]
    fn no_text_no_vocabulary() {
        for result in [Tokenizer::characters(""), Tokenizer::train_bpe("", 300)] {
            assert!(matches!(result.unwrap_err(), DataError::EmptyText { .. }));
        }
    }

    #[test]
    fn unknown_ids_and_words() {
        let tokenizer = read(
            r#"{"version": "1.0",
                "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "?"}}"#,
        )
        .unwrap();
        for id in [1, 3, u32::MAX] {
            let error = tokenizer.decode(&[0, id]).unwrap_err();
            assert!(matches!(error, DataError::UnknownId { vocab_size: 3, .. }));
        }
        let error = tokenizer.encode("c").unwrap_err();
        assert!(matches!(error, DataError::TokenizerFailed { .. }));
    }
}
