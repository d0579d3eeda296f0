//! What the name of a file says of its content.

use std::ffi::OsStr;
use std::path::Path;

/// The extensions of compressed files, which do not describe their content.
const PACKED: [&str; 2] = ["gz", "zst"];

/// Returns the extension of a file in lower case, without that of its compression.
pub(super) fn extension(path: &Path) -> Option<String> {
    let of = |path: &Path| path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    let last = of(path)?;
    if PACKED.contains(&last.as_str()) { of(Path::new(path.file_stem()?)) } else { Some(last) }
}
