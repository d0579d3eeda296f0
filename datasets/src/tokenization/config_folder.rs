//! The folder of a `tokenizer.json`, with the files beside it.

use std::path::Path;

/// The file name of a tokenizer in a folder.
pub(super) const FILE: &str = "tokenizer.json";

/// Returns the folder with the other files of a tokenizer. A tokenizer with another file name may be one of several, so
/// the files next to it may not be its own.
pub(super) fn config_folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE))
}
