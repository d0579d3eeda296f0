//! Finds the files of a data set: by name, by pattern, or in a folder.

use std::{
    ffi::OsStr,
    fs::{self, DirEntry},
    path::{Path, PathBuf},
    sync::Arc,
};

use glob::{MatchOptions, glob_with};

use crate::{DataError, ReadError};

/// The files that a reader reads, each one a part.
///
/// # Example
///
/// ```
/// use firebrick_datasets::Files;
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("b.jsonl.gz"), "")?;
/// std::fs::write(folder.join("a.jsonl"), "")?;
/// std::fs::write(folder.join("notes.txt"), "")?;
///
/// let files = Files::find([folder], &["jsonl"])?;
/// assert_eq!(files.paths()[0].file_name().unwrap(), "a.jsonl");
/// assert_eq!(files.paths().len(), 2);
///
/// let files = Files::find([folder.join("*.txt")], &["jsonl"])?;
/// assert_eq!(files.paths().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    paths: Vec<Arc<Path>>,
}

impl Files {
    /// Finds the files for these paths, in the order of the paths.
    ///
    /// Each path is one of these:
    ///
    /// - a file, regardless of its name
    /// - a folder: all files in it and its subfolders with one of the `extensions`, in the order of their names.
    ///   Extensions have no dot and ignore case, and a following `.gz` or `.zst` is ignored: `a.jsonl.gz` has the
    ///   extension `jsonl`. Hidden files and folders, folders that contain a `CACHEDIR.TAG`, and symbolic links are
    ///   skipped
    /// - a pattern with `*`, `?`, `[a-z]` or `**`: all files that match, in the order of their names. Hidden files
    ///   match only if the pattern includes their dot
    ///
    /// A file that is found twice is read twice.
    ///
    /// # Errors
    ///
    /// - [`DataError::Io`] if a path or a folder cannot be read
    /// - [`ReadError::NoFiles`] if a folder has no file with one of the extensions
    /// - [`ReadError::Pattern`] if nothing matches a pattern, or it is invalid
    pub fn find<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        extensions: &[&str],
    ) -> Result<Self, DataError> {
        let mut found = Vec::new();
        for path in paths {
            add(path.as_ref(), extensions, &mut found)?;
        }
        Ok(found.into())
    }

    /// Returns the paths of the files.
    pub fn paths(&self) -> &[Arc<Path>] {
        &self.paths
    }

    /// Returns the file of a part.
    pub(super) fn part(&self, part: usize) -> Result<&Arc<Path>, DataError> {
        self.paths.get(part).ok_or(DataError::Read(ReadError::NoPart { part, parts: self.paths.len() }))
    }
}

/// Takes these files as they are, without searching.
impl From<Vec<PathBuf>> for Files {
    fn from(paths: Vec<PathBuf>) -> Self {
        Self { paths: paths.into_iter().map(Arc::from).collect() }
    }
}

/// Takes a single file.
impl From<&Path> for Files {
    fn from(path: &Path) -> Self {
        Self { paths: vec![path.into()] }
    }
}

/// Takes a single file.
impl From<PathBuf> for Files {
    fn from(path: PathBuf) -> Self {
        Self { paths: vec![path.into()] }
    }
}

fn add(path: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let missing = match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => {
            let files = documents(path, extensions)?;
            if files.is_empty() {
                let extensions = extensions.iter().map(|&one| one.to_owned()).collect();
                return Err(ReadError::NoFiles { path: path.to_owned(), extensions }.into());
            }
            found.extend(files);
            return Ok(());
        }
        Ok(_) => {
            found.push(path.to_owned());
            return Ok(());
        }
        Err(error) => error,
    };
    // Treats only missing paths as patterns, since file names may contain brackets.
    match path.to_str() {
        Some(pattern) if pattern.contains(['*', '?', '[']) => add_matches(pattern, found),
        _ => Err(DataError::io(path)(missing)),
    }
}

fn add_matches(pattern: &str, found: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let refused =
        |reason: String| DataError::Read(ReadError::Pattern { pattern: pattern.to_owned(), reason });
    let options = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    let before = found.len();
    for path in glob_with(pattern, options).map_err(|error| refused(error.to_string()))? {
        let path = path.map_err(|error| {
            let place = error.path().to_owned();
            DataError::io(&place)(error.into())
        })?;
        if !path.is_dir() {
            found.push(path);
        }
    }
    if found.len() == before { Err(refused("no file matches it".into())) } else { Ok(()) }
}

/// The extensions of compressed files, which do not describe their content.
const PACKED: [&str; 2] = ["gz", "zst"];

/// Returns the extension of a file in lower case, without that of its compression.
pub(super) fn extension(path: &Path) -> Option<String> {
    let of = |path: &Path| path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    let last = of(path)?;
    if PACKED.contains(&last.as_str()) { of(Path::new(path.file_stem()?)) } else { Some(last) }
}

/// The file that marks a folder as a cache, such as cargo's `target` (<https://bford.info/cachedir/>).
const CACHE_TAG: &str = "CACHEDIR.TAG";

/// Returns the files below `folder` with one of the extensions, in the order of their names.
///
/// [`Files::find`](crate::Files::find) lists what is skipped.
pub(crate) fn documents(folder: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    add_documents(folder, extensions, &mut files)?;
    Ok(files)
}

