//! Reads checkpoints of older formats and leaves those of newer ones alone.

use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{
    Algorithm, Checkpoint, CheckpointError, Consolidate, Folder, Keep, TRAINER, TRAINER_IN_RON, What,
    consolidate, diff, verify,
};

use crate::state::{open_as, save};

/// Step 1 of two ranks, saved by the versions that wrote formats 1 and 2.
const OLDER: [(u32, Algorithm, &str); 2] = [
    (1, Algorithm::Sha256, "tests/golden/format-1/step-00000001"),
    (2, Algorithm::Blake3, "tests/golden/format-2/step-00000001"),
];

/// Copies the checkpoint, so that tests may change it.
fn copied(from: &str, into: &Path) -> PathBuf {
    let path = into.join("step-00000001");
    fs::create_dir_all(&path).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
    }
    path
}

/// Turns a checkpoint into one of a future version, which this version cannot read.
fn of_the_future(path: &Path) {
    let json = r#"{"manifest":{"format":4,"sums":"elsewhere"}}"#;
    fs::write(path.join("manifest.json"), json).unwrap();
}

#[test]
fn a_checkpoint_of_an_older_format_opens_and_verifies() {
    for (format, algorithm, path) in OLDER {
        let path = Path::new(path);
        let checkpoint = open_as(path, 1);
        let manifest = checkpoint.manifest();
        assert_eq!((manifest.format, manifest.algorithm()), (format, algorithm));
        assert_eq!(manifest.trainer_file(), TRAINER_IN_RON);
        // The manifest is written as it was read.
        assert_eq!(manifest.to_json(), fs::read(path.join("manifest.json")).unwrap());
        let report = verify(path, |_, _| ());
        assert!(report.is_sound() && report.strays.is_empty(), "{report:?}");
    }
}

#[test]
fn the_sums_of_older_formats_are_checked() {
    for (_, algorithm, from) in OLDER {
        let output = tempfile::tempdir().unwrap();
        let path = copied(from, output.path());
        for entry in fs::read_dir(&path).unwrap() {
            let file = entry.unwrap().path();
            let bytes = fs::read(&file).unwrap();
            let mut changed = bytes.clone();
            changed[bytes.len() / 2] ^= 1;
            fs::write(&file, changed).unwrap();
            let report = verify(&path, |_, _| ());
            assert_eq!(report.problems[0].path(), Some(&*file));
            if !file.ends_with("manifest.json") {
                let expected = format!("expected {algorithm}");
                assert!(report.problems[0].to_string().contains(&expected), "{:?}", report.problems);
            }
            fs::write(&file, bytes).unwrap();
        }
        open_as(&path, 1);
    }
}

#[test]
fn all_formats_have_the_same_content() {
    let output = tempfile::tempdir().unwrap();
    let new = open_as(&save(&Folder::new(output.path()), 1, 2).unwrap().path, 1);
    assert_eq!((new.manifest().format, new.manifest().trainer_file()), (3, TRAINER));
    let merged = |name: &str, checkpoint: &Checkpoint| {
        let to = output.path().join(name);
        consolidate(checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| ()).unwrap();
        fs::read(to).unwrap()
    };
    for (_, _, path) in OLDER {
        let old = open_as(Path::new(path), 1);
        assert!(diff(&old, &new, |_, _| ()).unwrap().is_empty());
        assert!(merged("old.safetensors", &old) == merged("new.safetensors", &new));
    }
}

#[test]
fn a_run_continues_from_an_older_format_in_the_newest() {
    for (_, _, from) in OLDER {
        let output = tempfile::tempdir().unwrap();
        let path = copied(from, output.path());
        let folder = Folder::new(output.path());
        assert_eq!(folder.latest().unwrap().unwrap().step, 1);
        let newer = save(&folder, 2, 2).unwrap();
        assert_eq!((newer.sequence, open_as(&newer.path, 2).manifest().format), (2, 3));
        // It may be replaced and removed like any other.
        save(&folder, 1, 1).unwrap();
        assert_eq!(open_as(&path, 1).manifest().format, 3);
    }
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
    assert!(report.problems[0].to_string().contains("found format 4"), "{:?}", report.problems);
    assert!(matches!(folder.incomplete().unwrap()[..], [CheckpointError::Format { found: 4, .. }]));

    let error = save(&folder, 2, 2).unwrap_err();
    assert!(matches!(error, CheckpointError::Occupied { found: 4, .. }), "{error}");
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
    assert!(matches!(error, CheckpointError::Occupied { found: 4, .. }), "{error}");
    assert_eq!(fs::read_dir(&aside).unwrap().count(), 8);
    folder.clean().unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 8);
}
