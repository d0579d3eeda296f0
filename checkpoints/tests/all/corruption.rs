//! Opening rejects a checkpoint with any change, and the error names the file.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use firebrick_checkpoints::{Checkpoint, CheckpointError, Folder, verify};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::faulty_disk::FaultyDisk;
use crate::state::{open_as, save};

/// Steps 1 and 2 of two ranks. The tests change the second.
struct Saved {
    _output: tempfile::TempDir,
    folder: Folder,
    path: PathBuf,
}

impl Saved {
    fn new() -> Self {
        let output = tempfile::tempdir().unwrap();
        let folder = Folder::new(output.path()).with_disk(FaultyDisk::sound());
        save(&folder, 1, 2).unwrap();
        let path = save(&folder, 2, 2).unwrap().path;
        Self { _output: output, folder, path }
    }

    /// Returns every file of the second checkpoint, including the manifest.
    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        assert_eq!(files.len(), 8);
        files
    }

    /// Checks that opening and verifying reject the checkpoint and name the file.
    fn refused(&self, file: &Path, change: &str) -> CheckpointError {
        let error = match Checkpoint::open(&self.path) {
            Ok(_) => panic!("{}, {change}: it was opened", file.display()),
            Err(error) => error,
        };
        assert_eq!(error.path(), Some(file), "{change}: {error}");
        let report = verify(&self.path, |_, _| ());
        assert!(!report.is_sound());
        assert_eq!(report.problems[0].path(), Some(file), "{change}");
        error
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let saved = Saved::new();
    for file in saved.files() {
        let bytes = fs::read(&file).unwrap();
        let opened = fs::File::options().write(true).open(&file).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                opened.write_all_at(&[bytes[at] ^ (1 << bit)], at as u64).unwrap();
                let error = Checkpoint::open(&saved.path).map(drop).unwrap_err();
                assert_eq!(error.path(), Some(&*file), "byte {at}, bit {bit}: {error}");
            }
            opened.write_all_at(&bytes[at..=at], at as u64).unwrap();
        }
        open_as(&saved.path, 2);
    }
}

#[test]
fn a_latest_with_any_bit_flipped_harms_nothing() {
    let saved = Saved::new();
    let latest = saved.folder.path().join("latest");
    let bytes = fs::read(&latest).unwrap();
    for at in 0..bytes.len() * 8 {
        let mut other = bytes.clone();
        other[at / 8] ^= 1 << (at % 8);
        fs::write(&latest, &other).unwrap();
        assert_eq!(saved.folder.latest().unwrap().unwrap().step, 2);
        saved.folder.clean().unwrap();
        assert_eq!(fs::read(&latest).unwrap(), bytes);
    }
    for length in 0..bytes.len() {
        fs::write(&latest, &bytes[..length]).unwrap();
        assert_eq!(saved.folder.latest().unwrap().unwrap().step, 2);
    }
    fs::write(&latest, vec![b'0'; 1 << 20]).unwrap();
    assert_eq!(saved.folder.latest().unwrap().unwrap().step, 2);
    fs::remove_file(&latest).unwrap();
    symlink(saved.folder.path().join("elsewhere"), &latest).unwrap();
    assert_eq!(saved.folder.latest().unwrap().unwrap().step, 2);
}

#[test]
fn every_truncation_is_detected() {
    let saved = Saved::new();
    for file in saved.files() {
        let bytes = fs::read(&file).unwrap();
        let opened = fs::File::options().write(true).open(&file).unwrap();
        for length in (0..bytes.len()).rev() {
            opened.set_len(length as u64).unwrap();
            saved.refused(&file, &format!("{length} bytes"));
            // A shortened file makes the checkpoint incomplete.
            assert_eq!(saved.folder.list().unwrap().len(), 1);
        }
        for more in [&b"\n"[..], b" ", b"\0\0\0\0\0\0\0\0"] {
            fs::write(&file, [&bytes[..], more].concat()).unwrap();
            saved.refused(&file, "longer");
        }
        fs::write(&file, &bytes).unwrap();
    }
    open_as(&saved.path, 2);
}

#[test]
fn a_file_of_another_step_or_rank_is_refused() {
    let saved = Saved::new();
    for file in saved.files() {
        let bytes = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let other_step = saved.folder.path().join("step-00000001").join(name);
        fs::copy(other_step, &file).unwrap();
        saved.refused(&file, "of another step");
        if name.contains("-of-") {
            let other_rank = if name.contains("00000-of") { "00001-of" } else { "00000-of" };
            let other_rank =
                name.replacen(if other_rank == "00001-of" { "00000-of" } else { "00001-of" }, other_rank, 1);
            let other = saved.path.join(other_rank);
            fs::copy(&other, &file).unwrap();
            saved.refused(&file, "of another rank");
            // Swaps the two files: the errors name both.
            let others = fs::read(&other).unwrap();
            fs::write(&other, &bytes).unwrap();
            let report = verify(&saved.path, |_, _| ());
            let mut named: Vec<_> = report.problems.iter().filter_map(CheckpointError::path).collect();
            named.sort();
            let mut expected = [&*file, &*other];
            expected.sort();
            assert_eq!(named, expected);
            fs::write(&other, others).unwrap();
        }
        fs::write(&file, &bytes).unwrap();
    }
    open_as(&saved.path, 2);
}

