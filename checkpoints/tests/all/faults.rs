//! A disk that fails during a save: the save returns an error, and the existing checkpoints remain.

use std::fs;

use firebrick_checkpoints::{CheckpointError, Folder, Keep};
use rustix::io::Errno;

use crate::faulty_disk::{Fault, FaultyDisk, Plan};
use crate::state::{open_as, save, save_in};

/// Checks that every checkpoint opens as it was saved, and that none is incomplete.
fn check(folder: &Folder, newest: u64, place: &str) {
    let incomplete = folder.incomplete().unwrap();
    assert!(incomplete.is_empty(), "{place}: {incomplete:?}");
    let saved = folder.list().unwrap();
    saved.iter().for_each(|saved| drop(open_as(&saved.path, saved.step)));
    assert_eq!(saved.last().map(|saved| saved.step), Some(newest), "{place}");
}

/// Saves a step over the existing ones, failing at each operation in turn.
fn fail_everywhere(before: &[u64], step: u64, stays: bool, code: Errno, done: usize) {
    let prepared = || {
        let output = tempfile::tempdir().unwrap();
        let disk = FaultyDisk::sound();
        let sound = Folder::new(output.path()).with_disk(disk.clone());
        before.iter().for_each(|&step| drop(save(&sound, step, 2).unwrap()));
        let points_before = disk.reached().len();
        (output, sound, disk, points_before)
    };
    let (_output, sound, disk, points_before) = prepared();
    save_in(&sound.staging(step, "first"), step, 3).unwrap();
    let points = &disk.reached()[points_before..];
    let rename = points.iter().position(|point| point == "rename the staging folder").unwrap();
    for operation in 0..=points.len() {
        let (output, sound, ..) = prepared();
        let fault = Fault::Error(code.raw_os_error());
        let disk = FaultyDisk::new(Plan { operation, stays, done, fault });
        let faulty = Folder::new(output.path()).with_disk(disk.clone());
        let staging = faulty.staging(step, "first");
        let result = save_in(&staging, step, 3);
        let Some(point) = disk.failed_at() else {
            assert!(result.is_ok());
            assert_eq!(operation, points.len());
            return;
        };
        let place = format!("{point} (operation {operation}, {code}, {done} done, stays: {stays})");
        match &result {
            // The new checkpoint is safe; the rest of the old one is removed later.
            Ok(_) => assert_eq!(point, "remove the replaced checkpoint"),
            Err(CheckpointError::Io { doing, source, .. }) => {
                assert_eq!(source.raw_os_error(), Some(code.raw_os_error()), "{place}");
                // A rank's files are written in parallel, so the error may name another file.
                assert!(*doing == point || stays, "{place}: {doing}");
            }
            Err(error) => panic!("{place}: {error}"),
        }
        check(&sound, if operation > rename { step } else { *before.last().unwrap() }, &place);
        let latest = sound.latest().unwrap().unwrap();
        open_as(&latest.path, latest.step);
        // A checkpoint that was renamed aside has its name again, unless the disk fails at that too.
        assert!(stays || latest.path.ends_with(format!("step-{:08}", latest.step)), "{place}");
        assert_eq!(staging.discard().is_err(), stays && staging.path().exists(), "{place}");

        // The disk works again: the next attempt succeeds, and cleaning removes the rest.
        save_in(&sound.staging(step, "second"), step, 4).unwrap();
        check(&sound, step, &place);
        sound.clean().unwrap();
        let names = fs::read_dir(output.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with('.')), "{place}");
        let last = sound.latest().unwrap().unwrap();
        assert_eq!(open_as(&last.path, step).manifest().world_size, 4, "{place}");
    }
}

