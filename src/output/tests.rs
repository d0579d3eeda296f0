//! Tests of claiming, keeping and replacing an output folder.

use super::*;

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}

/// Simulates a run that makes an update.
fn run(folder: &Path, log: &str) {
    let output = Output::claim(folder).unwrap();
    fs::write(output.current().join(LOG), log).unwrap();
    output.settle().unwrap();
    assert_eq!(output.current(), folder);
}

#[test]
fn an_earlier_run_is_kept_under_the_next_free_number() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("run");
    for log in ["first", "second", "third"] {
        run(&folder, log);
    }
    assert_eq!(names(parent.path()), ["run", "run-1", "run-2"]);
    let log = |name: &str| fs::read_to_string(parent.path().join(name).join(LOG)).unwrap();
    assert_eq!(["run-1", "run-2", "run"].map(log), ["first", "second", "third"]);
}

#[cfg(unix)]
#[test]
fn a_link_stays_and_the_earlier_run_is_kept_next_to_its_target() {
    let parent = tempfile::tempdir().unwrap();
    let (disk, home) = (parent.path().join("disk"), parent.path().join("home"));
    fs::create_dir_all(disk.join("run")).unwrap();
    fs::create_dir(&home).unwrap();
    let link = home.join("link");
    std::os::unix::fs::symlink("../disk/run", &link).unwrap();
    // A shell completes the name of a folder with a slash.
    for (folder, log) in [(link.clone(), "first"), (link.clone(), "second"), (link.join(""), "third")] {
        run(&folder, log);
    }
    assert_eq!(names(&home), ["link"]);
    assert_eq!(names(&disk), ["run", "run-1", "run-2"]);
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(link.join(LOG)).unwrap(), "third");
    // The disk may not be mounted yet.
    fs::rename(&disk, parent.path().join("elsewhere")).unwrap();
    let error = Output::claim(&link).unwrap_err().to_string();
    assert!(error.contains("mount or restore the target"), "{error}");
}

/// A run that cannot write anything would find out after hours of tokenizing.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_cannot_be_written_is_found_before_the_run() {
    // Not even the superuser creates files there.
    for folder in ["/proc/runs/a", "/proc/self/task"] {
        for error in [Output::check(Path::new(folder), false), Output::check(Path::new(folder), true)] {
            let error = error.unwrap_err().to_string();
            assert!(error.contains(folder), "{error}");
        }
    }
    let error = Output::check(Path::new("/proc/runs/a"), false).unwrap_err().to_string();
    assert!(error.contains("no file can be created in /proc:"), "{error}");
    // One that can be written is left as it was.
    let parent = tempfile::tempdir().unwrap();
    Output::check(&parent.path().join("a/b"), false).unwrap();
    Output::check(parent.path(), false).unwrap();
    assert!(names(parent.path()).is_empty());
    // Another process checks the same folder.
    fs::write(parent.path().join(".firebrick-probe-1"), "").unwrap();
    Output::check(parent.path(), false).unwrap();
}

/// A run would write and delete through the link: in a folder of somebody else, for all it knows.
#[cfg(unix)]
#[test]
fn a_link_in_the_folder_leads_no_run_out_of_it() {
    let places =
        [LOCK, LOG, "adapter", "pretrained", best::FOLDER, "metrics", "metrics/train/epoch-1/Loss.log"];
    for place in places.into_iter().chain(["tensorboard", "tensorboard/events"]) {
        for target in ["folder", "file", "nothing"] {
            let parent = tempfile::tempdir().unwrap();
            let (folder, foreign) = (parent.path().join("run"), parent.path().join("foreign"));
            run(&folder, "log");
            fs::create_dir_all(foreign.join("folder")).unwrap();
            for name in ["file", "folder/.staged-a", "folder/a"] {
                fs::write(foreign.join(name), "log").unwrap();
            }
            let link = folder.join(place);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(foreign.join(target), &link).unwrap();
            let resumed = Output::reopen(&folder, &Resume::Auto).map(drop);
            // Without a lock, nothing is resumed.
            let has_lock = place != LOCK || target != "nothing";
            for error in [Output::claim(&folder).map(drop).err(), resumed.err().filter(|_| has_lock)] {
                let error = error.map_or_else(|| "no error".into(), |error| error.to_string());
                let is_told =
                    error.contains(place) && error.contains(&format!("a link to {}", foreign.display()));
                assert!(is_told || (!has_lock && error == "no error"), "{place} to {target}: {error}");
            }
            assert_eq!(names(&foreign), ["file", "folder"], "{place} to {target}");
            assert_eq!(names(&foreign.join("folder")), [".staged-a", "a"], "{place} to {target}");
            assert_eq!(fs::read_to_string(foreign.join("file")).unwrap(), "log", "{place} to {target}");
        }
    }
}

#[test]
fn a_start_that_makes_no_update_leaves_the_earlier_run_where_it_is() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("run");
    run(&folder, "good");
    let output = Output::claim(&folder).unwrap();
    output.save_text("run.ron", "()").unwrap();
    assert_eq!(names(parent.path()), [".run-starting", "run"]);
    assert!(matches!(Output::claim(&folder), Err(TrainError::OutputInUse(_))));
    drop(output);
    assert_eq!(names(parent.path()), ["run"]);
    assert_eq!(fs::read_to_string(folder.join(LOG)).unwrap(), "good");
    // The next start removes the remains of a killed one.
    fs::write(folder.join(".staged-best.safetensors"), "half").unwrap();
    let left = parent.path().join(".run-starting");
    fs::create_dir(&left).unwrap();
    fs::write(left.join(LOCK), "").unwrap();
    fs::write(left.join("half"), "").unwrap();
    run(&folder, "next");
    assert_eq!(names(parent.path()), ["run", "run-1"]);
    assert!(!folder.join("half").exists());
    assert!(!parent.path().join("run-1/.staged-best.safetensors").exists());
}

#[test]
fn a_folder_in_use_is_refused_and_free_again_afterwards() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("run");
    let claimed = Output::claim(&folder).unwrap();
    fs::write(folder.join(LOG), "{}").unwrap();
    let error = Output::claim(&folder).unwrap_err().to_string();
    assert!(error.contains("another run"), "{error}");
    drop(claimed);
    Output::claim(&folder).unwrap();
}

#[test]
fn a_run_that_ended_before_its_first_step_leaves_the_folder_usable() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("run");
    let output = Output::claim(&folder).unwrap();
    output.save_text("run.ron", "()").unwrap();
    drop(output);
    Output::claim(&folder).unwrap();
    assert!(!parent.path().join("run-1").exists());
}

#[test]
fn files_that_are_not_of_a_run_are_never_touched() {
    let parent = tempfile::tempdir().unwrap();
    fs::write(parent.path().join("run.ron"), "mine").unwrap();
    let error = Output::claim(parent.path()).unwrap_err().to_string();
    assert!(error.contains("run.ron") && error.contains("choose another"), "{error}");
    assert_eq!(fs::read_to_string(parent.path().join("run.ron")).unwrap(), "mine");
}
