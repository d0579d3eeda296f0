//! Long sequences of token ids, in memory or in a file.

mod header;
mod positioned;
mod token_file;
mod writer;

use std::{ops::Range, sync::Arc};

pub use token_file::TokenFile;
pub use writer::TokenWriter;

use crate::DataError;

/// A long sequence of token ids.
#[derive(Debug, Clone)]
pub enum TokenSequence {
    /// In memory.
    Memory(Arc<[u32]>),
    /// In a file, of which the system keeps in memory what is read.
    File(Arc<TokenFile>),
}

impl TokenSequence {
    /// The number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Memory(tokens) => tokens.len(),
            Self::File(file) => file.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens of a range.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenRange`] if it reaches beyond the end, [`DataError::TokenFile`] if the file
    /// holds an id there that its vocabulary does not have.
    pub fn range(&self, range: Range<usize>) -> Result<Vec<u32>, DataError> {
        match self {
            Self::Memory(tokens) => match tokens.get(range.clone()) {
                Some(tokens) => Ok(tokens.to_vec()),
                None => Err(DataError::TokenRange { range, tokens: self.len() }),
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
