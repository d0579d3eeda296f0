//! Two equal runs write equal files, so that their checksums tell whether they are the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::small_run::{firebrick, folder, train};

/// Files that hold times, process numbers, or the checksums of such files.
const OF_THE_CLOCK: [&str; 9] = [
    ".firebrick.lock",
    "metrics.jsonl",
    "metrics/",
    "tensorboard/",
    "report.json",
    "report.html",
    "/trainer.json",
    "/manifest.json",
    "/.made_of",
];

/// Returns the bytes of every other file in a folder, by its path there.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut left, mut files) = (vec![folder.to_path_buf()], BTreeMap::new());
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
        let is_of_the_clock = |ours: &&str| match ours.starts_with('/') {
            true => name.ends_with(*ours),
            false => name.starts_with(*ours),
        };
        if !OF_THE_CLOCK.iter().any(is_of_the_clock) {
            files.insert(name, fs::read(&path).unwrap());
        }
    }
    files
}

fn assert_same(one: &Path, other: &Path) {
    let (one, other) = (files(one), files(other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    assert!(one.len() > 10, "{:?}", one.keys());
    for (name, bytes) in &one {
        assert!(*bytes == other[name], "{name} differs");
    }
}

#[test]
fn two_equal_runs_write_equal_bytes() {
    // Three runs: the three entries of metadata may have the same order by chance, in every third pair of files.
    let runs = [(); 3].map(|()| {
        let folder = folder();
        train(folder.path(), &[]).assert().success();
        folder
    });
    let out = |at: usize| runs[at].path().join("out");
    assert_same(&out(0), &out(1));
    assert_same(&out(0), &out(2));
    // What a command writes of a run is the same as well.
    for run in &runs {
        for command in [
            &["consolidate", "out", "--dtype", "bf16", "-o", "out-of/merged.safetensors"][..],
            &["export", "out", "--step", "40", "-o", "out-of/exported"],
        ] {
            fs::create_dir_all(run.path().join("out-of")).unwrap();
            firebrick(run.path()).args(command).assert().success();
        }
    }
    let written = |at: usize| runs[at].path().join("out-of");
    for (name, bytes) in files(&written(0)) {
        assert!(bytes == files(&written(1))[&name], "{name} differs");
    }
}
