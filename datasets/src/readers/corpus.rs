//! Reads text from a file or a folder.

use std::path::Path;

use super::{Files, unpacked::Unpacked};
use crate::{DataError, ReadError, SampleError};

/// The extensions that are read from a folder by default.
const DEFAULT_EXTENSIONS: [&str; 2] = ["txt", "md"];

/// A training text.
///
/// # Example
///
/// ```
/// use firebrick_datasets::Corpus;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("b.txt"), "second")?;
/// std::fs::write(folder.join("a.md"), "first")?;
/// std::fs::write(folder.join("c.png"), [0x89])?;
///
/// let corpus = Corpus::read(folder, &[])?;
/// assert_eq!(corpus.text(), "first\nsecond");
///
/// let (train, valid) = corpus.split(0.25)?;
/// assert_eq!((train.as_str(), valid.as_str()), ("first\nsec", "ond"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    text: String,
}

impl Corpus {
    /// The number of bytes of text that compressed files may unpack to by default: 1 GiB.
    pub const MOST_UNPACKED: u64 = 1 << 30;

    /// Reads a UTF-8 text file, all documents in a folder and its subfolders, or all files that match a pattern such as
    /// `data/*.txt`.
    ///
    /// A file is read regardless of its name. Files compressed with gzip or zstd are decompressed, and a byte order
    /// mark is removed. From a folder, only files with one of the `extensions` are read, in the order of their names.
    /// Extensions have no dot and ignore case, a following `.gz` or `.zst` is allowed, and if there are none, `txt` and
    /// `md` are used. Documents are joined by one newline. A folder's documents exclude:
    ///
    /// - hidden files and folders, whose names begin with a dot
    /// - folders that contain a `CACHEDIR.TAG`, such as cargo's `target`
    /// - symbolic links
    ///
    /// The path itself is always read, even if it is hidden or a link. The whole text is held in memory. Compressed
    /// files, whose size does not tell how long their text is, may unpack to 1 GiB;
    /// [`read_all`](Self::read_all) sets another bound.
    ///
    /// # Errors
    ///
    /// - [`DataError::Io`] if the path, or anything to read below it, cannot be read
    /// - [`ReadError::NotUtf8`] or [`ReadError::File`] if a file is not text, or a compressed file is damaged
    /// - [`ReadError::UnpackedText`] if compressed files unpack to more than the bound
    /// - [`ReadError::NoFiles`] if a folder has no file with one of the extensions
    /// - [`ReadError::Pattern`] if nothing matches a pattern
    /// - [`DataError::EmptyText`] if the text is only white space
    pub fn read(path: impl AsRef<Path>, extensions: &[String]) -> Result<Self, DataError> {
        Ok(Self::read_all(&[path], extensions, Self::MOST_UNPACKED, |_| ())?.remove(0))
    }

    /// Reads the text of each path as [`read`](Self::read) does. The compressed files of all paths together may unpack to
    /// `most` bytes. `progress` is called now and then with the number of bytes of text so far, of all files.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn read_all<P: AsRef<Path>>(
        paths: &[P],
        extensions: &[String],
        most: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Vec<Self>, DataError> {
        let mut extensions: Vec<&str> = extensions.iter().map(String::as_str).collect();
        if extensions.is_empty() {
            extensions.extend(DEFAULT_EXTENSIONS);
        }
        let (mut corpora, mut before, mut left) = (Vec::with_capacity(paths.len()), 0, most);
        for path in paths {
            let path = path.as_ref();
            let files = Files::find([path], &extensions)?;
            let mut documents = Vec::new();
            for file in files.paths() {
                let unpacked = Unpacked::open(file)?;
                let is_packed = unpacked.is_packed();
                let bound = if is_packed { left } else { u64::MAX };
                let Some(text) = unpacked.read_text(bound, |bytes| progress(before + bytes))? else {
                    return Err(ReadError::UnpackedText { path: file.to_path_buf(), most }.into());
                };
                before += text.len() as u64;
                left -= if is_packed { text.len() as u64 } else { 0 };
                documents.push(text);
            }
            let text = if documents.len() == 1 { documents.remove(0) } else { documents.join("\n") };
            if text.trim().is_empty() {
                return Err(DataError::EmptyText { place: format!("`{}`", path.display()) });
            }
            corpora.push(Self { text });
        }
        Ok(corpora)
    }

    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the whole text without copying it.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Splits the text into a training text and a validation text.
    ///
    /// The last `valid_fraction` of the characters, rounded down, is for validation: with 0, there is no validation
    /// text. Some training text always remains.
    ///
    /// # Errors
    ///
    /// [`SampleError::SplitFraction`] unless `valid_fraction` is at least 0 and below 1.
    pub fn split(mut self, valid_fraction: f64) -> Result<(String, String), DataError> {
        if !(0.0..1.0).contains(&valid_fraction) {
            return Err(SampleError::SplitFraction { fraction: valid_fraction }.into());
        }
        let characters = self.text.chars().count();
        let valid = (characters as f64 * valid_fraction) as usize;
        // Rounding may make the product equal to all of them.
        let valid = valid.min(characters.saturating_sub(1));
        let boundary = self
            .text
            .char_indices()
            .nth(characters - valid)
            .map_or(self.text.len(), |(boundary, _)| boundary);
        let valid = self.text.split_off(boundary);
        Ok((self.text, valid))
    }
}

