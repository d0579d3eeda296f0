//! Reads checkpoints of older formats and leaves those of newer ones alone.

use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{
    Algorithm, CheckpointError, Consolidate, Folder, Keep, What, consolidate, diff, verify,
};

use crate::state::{open_as, save};

/// Step 1 of two ranks, saved by the version that wrote format 1.
const FORMAT_1: &str = "tests/golden/format-1/step-00000001";

/// Copies the checkpoint, so that tests may change it.
fn copied(into: &Path) -> PathBuf {
    let path = into.join("step-00000001");
    fs::create_dir_all(&path).unwrap();
    for entry in fs::read_dir(FORMAT_1).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    path
}

/// Turns a checkpoint into one of a future version, which this version cannot read.
fn of_the_future(path: &Path) {
    let json = r#"{"manifest":{"format":3,"sums":"elsewhere"}}"#;
    fs::write(path.join("manifest.json"), json).unwrap();
}

#[test]
fn a_checkpoint_of_format_1_opens_and_verifies() {
    let checkpoint = open_as(Path::new(FORMAT_1), 1);
    assert_eq!(checkpoint.manifest().format, 1);
    assert_eq!(checkpoint.manifest().algorithm(), Algorithm::Sha256);
    // The manifest is written as it was read.
    let json = fs::read(Path::new(FORMAT_1).join("manifest.json")).unwrap();
    assert_eq!(checkpoint.manifest().to_json(), json);
    let report = verify(Path::new(FORMAT_1), |_, _| ());
    assert!(report.is_sound() && report.strays.is_empty(), "{report:?}");
}

#[test]
fn the_sums_of_format_1_are_checked() {
    let output = tempfile::tempdir().unwrap();
    let path = copied(output.path());
    for entry in fs::read_dir(&path).unwrap() {
        let file = entry.unwrap().path();
        let bytes = fs::read(&file).unwrap();
        let mut changed = bytes.clone();
        changed[bytes.len() / 2] ^= 1;
        fs::write(&file, changed).unwrap();
        let report = verify(&path, |_, _| ());
        assert_eq!(report.problems[0].path(), Some(&*file));
        if !file.ends_with("manifest.json") {
            assert!(report.problems[0].to_string().contains("expected SHA-256"), "{:?}", report.problems);
        }
        fs::write(&file, bytes).unwrap();
    }
    open_as(&path, 1);
}

#[test]
fn both_formats_have_the_same_content() {
    let output = tempfile::tempdir().unwrap();
    let new = save(&Folder::new(output.path()), 1, 2).unwrap().path;
    let [old, new] = [Path::new(FORMAT_1), &*new].map(|path| open_as(path, 1));
    assert_eq!(new.manifest().format, 2);
    assert!(diff(&old, &new, |_, _| ()).unwrap().is_empty());
    let files = [("old", &old), ("new", &new)].map(|(name, checkpoint)| {
        let to = output.path().join(name).with_extension("safetensors");
        consolidate(checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| ()).unwrap();
        fs::read(to).unwrap()
    });
    assert!(files[0] == files[1]);
}

#[test]
fn a_run_continues_from_format_1_in_format_2() {
    let output = tempfile::tempdir().unwrap();
    let path = copied(output.path());
    let folder = Folder::new(output.path());
    assert_eq!(folder.latest().unwrap().unwrap().step, 1);
    let newer = save(&folder, 2, 2).unwrap();
    assert_eq!((newer.sequence, open_as(&newer.path, 2).manifest().format), (2, 2));
    // It may be replaced and removed like any other.
    save(&folder, 1, 1).unwrap();
    assert_eq!(open_as(&path, 1).manifest().format, 2);
}

#[test]
fn an_unknown_format_is_refused_and_never_replaced() {
    let output = tempfile::tempdir().unwrap();
    let folder = Folder::new(output.path());
    save(&folder, 1, 2).unwrap();
    let path = save(&folder, 2, 2).unwrap().path;
    of_the_future(&path);
    let before = fs::read(path.join("manifest.json")).unwrap();
    let untouched = || {
        assert_eq!(fs::read(path.join("manifest.json")).unwrap(), before);
        assert_eq!(fs::read_dir(&path).unwrap().count(), 8);
        assert_eq!(fs::read_to_string(output.path().join("latest")).unwrap(), "step-00000002\n");
    };
    let report = verify(&path, |_, _| ());
    assert!(report.problems[0].to_string().contains("found format 3"), "{:?}", report.problems);
    assert!(matches!(folder.incomplete().unwrap()[..], [CheckpointError::Format { found: 3, .. }]));

    let error = save(&folder, 2, 2).unwrap_err();
    assert!(matches!(error, CheckpointError::Occupied { found: 3, .. }), "{error}");
    assert_eq!(error.path(), Some(&*path));
    untouched();
    folder.clean().unwrap();
    untouched();
    // A later step is saved beside it, and pruning keeps it.
    save(&folder, 3, 2).unwrap();
    folder.prune(&Keep::last(1)).unwrap();
    assert_eq!(fs::read(path.join("manifest.json")).unwrap(), before);
}

#[test]
fn an_unknown_format_that_was_renamed_aside_stays() {
    let output = tempfile::tempdir().unwrap();
    let folder = Folder::new(output.path());
    let path = save(&folder, 2, 2).unwrap().path;
    let aside = output.path().join(".replaced-step-00000002");
    fs::rename(&path, &aside).unwrap();
    of_the_future(&aside);
    let error = save(&folder, 2, 2).unwrap_err();
    assert!(matches!(error, CheckpointError::Occupied { found: 3, .. }), "{error}");
    assert_eq!(fs::read_dir(&aside).unwrap().count(), 8);
    folder.clean().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 8);
}
