//! Replays the inputs that fuzzing found: all of fuzz/corpus, and each file with parts of it changed.

use std::fs;
use std::path::Path;

#[path = "../fuzzed/manifest.rs"]
mod manifest;
#[path = "../fuzzed/safetensors.rs"]
mod safetensors;

fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new("../fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        check(&bytes);
        for at in (0..bytes.len()).step_by(bytes.len().div_ceil(50)) {
            let mut other = bytes.clone();
            other[at] = other[at].wrapping_add(1);
            check(&other);
            check(&bytes[..at]);
        }
        seen += 1;
    }
    assert!(seen >= 5, "{}: {seen} files", corpus.display());
}

#[test]
fn manifests() {
    replay("manifest", manifest::check);
}

#[test]
fn files_of_ranks() {
    replay("safetensors", safetensors::check);
}
