//! Saves, finds, replaces and removes checkpoints without faults.

use std::fs;

use firebrick_checkpoints::{CheckpointError, Folder, Keep, Manifest};

use crate::state::{open_as, rank_state, save, save_in};

/// Returns the names in a folder, sorted.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn new() -> (tempfile::TempDir, Folder) {
    let output = tempfile::tempdir().unwrap();
    let folder = Folder::new(output.path().join("run/checkpoints"));
    (output, folder)
}

#[test]
fn saved_ranks_are_read_back() {
    for ranks in [1, 2, 4, 9] {
        let (_output, folder) = new();
        assert_eq!(folder.latest().unwrap(), None);
        let saved = save(&folder, 1000, ranks).unwrap();
        assert_eq!(folder.latest().unwrap(), Some(saved.clone()));
        assert_eq!(names(&folder), ["latest", "step-00001000"]);
        assert_eq!(fs::read_to_string(folder.path().join("latest")).unwrap(), "step-00001000\n");
        let checkpoint = open_as(&saved.path, 1000);
        assert_eq!(checkpoint.manifest().world_size, ranks);
        assert_eq!(checkpoint.manifest().files.len(), 3 * ranks + 1);
    }
}

#[test]
fn the_same_state_is_saved_as_the_same_bytes() {
    let (_a, a) = new();
    let (_b, b) = new();
    let paths = [save(&a, 5, 3).unwrap().path, save(&b, 5, 3).unwrap().path];
    for entry in fs::read_dir(&paths[0]).unwrap() {
        let name = entry.unwrap().file_name();
        assert_eq!(
            fs::read(paths[0].join(&name)).unwrap(),
            fs::read(paths[1].join(&name)).unwrap(),
            "{name:?}"
        );
    }
}

#[test]
fn saving_a_step_again_replaces_it() {
    let (_output, folder) = new();
    save(&folder, 1, 1).unwrap();
    let first = save(&folder, 2, 1).unwrap();
    let second = save(&folder, 2, 2).unwrap();
    assert_eq!(open_as(&second.path, 2).manifest().world_size, 2);
    assert_eq!(second.sequence, first.sequence + 1);
    assert_eq!(names(&folder), ["latest", "step-00000001", "step-00000002"]);
}

#[test]
fn after_going_back_the_newest_save_is_the_latest() {
    let (_output, folder) = new();
    for step in [10, 20, 30, 11] {
        save(&folder, step, 1).unwrap();
    }
    let steps: Vec<u64> = folder.list().unwrap().iter().map(|saved| saved.step).collect();
    assert_eq!(steps, [10, 20, 30, 11]);
    folder.clean().unwrap();
    assert_eq!(folder.latest().unwrap().unwrap().step, 11);
    folder.prune(&Keep::last(2)).unwrap();
    assert_eq!(names(&folder), ["latest", "step-00000011", "step-00000030"]);
}

#[test]
fn pruning_removes_checkpoints_that_no_rule_keeps() {
    let (_output, folder) = new();
    for step in 1..=6 {
        save(&folder, step, 1).unwrap();
    }
    // The metric is 10 / step: the sixth is the best of all, and the highest is the first.
    let removed = folder.prune(&Keep::last(1).best(1).highest().every(4)).unwrap();
    assert_eq!(removed.len(), 3);
    assert_eq!(names(&folder), ["latest", "step-00000001", "step-00000004", "step-00000006"]);
    open_as(&folder.latest().unwrap().unwrap().path, 6);
}

#[test]
fn clean_removes_only_leftovers_of_interrupted_saves() {
    let (_output, folder) = new();
    save(&folder, 1, 1).unwrap();
    save(&folder, 2, 1).unwrap();
    folder.staging(3, "lost").write_rank(&rank_state(3, 0, 1)).unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path(".removed-step-00000000")).unwrap();
    fs::write(path(".staged-latest"), "step-0").unwrap();
    fs::rename(path("step-00000001"), path(".replaced-step-00000001")).unwrap();
    fs::write(path("latest"), "step-00000001\n").unwrap();
    for mine in ["notes", ".staging-mine", "step-1", ".removed-step-1"] {
        fs::create_dir(path(mine)).unwrap();
    }
    // Before cleaning, the checkpoint that was renamed aside is found under its current name.
    open_as(&folder.list().unwrap()[0].path, 1);
    let mut removed = folder.clean().unwrap();
    removed.sort();
    assert_eq!(
        removed,
        [".removed-step-00000000", ".staged-latest", ".staging-step-00000003-lost"].map(path)
    );
    let left =
        [".removed-step-1", ".staging-mine", "latest", "notes", "step-00000001", "step-00000002", "step-1"];
    assert_eq!(names(&folder), left);
    assert_eq!(fs::read_to_string(path("latest")).unwrap(), "step-00000002\n");
    open_as(&path("step-00000001"), 1);
    assert_eq!(folder.clean().unwrap(), [] as [std::path::PathBuf; 0]);
}

#[test]
fn latest_falls_back_to_the_newest_that_is_complete() {
    let (_output, folder) = new();
    save(&folder, 1, 1).unwrap();
    save(&folder, 2, 1).unwrap();
    for text in ["", "step-00000002", "step-00000003\n", "../step-00000001\n", "step-00000001\n\n"] {
        fs::write(folder.path().join("latest"), text).unwrap();
        assert_eq!(folder.latest().unwrap().unwrap().step, 2, "{text:?}");
    }
    fs::write(folder.path().join("latest"), "step-00000001\n").unwrap();
    assert_eq!(folder.latest().unwrap().unwrap().step, 1);
    fs::remove_file(folder.path().join("step-00000001/manifest.json")).unwrap();
    assert_eq!(folder.latest().unwrap().unwrap().step, 2);
    let incomplete = folder.incomplete().unwrap();
    assert_eq!(incomplete.len(), 1);
    assert!(incomplete[0].path().unwrap().ends_with("step-00000001/manifest.json"));
}