#[test]
fn only_plain_files_are_read() {
    let saved = Saved::new();
    let elsewhere = tempfile::tempdir().unwrap();
    for file in saved.files() {
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let error = saved.refused(&file, "removed").to_string();
        assert!(error.contains("No such file"), "{error}");

        let target = elsewhere.path().join("target");
        fs::write(&target, &bytes).unwrap();
        symlink(&target, &file).unwrap();
        assert!(saved.refused(&file, "a link").to_string().contains("found a symbolic link"));
        fs::remove_file(&file).unwrap();

        fs::create_dir(&file).unwrap();
        assert!(saved.refused(&file, "a folder").to_string().contains("found a folder"));
        fs::remove_dir(&file).unwrap();

        mknodat(CWD, &file, FileType::Fifo, Mode::RWXU, 0).unwrap();
        // If opening waited for the pipe, the test would never end.
        let (sender, opened) = std::sync::mpsc::channel();
        let path = saved.path.clone();
        std::thread::spawn(move || sender.send(Checkpoint::open(path).map(drop)));
        let error = opened.recv_timeout(Duration::from_secs(60)).expect("it waits").unwrap_err();
        assert!(error.to_string().contains("found a pipe, socket or device"), "{error}");
        assert_eq!(error.path(), Some(&*file));
        fs::remove_file(&file).unwrap();
        fs::write(&file, &bytes).unwrap();
    }
    open_as(&saved.path, 2);
}

#[test]
fn a_dangling_link_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Folder::new(folder.path().join("checkpoints"));
    assert_eq!(missing.list().unwrap(), []);
    symlink("/no/such/disk", missing.path()).unwrap();
    let found = [missing.list().map(drop), missing.latest().map(drop), missing.clean().map(drop)];
    for error in found.map(Result::unwrap_err) {
        assert!(matches!(&error, CheckpointError::DanglingLink { .. }), "{error}");
        assert_eq!(error.path(), Some(missing.path()));
    }
}

#[test]
fn a_checkpoint_is_a_folder_with_the_name_of_its_step() {
    let saved = Saved::new();
    let path = |name: &str| saved.folder.path().join(name);
    symlink(&saved.path, path("step-00000009")).unwrap();
    let error = Checkpoint::open(path("step-00000009")).unwrap_err();
    assert!(error.to_string().contains("expected a folder, found a symbolic link"), "{error}");
    fs::remove_file(path("step-00000009")).unwrap();
    for name in ["step-00000003", "best"] {
        fs::rename(&saved.path, path(name)).unwrap();
        let error = Checkpoint::open(path(name)).unwrap_err().to_string();
        assert!(error.contains("step-00000002"), "{error}");
        assert_eq!(saved.folder.list().unwrap().len(), 1);
        fs::rename(path(name), &saved.path).unwrap();
    }
    assert!(matches!(Checkpoint::open(path("step-00000007")), Err(CheckpointError::Io { .. })));
    assert!(matches!(Checkpoint::open(path("latest")), Err(CheckpointError::Kind { .. })));
    open_as(&saved.path, 2);
}

#[test]
fn stray_files_are_ignored_and_reported() {
    let saved = Saved::new();
    let stray = saved.path.join("average-00002-of-00003.safetensors");
    fs::write(&stray, "something").unwrap();
    open_as(&saved.path, 2);
    let report = verify(&saved.path, |_, _| ());
    assert!(report.is_sound());
    assert_eq!(report.strays, [stray]);
}

#[test]
fn a_file_that_changes_after_it_was_checked_is_refused() {
    let saved = Saved::new();
    let checkpoint = open_as(&saved.path, 2);
    let file = saved.path.join("parameters-00001-of-00002.safetensors");
    let bytes = fs::read(&file).unwrap();
    let other = saved.path.join("other");
    fs::write(&other, &bytes).unwrap();
    fs::rename(&other, &file).unwrap();
    assert!(matches!(
        checkpoint.parameters().read("embedding.weight"),
        Err(CheckpointError::Changed { path }) if path == file
    ));
    // Tensors in other files are still readable.
    checkpoint.parameters().read("scale").unwrap();
}

#[test]
fn progress_reaches_the_end() {
    let saved = Saved::new();
    let seen = std::sync::Mutex::new(Vec::new());
    let progress = |done, total| seen.lock().unwrap().push((done, total));
    let checkpoint = Checkpoint::open_showing(&saved.path, progress).unwrap();
    let seen = seen.into_inner().unwrap();
    let total = checkpoint.manifest().bytes();
    assert!(seen.iter().all(|&(done, of)| done <= of && of == total));
    assert_eq!(seen.iter().map(|&(done, _)| done).max(), Some(total));
}
