//! Replays the inputs that fuzzing found: all of fuzz/corpus, and each file with parts of it changed.

use std::fs;
use std::path::Path;

use firebrick_checkpoints::{Dtype, Folder, RankState};

use crate::state::{bytes, columns, whole};

#[path = "../fuzzed/manifest.rs"]
mod manifest;
#[path = "../fuzzed/safetensors.rs"]
mod safetensors;

fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new("../fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in fs::read_dir(&corpus).unwrap() {
        changed(&fs::read(entry.unwrap().path()).unwrap(), 50, check);
        seen += 1;
    }
    assert!(seen >= 5, "{}: {seen} files", corpus.display());
}

/// Checks the bytes, and changes at this many places.
fn changed(bytes: &[u8], places: usize, check: fn(&[u8])) {
    check(bytes);
    for at in (0..bytes.len()).step_by(bytes.len().div_ceil(places)) {
        let mut other = bytes.to_vec();
        other[at] = other[at].wrapping_add(1);
        check(&other);
        check(&bytes[..at]);
    }
}

#[test]
fn manifests() {
    replay("manifest", manifest::check);
}

#[test]
fn files_of_ranks() {
    replay("safetensors", safetensors::check);
    // In the same test, because the checks share a folder.
    let matrix = whole("w", Dtype::F32, &[4, 6], bytes(1, 96));
    let vector = whole("v", Dtype::U8, &[6], bytes(2, 6));
    // Once all columns, and once some, which are not a whole tensor.
    for ranges in [&[0..2, 2..4, 4..6][..], &[0..2, 3..5]] {
        let parameters = vec![columns(&matrix, ranges), columns(&vector, ranges)];
        let output = tempfile::tempdir().unwrap();
        let staging = Folder::new(output.path()).staging(1, "a");
        staging.write_rank(&RankState { ranks: 1, parameters, ..Default::default() }).unwrap();
        let file = staging.path().join("parameters-00000-of-00001.safetensors");
        changed(&fs::read(file).unwrap(), 100, safetensors::check);
    }
}
