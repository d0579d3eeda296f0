//! Finds the documents in a folder.

use std::{
    fs::{self, DirEntry},
    path::{Path, PathBuf},
};

use super::extension::extension;
use crate::DataError;

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