#[test]
fn invalid_manifests_are_not_published() {
    let (_output, folder) = new();
    let staging = folder.staging(1, "a");
    fn message<T: std::fmt::Debug>(result: Result<T, CheckpointError>) -> String {
        result.unwrap_err().to_string()
    }
    let mut state = rank_state(1, 0, 1);
    state.parameters[0].shape = vec![7, 4];
    let error = message(staging.write_rank(&state));
    assert!(error.contains("embedding.weight") && error.contains("found 84 bytes"), "{error}");
    assert!(!staging.path().exists());
    state.rank = 1;
    assert!(message(staging.write_rank(&state)).contains("rank 1 of 1"));
    assert!(message(folder.staging(1, "../a").write_rank(&rank_state(1, 0, 1))).contains("ASCII letters"));

    let files = staging.write_rank(&rank_state(1, 0, 1)).unwrap();
    let manifest = Manifest::new("run", 1, 1, "0.1.0").files(files);
    let publish = |manifest| message(staging.publish(manifest, "()"));
    assert!(publish(Manifest { step: 2, ..manifest.clone() }).contains("expected step 1, found 2"));
    let two = publish(Manifest { world_size: 2, ..manifest.clone() });
    assert!(two.contains("expected 5 files of 2 ranks"), "{two}");
    let mut other = manifest.clone();
    other.files[1].bytes += 1;
    let error = publish(other);
    assert!(error.contains("file system that all ranks share"), "{error}");
    assert!(!folder.path().join("step-00000001").exists());
    assert_eq!(folder.list().unwrap(), []);

    staging.publish(manifest.metric(f64::NAN), "()").unwrap();
    assert_eq!(folder.list().unwrap()[0].metric, None);
}

#[test]
fn an_attempt_that_is_discarded_leaves_nothing() {
    let (_output, folder) = new();
    let staging = folder.staging(1, "a");
    staging.discard().unwrap();
    staging.write_rank(&rank_state(1, 0, 1)).unwrap();
    // Writes again over the existing files.
    staging.write_rank(&rank_state(1, 0, 1)).unwrap();
    staging.discard().unwrap();
    assert_eq!(names(&folder), [] as [&str; 0]);
    save_in(&staging, 1, 1).unwrap();
}

#[test]
fn an_unsound_checkpoint_does_not_replace_a_sound_one() {
    let (_output, folder) = new();
    save(&folder, 1, 1).unwrap();
    let broken = |step| {
        let staging = folder.staging(step, "broken");
        let files = staging.write_rank(&rank_state(step, 0, 1)).unwrap();
        staging.publish(Manifest::new("run", step, 1, "0.1.0").files(files).sound(false), "(step: 1)")
    };
    // An unsound checkpoint does not replace a sound one of the same step,
    let error = broken(1).unwrap_err();
    assert!(matches!(error, CheckpointError::NotSound { .. }), "{error}");
    assert!(open_as(&folder.checkpoint(1), 1).manifest().sound);
    folder.clean().unwrap();
    // and a run does not resume from it.
    for step in 2..5 {
        let saved = broken(step).unwrap();
        assert!(!saved.sound);
        folder.prune(&Keep::last(1)).unwrap();
        folder.clean().unwrap();
        assert_eq!(folder.latest().unwrap().unwrap().step, 1);
        assert_eq!(names(&folder), ["latest", "step-00000001", &format!("step-0000000{step}")]);
        assert_eq!(folder.list().unwrap()[1], saved);
    }
    save(&folder, 5, 1).unwrap();
    folder.prune(&Keep::last(1)).unwrap();
    assert_eq!(names(&folder), ["latest", "step-00000005"]);
}

#[test]
fn without_a_sound_checkpoint_the_newest_is_the_latest() {
    let (_output, folder) = new();
    for step in 1..4 {
        let staging = folder.staging(step, "broken");
        let files = staging.write_rank(&rank_state(step, 0, 1)).unwrap();
        let manifest = Manifest::new("run", step, 1, "0.1.0").files(files).sound(false);
        staging.publish(manifest, "(step: 1)").unwrap();
        folder.prune(&Keep::last(1)).unwrap();
        assert_eq!(folder.latest().unwrap().unwrap().step, step);
    }
    assert_eq!(names(&folder), ["latest", "step-00000003"]);
}

#[test]
fn a_disowned_checkpoint_is_skipped_but_still_opens() {
    let (_output, folder) = new();
    save(&folder, 1, 2).unwrap();
    save(&folder, 2, 2).unwrap();
    assert!(!folder.disown(3).unwrap());
    assert!(folder.disown(2).unwrap());
    assert!(!folder.disown(2).unwrap(), "it was already");
    assert_eq!(folder.latest().unwrap().unwrap().step, 1);
    assert_eq!(fs::read_to_string(folder.path().join("latest")).unwrap(), "step-00000001\n");
    assert_eq!(names(&folder), ["latest", "step-00000001", "step-00000002"]);
    assert!(!open_as(&folder.checkpoint(2), 2).manifest().sound);
    save(&folder, 2, 2).unwrap();
    assert_eq!(folder.latest().unwrap().unwrap().step, 2);
}
