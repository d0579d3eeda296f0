//! Token files of a tokenizer.

use std::path::Path;

use super::{TokenFile, TokenWriter};
use crate::{DataError, Tokenizer};

impl TokenWriter {
    /// Starts a file of this tokenizer's ids. They take 2 bytes each if the vocabulary has at most 65,536 entries,
    /// otherwise 4.
    ///
    /// ```
    /// use firebrick_datasets::{TokenFile, TokenWriter, Tokenizer};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("corpus.tokens");
    /// let tokenizer = Tokenizer::characters("hello")?;
    /// let mut writer = TokenWriter::create(&path, &tokenizer)?;
    /// writer.document(&tokenizer.encode("hole")?)?;
    /// writer.finish()?;
    ///
    /// let file = TokenFile::open(&path)?;
    /// file.require_tokenizer(&tokenizer)?;
    /// assert_eq!(file.range(1..3)?, [3, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`for_ids`](Self::for_ids), and
    /// [`TokenizerError::TokenizerFailed`](crate::TokenizerError::TokenizerFailed) if the tokenizer cannot be written
    /// as JSON.
    pub fn create(path: impl AsRef<Path>, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        Self::for_ids(path, tokenizer.vocab_size(), tokenizer.fingerprint()?)
    }
}

impl TokenFile {
    /// Checks that the tokenizer is the one that made the ids.
    ///
    /// # Errors
    ///
    /// [`ReadError::TokenFile`](crate::ReadError::TokenFile) if it is another tokenizer.
    pub fn require_tokenizer(&self, tokenizer: &Tokenizer) -> Result<(), DataError> {
        match tokenizer.fingerprint()? == self.tokenizer() {
            true => Ok(()),
            false => Err(self.failed(format!(
                "its ids come from a different tokenizer, with a vocabulary of {}; use that one, or tokenize the \
                 text again",
                self.vocab_size()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let tokenizer = Tokenizer::characters("abc").unwrap();
        TokenWriter::create(&path, &tokenizer).unwrap().finish().unwrap();
        let file = TokenFile::open(&path).unwrap();
        assert_eq!(file.vocab_size(), 3);
        file.require_tokenizer(&tokenizer).unwrap();
        let other = Tokenizer::characters("abd").unwrap();
        assert!(file.require_tokenizer(&other).unwrap_err().to_string().contains("a different tokenizer"));
    }
}
