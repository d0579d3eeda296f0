//! Long sequences of token ids, in memory or in a file.

mod header;
#[cfg(feature = "text")]
mod of_tokenizer;
mod token_file;
mod writer;

use std::{ops::Range, sync::Arc};

pub use token_file::TokenFile;
pub use writer::TokenWriter;

use crate::{DataError, ReadError};

/// A long sequence of token ids.
#[derive(Debug, Clone)]
pub enum TokenSequence {
    /// In memory.
    Memory(Arc<[u32]>),
    /// In a file. The operating system caches what is read.
    File(Arc<TokenFile>),
}

impl TokenSequence {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(tokens) => tokens.len(),
            Self::File(file) => file.len(),
        }
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the tokens of a range.
    ///
    /// # Errors
    ///
    /// [`ReadError::TokenRange`] if the range reaches beyond the end, [`ReadError::TokenFile`] if the file holds an id
    /// in it that is outside the vocabulary.
    pub fn range(&self, range: Range<usize>) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Memory(tokens) => match tokens.get(range.clone()) {
                Some(tokens) => Ok(tokens.to_vec()),
                None => Err(ReadError::TokenRange { range, tokens: self.len() }.into()),
            },
            Self::File(file) => file.range(range),
        }
    }
}

impl From<Vec<u32>> for TokenSequence {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Memory(tokens.into())
    }
}

impl From<Arc<[u32]>> for TokenSequence {
    fn from(tokens: Arc<[u32]>) -> Self {
        Self::Memory(tokens)
    }
}

impl From<TokenFile> for TokenSequence {
    fn from(file: TokenFile) -> Self {
        Self::File(Arc::new(file))
    }
}