fn add_documents(folder: &Path, extensions: &[&str], files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let mut entries: Vec<DirEntry> =
        fs::read_dir(folder).and_then(Iterator::collect).map_err(DataError::io(folder))?;
    // The operating system lists them in arbitrary order.
    entries.sort_by_key(DirEntry::file_name);

    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        let path = entry.path();
        // The entry's own type: unlike the metadata of its path, it does not follow links.
        let kind = entry.file_type().map_err(DataError::io(&path))?;
        if kind.is_dir() && !path.join(CACHE_TAG).exists() {
            add_documents(&path, extensions, files)?;
        } else if kind.is_file() && has_extension(&path, extensions) {
            files.push(path);
        }
    }
    Ok(())
}

fn has_extension(path: &Path, extensions: &[&str]) -> bool {
    extension(path)
        .is_some_and(|of| extensions.iter().any(|one| of.eq_ignore_ascii_case(one.trim_start_matches('.'))))
}

#[cfg(test)]
mod tests {
    use super::{extension, *};

    /// Returns the files found in a folder with these files, relative to it.
    fn find(files: &[&str], paths: &[&str], extensions: &[&str]) -> Result<Vec<String>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let found = Files::find(paths.iter().map(|path| folder.path().join(path)), extensions)?;
        let name = |path: &Arc<Path>| path.strip_prefix(folder.path()).unwrap().display().to_string();
        Ok(found.paths().iter().map(name).collect())
    }

    #[test]
    fn files_folders_and_patterns() {
        let files = ["b.csv", "a.csv", "x.txt", ".h.csv", "in/c.csv.gz", "in/d.csv", "[1].csv"];
        let found = |path: &str| find(&files, &[path], &["csv"]).unwrap();
        assert_eq!(found("x.txt"), ["x.txt"]);
        assert_eq!(found(""), ["[1].csv", "a.csv", "b.csv", "in/c.csv.gz", "in/d.csv"]);
        assert_eq!(found("*.csv"), ["[1].csv", "a.csv", "b.csv"]);
        assert_eq!(found("[ab].csv"), ["a.csv", "b.csv"]);
        // An existing file of that name takes precedence.
        assert_eq!(found("[1].csv"), ["[1].csv"]);
        assert_eq!(found("**/d.*"), ["in/d.csv"]);
        assert_eq!(found("*"), ["[1].csv", "a.csv", "b.csv", "x.txt"]);
        assert_eq!(find(&files, &["b.csv", "*.txt", "in"], &["csv"]).unwrap().len(), 4);
    }

    #[test]
    fn missing_files() {
        let error = |path: &str| find(&["a.csv"], &[path], &["txt"]).unwrap_err();
        assert!(matches!(error("b.csv"), DataError::Io { .. }));
        assert!(matches!(error(""), DataError::Read(ReadError::NoFiles { .. })));
        for pattern in ["*.txt", "[a", "a***b"] {
            let error = error(pattern);
            assert!(matches!(error, DataError::Read(ReadError::Pattern { .. })), "{error:?}");
            assert!(error.to_string().contains(pattern), "{error}");
        }
    }

    #[test]
    fn extensions_without_packing() {
        let of = |path: &str| extension(Path::new(path));
        for path in ["a.b.TXT", "a.txt.gz", "x/a.txt.ZST"] {
            assert_eq!(of(path).as_deref(), Some("txt"), "{path}");
        }
        for path in ["a", ".txt", "a.gz", ".txt.gz", "txt.gz"] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}

#[cfg(test)]
mod folder_tests {
    use super::*;

    /// Creates a folder with these files.
    fn folder(files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    /// Returns the names of the documents, relative to the folder.
    fn names(folder: &Path, extensions: &[&str]) -> Vec<String> {
        let documents = documents(folder, extensions).unwrap();
        let name = |path: PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
        documents.into_iter().map(name).collect()
    }

    #[test]
    fn in_order_of_names() {
        let folder = folder(&[
            "b/z.TXT",
            "b/a.txt",
            "a.txt",
            "c.rs",
            "c.md",
            "d.Txt.gz",
            "e.txt.zst",
            "f.gz",
            "txt",
            "txt.gz",
            ".git/x.txt",
            ".x.txt",
            "target/CACHEDIR.TAG",
            "target/x.txt",
        ]);
        let found = names(folder.path(), &["txt", ".md"]);
        assert_eq!(found, ["a.txt", "b/a.txt", "b/z.TXT", "c.md", "d.Txt.gz", "e.txt.zst"]);
        assert!(names(folder.path(), &["py"]).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        use std::os::unix::fs::symlink;

        let folder = folder(&["a.txt"]);
        symlink(folder.path().join("a.txt"), folder.path().join("b.txt")).unwrap();
        symlink(folder.path(), folder.path().join("loop")).unwrap();
        assert_eq!(names(folder.path(), &["txt"]), ["a.txt"]);
    }

    #[test]
    fn a_missing_folder() {
        let error = documents(Path::new("no/such/folder"), &[]).unwrap_err();
        assert!(matches!(error, DataError::Io { .. }));
    }
}
