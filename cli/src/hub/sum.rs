//! Sums that name large files on the Hub.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use sha2::{Digest, Sha256};

/// Returns the SHA-256 of a file, in hexadecimal digits.
pub(super) fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut sum, mut chunk) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => sum.update(&chunk[..count]),
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