#[test]
fn what_is_written_is_synced_before_it_is_named() {
    let output = tempfile::tempdir().unwrap();
    let disk = FaultyDisk::sound();
    let folder = Folder::new(output.path()).with_disk(disk.clone());
    save(&folder, 1, 1).unwrap();
    let before = disk.reached().len();
    save(&folder, 1, 1).unwrap();
    let points = disk.reached().split_off(before);
    let place = |wanted: &str| {
        points.iter().position(|point| point == wanted).unwrap_or_else(|| panic!("{wanted}: {points:?}"))
    };
    let folder_synced = place("sync the folder of rank 0, .staging-step-00000001-test");
    for file in ["parameters-00000-of-00001", "optimizer-00000-of-00001", "average-00000-of-00001"] {
        let [created, written, synced] =
            ["create", "write", "sync"].map(|what| place(&format!("{what} {file}.safetensors")));
        assert!(created < written && written < synced && synced < folder_synced, "{points:?}");
    }
    assert_eq!(
        points[folder_synced + 1..],
        [
            "create trainer.json",
            "write trainer.json",
            "sync trainer.json",
            "create manifest.json",
            "write manifest.json",
            "sync manifest.json",
            "sync the staging folder",
            "rename the checkpoint that is replaced",
            "rename the staging folder",
            "sync the checkpoints' folder after the rename",
            "create .staged-latest",
            "write .staged-latest",
            "sync .staged-latest",
            "rename latest",
            "sync the checkpoints' folder after latest",
            "remove the replaced checkpoint",
        ]
    );
}

#[test]
fn one_operation_fails() {
    for before in [&[1][..], &[1, 2]] {
        fail_everywhere(before, 2, false, Errno::IO, 0);
        fail_everywhere(before, 2, false, Errno::NOSPC, 7);
    }
}

#[test]
fn the_disk_fails_from_some_operation_on() {
    for before in [&[1][..], &[1, 2]] {
        fail_everywhere(before, 2, true, Errno::NOSPC, 7);
        fail_everywhere(before, 2, true, Errno::ROFS, 0);
    }
}

#[test]
fn an_error_says_what_to_do() {
    let output = tempfile::tempdir().unwrap();
    let fault = Fault::Error(Errno::NOSPC.raw_os_error());
    let disk = FaultyDisk::new(Plan { operation: 1, stays: true, done: 0, fault });
    let error = save(&Folder::new(output.path()).with_disk(disk), 1, 1).unwrap_err().to_string();
    assert!(error.contains("step-00000001") && error.contains("free some space"), "{error}");
}

#[test]
fn failed_removals_harm_no_checkpoint() {
    for operation in 0.. {
        let output = tempfile::tempdir().unwrap();
        let sound = Folder::new(output.path()).with_disk(FaultyDisk::sound());
        (1..=4).for_each(|step| drop(save(&sound, step, 1).unwrap()));
        let fault = Fault::Error(Errno::IO.raw_os_error());
        let disk = FaultyDisk::new(Plan { operation, stays: false, done: 2, fault });
        let pruned = Folder::new(output.path()).with_disk(disk.clone()).prune(&Keep::last(1));
        let Some(point) = disk.failed_at() else {
            assert_eq!(operation, 6, "two for each that is removed");
            return;
        };
        assert!(pruned.is_err(), "{point}");
        check(&sound, 4, &point);
        sound.prune(&Keep::last(1)).unwrap();
        check(&sound, 4, &point);
        assert_eq!(fs::read_dir(output.path()).unwrap().count(), 2, "{point}");
    }
}

#[test]
fn a_disk_that_fails_cannot_be_cleaned_and_loses_nothing() {
    for operation in 0.. {
        let output = tempfile::tempdir().unwrap();
        let sound = Folder::new(output.path()).with_disk(FaultyDisk::sound());
        (1..=2).for_each(|step| drop(save(&sound, step, 1).unwrap()));
        let path = |name: &str| output.path().join(name);
        sound.staging(3, "lost").write_rank(&crate::state::rank_state(3, 0, 1)).unwrap();
        fs::rename(path("step-00000001"), path(".replaced-step-00000001")).unwrap();
        fs::write(path(".staged-latest"), "").unwrap();
        fs::remove_file(path("latest")).unwrap();
        let fault = Fault::Error(Errno::IO.raw_os_error());
        let disk = FaultyDisk::new(Plan { operation, stays: false, done: 2, fault });
        let cleaned = Folder::new(output.path()).with_disk(disk.clone()).clean();
        let Some(point) = disk.failed_at() else {
            assert!(cleaned.is_ok() && operation >= 8);
            return;
        };
        assert!(cleaned.is_err(), "{point}");
        check(&sound, 2, &point);
        assert_eq!(sound.list().unwrap().len(), 2, "{point}");
        sound.clean().unwrap();
        check(&sound, 2, &point);
    }
}
