//! The Hugging Face Hub: models, tokenizers, adapters and data by name, and trained models pushed to it.
//!
//! ```text
//! mod.rs        what a path that begins with `hub:` is on this machine
//! reference.rs  the name of a repository or a file
//! cache.rs      the Hub's cache on this machine, the environment's settings, and the sums that name large files
//! fetch.rs      the files that are wanted of a repository
//! download.rs   requests for files, and their download into the cache
//! progress.rs   how far a download is
//! api.rs        requests of a push
//! push.rs       a folder as a commit on the Hub
//! large_file.rs the storage of large files, which takes them before a commit
//! error.rs      what can go wrong
//! ```
//!
//! All but names and errors is behind the feature `hub`, since it links TLS.

#[cfg(feature = "hub")]
mod api;
#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod download;
mod error;
#[cfg(feature = "hub")]
mod fetch;
#[cfg(feature = "hub")]
mod large_file;
#[cfg(feature = "hub")]
mod progress;
#[cfg(feature = "hub")]
mod push;
mod reference;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

pub use error::HubError;
#[cfg(feature = "hub")]
pub(crate) use push::Push;

use reference::Reference;

/// The files that are wanted of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSet {
    /// The configuration, the weights and the tokenizer of a model, and its settings for generation.
    Model,
    /// What a repository has of [`Model`](Self::Model) beside the weights.
    Beside,
    /// A tokenizer.
    Tokenizer,
    /// Factors of PEFT.
    Adapter,
}

/// Returns the folder on this machine: the path itself, or that of a `hub:` reference, whose files are downloaded unless
/// they are there.
///
/// # Errors
///
/// The reference is malformed, the Hub does not have the repository or does not answer, or this program was built without
/// the feature `hub`.
pub(crate) fn local_folder<'p>(
    path: &'p Path,
    wanted: FileSet,
    say: &dyn Fn(&str),
) -> Result<Cow<'p, Path>, HubError> {
    match Reference::of(path)? {
        None => Ok(path.into()),
        Some(reference) => Ok(fetch_folder(&reference.whole()?, wanted, say)?.into()),
    }
}

/// Returns the repository on the Hub, as in `org/name`, that a path names.
pub(crate) fn repository_of(path: &Path) -> Option<String> {
    Some(Reference::of(path).ok()??.repository)
}

/// Returns the paths on this machine: the paths themselves, and those of `hub:` references to files of data sets.
///
/// # Errors
///
/// Those of [`local_folder`], and a data set without such a file.
pub(crate) fn local_paths(paths: &[PathBuf], say: &dyn Fn(&str)) -> Result<Vec<PathBuf>, HubError> {
    let mut local = Vec::new();
    for path in paths {
        match Reference::of(path)? {
            None => local.push(path.clone()),
            Some(reference) => local.extend(fetch_files(&reference, say)?),
        }
    }
    Ok(local)
}

#[cfg(feature = "hub")]
use fetch::{fetch_files, fetch_folder};

#[cfg(not(feature = "hub"))]
fn fetch_folder(reference: &Reference, _: FileSet, _: &dyn Fn(&str)) -> Result<PathBuf, HubError> {
    Err(HubError::NotBuilt { instead: reference.by_hand(false) })
}

#[cfg(not(feature = "hub"))]
fn fetch_files(reference: &Reference, _: &dyn Fn(&str)) -> Result<Vec<PathBuf>, HubError> {
    Err(HubError::NotBuilt { instead: reference.by_hand(true) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_this_machine_stays_what_it_is() {
        let paths = [PathBuf::from("a.jsonl"), PathBuf::from("data/*.txt")];
        assert_eq!(local_paths(&paths, &|_| ()).unwrap(), paths);
        let folder = local_folder(Path::new("runs/a"), FileSet::Model, &|_| ()).unwrap();
        assert_eq!(folder, Path::new("runs/a"));
    }

    #[cfg(not(feature = "hub"))]
    #[test]
    fn without_the_feature_the_error_says_how_to_do_without() {
        let model =
            local_folder(Path::new("hub:org/name@v1"), FileSet::Model, &|_| ()).unwrap_err().to_string();
        let by_hand = "`hf download org/name --revision v1 --local-dir name`";
        assert!(model.contains("build it with `--features hub`") && model.contains(by_hand), "{model}");
        let data = local_paths(&["hub:org/name/a.jsonl".into()], &|_| ()).unwrap_err().to_string();
        assert!(
            data.contains("--repo-type dataset") && data.contains("name `name/a.jsonl` instead"),
            "{data}"
        );
    }
}