impl From<String> for Corpus {
    /// Takes a text that is already in memory.
    fn from(text: String) -> Self {
        Self { text }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documents_are_joined() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("b.md"), "second\n").unwrap();
        fs::write(folder.path().join("a.txt"), "first\n").unwrap();
        let corpus = Corpus::read(folder.path(), &[]).unwrap();
        assert_eq!(corpus.text(), "first\n\nsecond\n");
        let file = Corpus::read(folder.path().join("b.md"), &["rs".into()]).unwrap();
        assert_eq!(file.text(), "second\n");
    }

    #[test]
    fn unreadable_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.bin"), b"ok\xff").unwrap();
        fs::write(folder.path().join("empty"), " \n").unwrap();
        let read = |name: &str| Corpus::read(folder.path().join(name), &[]).unwrap_err();
        assert!(matches!(read("no"), DataError::Io { .. }));
        assert!(matches!(read("a.bin"), DataError::Read(ReadError::NotUtf8 { offset: 2, .. })));
        assert!(matches!(read("empty"), DataError::EmptyText { .. }));

        let error = Corpus::read(folder.path(), &["rs".into()]).unwrap_err();
        assert!(
            matches!(error, DataError::Read(ReadError::NoFiles { extensions, .. }) if extensions == ["rs"])
        );
    }

    #[test]
    fn packed_files_and_patterns() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.txt.zst"), zstd::encode_all(b"first".as_slice(), 1).unwrap())
            .unwrap();
        fs::write(folder.path().join("b.txt"), "\u{feff}second").unwrap();
        fs::write(folder.path().join("c.rs"), "third").unwrap();
        assert_eq!(Corpus::read(folder.path(), &[]).unwrap().text(), "first\nsecond");
        assert_eq!(Corpus::read(folder.path().join("[bc].*"), &[]).unwrap().text(), "second\nthird");
    }

    /// The bound is for all compressed files together; a plain file tells its size.
    #[test]
    fn compressed_files_beyond_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.txt.zst", "c.txt.zst"] {
            fs::write(folder.path().join(name), zstd::encode_all([b'a'; 60].as_slice(), 1).unwrap()).unwrap();
        }
        fs::write(folder.path().join("b.txt"), "b".repeat(200)).unwrap();
        let read = |most| {
            let mut seen = Vec::new();
            (Corpus::read_all(&[folder.path()], &[], most, |bytes| seen.push(bytes)), seen)
        };
        let (all, seen) = read(120);
        assert_eq!((all.unwrap().remove(0).into_text().len(), seen), (322, vec![60, 260, 320]));
        // Files that are named one by one share the bound, too.
        let paths = ["a.txt.zst", "c.txt.zst"].map(|name| folder.path().join(name));
        assert_eq!(Corpus::read_all(&paths, &[], 120, |_| ()).unwrap().len(), 2);
        assert!(Corpus::read_all(&paths, &[], 119, |_| ()).is_err());
        let error = read(119).0.unwrap_err();
        assert!(matches!(error, DataError::Read(ReadError::UnpackedText { most: 119, .. })), "{error:?}");
        let error = error.to_string();
        assert!(error.contains("c.txt.zst") && error.contains("119 bytes"), "{error}");
        assert!(error.contains("`data.stream`") && error.contains("`data.max_unpacked`"), "{error}");
    }

    #[test]
    fn fractions_out_of_range() {
        for fraction in [-0.1, 1.0, f64::NAN] {
            let error = Corpus::from("ab".to_owned()).split(fraction).unwrap_err();
            assert!(matches!(error, DataError::Sample(SampleError::SplitFraction { .. })));
        }
    }

    proptest! {
        #[test]
        fn a_split_loses_nothing(text: String, fraction in 0.0..1.0) {
            let (train, valid) = Corpus::from(text.clone()).split(fraction).unwrap();
            let characters = text.chars().count() as f64;
            prop_assert_eq!(valid.chars().count(), (characters * fraction) as usize);
            prop_assert_eq!(train + &valid, text);
        }
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_device_is_an_error() {
        let error = Corpus::read("/dev/zero", &[]).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
