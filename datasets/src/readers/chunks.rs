//! Cuts a text file of any size into independently encoded pieces.

use std::{io::Read, path::Path, sync::Arc};

use super::unpacked::Unpacked;
use crate::{DataError, ReadError, tokenization::final_pieces};

/// The number of bytes that are read before pieces are cut off.
const BUFFER: u64 = 4 << 20;

/// Yields the text of a file, compressed or not, in chunks of a few MiB.
///
/// Chunks end where [`Tokenizer::encode`](crate::Tokenizer::encode) cuts a text, so encoding them one by one gives the
/// ids of the whole text.
///
/// # Example
///
/// ```
/// use firebrick_datasets::TextChunks;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.txt");
/// std::fs::write(&path, "first\nsecond")?;
/// let chunks: Result<String, _> = TextChunks::open(&path)?.collect();
/// assert_eq!(chunks?, "first\nsecond");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextChunks {
    text: Unpacked,
    buffer: Vec<u8>,
    /// The number of bytes of text before the buffer, without the byte order mark.
    before: usize,
    ended: bool,
}

impl TextChunks {
    /// Opens a file.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be opened, [`ReadError::File`] if it is not text. An item is an error if
    /// reading fails, or [`ReadError::NotUtf8`]; nothing follows it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path: Arc<Path> = path.as_ref().into();
        Ok(Self { text: Unpacked::open(&path)?, buffer: Vec::new(), before: 0, ended: false })
    }

    fn chunk(&mut self) -> Result<Option<String>, DataError> {
        while !self.ended {
            let path = self.text.path().clone();
            let read = self.text.by_ref().take(BUFFER).read_to_end(&mut self.buffer);
            self.ended = read.map_err(DataError::io(&path))? == 0;
            let valid = match std::str::from_utf8(&self.buffer) {
                Ok(text) => text,
                // The next read completes a character that the buffer cuts off.
                Err(error) if error.error_len().is_none() && !self.ended => {
                    std::str::from_utf8(&self.buffer[..error.valid_up_to()]).unwrap_or_default()
                }
                Err(error) => {
                    let offset = self.text.mark() + self.before + error.valid_up_to();
                    return Err(ReadError::NotUtf8 { path: path.to_path_buf(), offset }.into());
                }
            };
            let end = if self.ended { valid.len() } else { final_pieces(valid) };
            if end > 0 {
                let chunk = valid[..end].to_owned();
                self.buffer.drain(..end);
                self.before += end;
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }
}

impl Iterator for TextChunks {
    type Item = Result<String, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.chunk();
        self.ended |= chunk.is_err();
        chunk.transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;
    use crate::Tokenizer;

    #[test]
    fn chunks_encode_like_the_whole_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        // Lines of various lengths, and a long stretch without newlines or spaces.
        let lines = (0..60_000).map(|line| "wörd ".repeat(line % 40) + "\n");
        let text: String = lines.chain(["é".repeat(300_000)]).chain(["\nend".to_owned()]).collect();
        assert!(text.len() as u64 > BUFFER);
        fs::write(&path, &text).unwrap();
        let tokenizer = Tokenizer::train_bpe("wörd wörd\nend end", 260).unwrap();
        let chunks: Vec<String> = TextChunks::open(&path).unwrap().map(Result::unwrap).collect();
        assert!(chunks.len() > 1);
        assert_eq!(chunks.concat(), text);
        let ids: Vec<u32> = chunks.iter().flat_map(|chunk| tokenizer.encode(chunk).unwrap()).collect();
        assert_eq!(ids, tokenizer.encode(&text).unwrap());
    }

    #[test]
    fn text_that_is_not_utf_8() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all("é".as_bytes()).unwrap();
        file.write_all(b"\xc3").unwrap();
        let chunks: Vec<_> = TextChunks::open(&path).unwrap().collect();
        assert!(matches!(chunks[..], [Err(DataError::Read(ReadError::NotUtf8 { offset: 2, .. }))]));
        // The offset in the file includes the byte order mark.
        fs::write(&path, b"\xef\xbb\xbfab\xff").unwrap();
        let chunks: Vec<_> = TextChunks::open(&path).unwrap().collect();
        assert!(
            matches!(chunks[..], [Err(DataError::Read(ReadError::NotUtf8 { offset: 5, .. }))]),
            "{chunks:?}"
        );
        assert!(TextChunks::open(folder.path().join("no")).is_err());
        fs::write(&path, "").unwrap();
        assert_eq!(TextChunks::open(&path).unwrap().count(), 0);
    }
}
