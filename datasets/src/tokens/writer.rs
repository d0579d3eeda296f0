//! Writes a token file.

use std::{
    fs::{self, File},
    io::{BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use super::{
    TokenFile,
    header::{Header, Width},
};
use crate::{DataError, ReadError, TokenizerError};

/// Writes a token file, document by document, in constant memory.
///
/// The ids go into a temporary file, which [`finish`](Self::finish) renames: a token file is either complete or does
/// not exist. Dropping the writer before that removes the temporary file.
#[derive(Debug)]
pub struct TokenWriter {
    path: PathBuf,
    partial: PathBuf,
    /// `None` after `finish`.
    file: Option<BufWriter<File>>,
    header: Header,
    checksum: crc32fast::Hasher,
    /// The ids of a document, as bytes.
    bytes: Vec<u8>,
}

impl TokenWriter {
    /// Starts a file of ids below `vocab_size`. They take 2 bytes each if that is at most 65,536, otherwise 4.
    ///
    /// `tokenizer` is a hash of what made the ids, such as a tokenizer's settings. The file stores it, and
    /// [`TokenFile::tokenizer`] returns it, so that ids are not decoded by another tokenizer.
    ///
    /// # Errors
    ///
    /// [`ReadError::TokenFile`] if the path exists and is not a token file, [`DataError::Io`] if the file cannot be
    /// created.
    pub fn for_ids(
        path: impl AsRef<Path>,
        vocab_size: usize,
        tokenizer: [u8; 32],
    ) -> Result<Self, DataError> {
        let path = path.as_ref().to_owned();
        if path.symlink_metadata().is_ok() && !TokenFile::is_one(&path) {
            let reason = "a different file has this name; choose another name, or remove that file".into();
            return Err(ReadError::TokenFile { path, reason }.into());
        }
        let mut partial = path.clone().into_os_string();
        partial.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(partial);
        let header = Header {
            width: Width::of(vocab_size),
            tokens: 0,
            documents: 0,
            vocab_size: vocab_size as u64,
            tokenizer,
            checksum: 0,
        };
        let mut file = BufWriter::new(File::create(&partial).map_err(DataError::io(&partial))?);
        file.write_all(&[0; Header::BYTES]).map_err(DataError::io(&partial))?;
        Ok(Self { path, partial, file: Some(file), header, checksum: Default::default(), bytes: Vec::new() })
    }

    /// Adds the ids of a document.
    ///
    /// # Errors
    ///
    /// Those of [`part`](Self::part).
    pub fn document(&mut self, ids: &[u32]) -> Result<(), DataError> {
        self.part(ids)?;
        self.header.documents += 1;
        Ok(())
    }

    /// Adds the ids of part of a document. [`document`](Self::document) adds its last part later.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the ids cannot be written, and [`TokenizerError::UnknownId`] if one is outside the
    /// vocabulary.
    pub fn part(&mut self, ids: &[u32]) -> Result<(), DataError> {
        let vocab_size = self.header.vocab_size;
        if let Some(&id) = ids.iter().find(|&&id| u64::from(id) >= vocab_size) {
            return Err(TokenizerError::UnknownId { id, vocab_size: vocab_size as usize }.into());
        }
        self.bytes.clear();
        match self.header.width {
            Width::U16 => self.bytes.extend(ids.iter().flat_map(|&id| (id as u16).to_le_bytes())),
            Width::U32 => self.bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes())),
        }
        if let Some(file) = &mut self.file {
            file.write_all(&self.bytes).map_err(DataError::io(&self.partial))?;
        }
        self.checksum.update(&self.bytes);
        self.header.tokens += ids.len() as u64;
        Ok(())
    }

    /// Returns the number of documents written so far.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Returns the number of tokens written so far.
    pub fn tokens(&self) -> u64 {
        self.header.tokens
    }

    /// Writes the header and renames the file to its final path, replacing an older file.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be written or renamed.
    pub fn finish(mut self) -> Result<(), DataError> {
        self.header.checksum = self.checksum.clone().finalize();
        if let Some(mut file) = self.file.take() {
            let write = |file: &mut BufWriter<File>| {
                file.seek(SeekFrom::Start(0))?;
                file.write_all(&self.header.to_bytes())?;
                file.flush()?;
                file.get_ref().sync_all()
            };
            let written = write(&mut file).map_err(DataError::io(&self.partial));
            written
                .and_then(|()| fs::rename(&self.partial, &self.path).map_err(DataError::io(&self.path)))?;
        }
        Ok(())
    }
}

impl Drop for TokenWriter {
    fn drop(&mut self) {
        // After `finish`, the temporary file no longer exists.
        let _ = fs::remove_file(&self.partial);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TokenFile;

    #[test]
    fn an_unfinished_writer_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let mut writer = TokenWriter::for_ids(&path, 2, [0; 32]).unwrap();
        writer.document(&[0, 1]).unwrap();
        assert!(matches!(
            writer.document(&[2]).unwrap_err(),
            DataError::Tokenizer(TokenizerError::UnknownId { id: 2, vocab_size: 2 })
        ));
        drop(writer);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_a_token_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        for _ in 0..2 {
            TokenWriter::for_ids(&path, 2, [0; 32]).unwrap().finish().unwrap();
        }
        let text = folder.path().join("text");
        fs::write(&text, "to be").unwrap();
        for other in [&text, folder.path()] {
            let error = TokenWriter::for_ids(other, 2, [0; 32]).unwrap_err().to_string();
            assert!(error.contains("a different file has this name"), "{error}");
        }
        assert_eq!(fs::read_to_string(text).unwrap(), "to be");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn written_tokens_are_read_back(
            documents in prop::collection::vec(prop::collection::vec(0_u32..70_000, 0..50), 0..20),
            wide: bool,
        ) {
            let size = if wide { 70_001 } else { 8_192 };
            let documents: Vec<Vec<u32>> =
                documents.into_iter().map(|ids| ids.into_iter().map(|id| id % size).collect()).collect();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.tokens");
            let mut writer = TokenWriter::for_ids(&path, size as usize, [0; 32]).unwrap();
            for ids in &documents {
                writer.document(ids).unwrap();
            }
            writer.finish().unwrap();
            let file = TokenFile::open(&path).unwrap();
            prop_assert_eq!(file.range(0..file.len()).unwrap(), documents.concat());
            let width = if wide { 4 } else { 2 };
            prop_assert_eq!(fs::metadata(&path).unwrap().len() as usize, 128 + width * file.len());
            file.verify().unwrap();
        }
    }
}
