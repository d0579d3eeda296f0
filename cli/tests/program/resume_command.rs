//! `--resume` on the command line: what continues, from where, and what is refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::{firebrick, folder, log, report, tensors, train};

#[test]
fn a_run_goes_on_in_its_folder_as_if_it_had_never_ended() {
    let (folder, whole) = (folder(), folder());
    report(&mut train(whole.path(), &[]));
    // The run fails at a checkpoint that it had not reached: an early end stands for a kill.
    let first = report(&mut train(
        folder.path(),
        &["--set", "schedule=Cosine(lr: 1e-2, warmup: 3)", "--set", "steps=40"],
    ));
    assert_eq!(first["checkpoint_step"], 40);
    fs::remove_dir_all(folder.path().join("out/checkpoints/step-00000040")).unwrap();
    let said = train(folder.path(), &["--resume", "step-30"]).assert().success();
    // It saves every 10 updates and evaluates every 8.
    said.stderr(contains("going on after update 30").and(contains("save at a multiple of 8")));
    let out = |folder: &TempDir| folder.path().join("out");
    assert_eq!(log(&out(&folder)), log(&out(&whole)));
    for name in ["model.safetensors", "ema.safetensors", "best.safetensors"] {
        assert!(tensors(&out(&folder).join(name)) == tensors(&out(&whole).join(name)), "{name}");
    }
    assert!(!folder.path().join("out-1").exists(), "the run's own folder goes on");
    let of = |folder: &TempDir| {
        let step = out(folder).join("checkpoints/step-00000040");
        firebrick(folder.path()).args(["checkpoint", "verify"]).arg(&step).assert().success();
        step
    };
    let same = firebrick(folder.path()).args(["checkpoint", "diff"]).args([of(&folder), of(&whole)]).assert();
    same.success().stdout(contains("0 differ"));
    let other = out(&whole).join("checkpoints/step-00000030");
    let differ = firebrick(folder.path()).args(["checkpoint", "diff"]).args([of(&folder), other]).assert();
    differ.code(1).stdout(contains("tokens.weight")).stdout(contains("elements differ"));
}

/// `golden/older_run` is a run of 8 updates, with its log and the checkpoint of update 4, by the version before
/// `trainer.json`. Its files came from `firebrick train run.ron` on the text of [`folder`].
#[test]
fn a_run_goes_on_from_a_checkpoint_with_the_state_in_ron() {
    let folder = folder();
    let golden = Path::new("tests/golden/older_run");
    for (path, bytes) in contents(golden) {
        let path = folder.path().join(path.strip_prefix(golden).unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let out = folder.path().join("out");
    // Numbers of the log without those of losses, which differ between processors by rounding.
    let numbers = |folder: &Path| {
        let lines = log(folder).into_iter().map(|line| {
            let [kind, step, loss, rate] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            (format!("{kind} {step} {rate}"), loss.parse::<f64>().unwrap())
        });
        lines.unzip::<_, _, Vec<_>, Vec<_>>()
    };
    let (steps, losses) = numbers(&out);
    train(folder.path(), &["--resume"]).assert().success().stderr(contains("going on after update 4"));
    let (steps_now, losses_now) = numbers(&out);
    assert_eq!(steps_now, steps);
    for (loss, now) in std::iter::zip(&losses, &losses_now) {
        assert!((loss - now).abs() < 1e-5, "{losses:?} {losses_now:?}");
    }
    let files = |step: &str| names(&out.join("checkpoints").join(step)).join(" ");
    assert!(files("step-00000004").ends_with("trainer.ron"));
    assert!(files("step-00000008").ends_with("trainer.json"));
    assert!(names(&out.join(".best")).contains(&"step-00000004.safetensors".to_owned()));
    let shown = |step: &str| {
        let path = out.join("checkpoints").join(step);
        let shown = firebrick(folder.path()).args(["checkpoint", "show", "--json"]).arg(path).assert();
        let shown: serde_json::Value = serde_json::from_slice(&shown.success().get_output().stdout).unwrap();
        shown["trainer"]["settings"].clone()
    };
    assert_eq!(shown("step-00000004"), shown("step-00000008"));
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = folder();
    let refused = |options: &[&str]| {
        let output = train(folder.path(), options).assert().code(1).get_output().stderr.clone();
        String::from_utf8(output).unwrap()
    };
    let none = refused(&["--resume"]);
    assert!(none.contains("no complete checkpoint") && none.contains("--resume auto"), "{none}");
    assert!(!folder.path().join("out").exists());
    report(&mut train(folder.path(), &["--resume", "auto"]));
    let changed = refused(&["--resume", "step-20", "--set", "seed=5", "--set", "steps=50"]);
    assert!(
        changed.contains("`seed` was 1337, and is 5") && changed.contains("--allow-changes"),
        "{changed}"
    );
    assert!(!changed.contains("steps"), "{changed}");
    let impossible = refused(&["--resume", "step-20", "--set", "model.layers=3", "--allow-changes"]);
    assert!(impossible.contains("`model.Gpt.layers` was 2, and is 3"), "{impossible}");
    let batch = refused(&["--resume", "step-20", "--ranks", "2"]);
    assert!(batch.contains("global batch"), "{batch}");
    report(&mut train(
        folder.path(),
        &["--resume", "step-20", "--ranks", "2", "--set", "batch.accumulate=1"],
    ));

    // A damaged checkpoint is refused by name, and the one before it still resumes.
    let step = folder.path().join("out/checkpoints/step-00000040");
    let file = fs::read_dir(&step).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.to_string_lossy().contains("optimizer")).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let damaged = refused(&["--resume", "latest", "--set", "steps=60"]);
    assert!(damaged.contains("optimizer-0000") && damaged.contains("BLAKE3"), "{damaged}");
    let verified = firebrick(folder.path()).args(["checkpoint", "verify", "out"]).assert().failure();
    verified.stderr(contains("optimizer-0000")).stderr(contains("1 problem"));
    assert_eq!(report(&mut train(folder.path(), &["--resume", "step-30"]))["steps"], 40);
}

/// Flips the last bit of a file of a checkpoint.
fn damage(checkpoint: &Path, name: &str) {
    let file = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    let file = file.into_iter().find(|path| path.to_string_lossy().contains(name)).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
}

#[test]
fn auto_goes_on_from_the_newest_sound_checkpoint_and_never_from_zero() {
    let folder = folder();
    let step = |step: u64| folder.path().join(format!("out/checkpoints/step-000000{step}"));
    report(&mut train(folder.path(), &[]));
    let auto = |steps: &str| train(folder.path(), &["--resume", "auto", "--set", steps]).assert();
    for ranks in ["1", "2"] {
        // The newest fails its checksums, even if only its tensors do; the one before it is sound.
        let accumulate = if ranks == "1" { "batch.accumulate=2" } else { "batch.accumulate=1" };
        damage(&step(40), "parameters");
        let options = ["--resume", "auto", "--ranks", ranks, "--set", accumulate];
        let went_on = train(folder.path(), &options).assert().success();
        let said = String::from_utf8(went_on.get_output().stderr.clone()).unwrap();
        assert!(
            said.contains("warning: passed over a checkpoint") && said.contains("parameters-0000"),
            "{said}"
        );
        assert!(said.contains("going on after update 30"), "{said}");
    }
    // Checkpoints of a newer version count too: the run must not start again from zero or over them.
    let steps: Vec<_> = fs::read_dir(folder.path().join("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    for step in &steps {
        let manifest = fs::read_to_string(step.join("manifest.json")).unwrap();
        fs::write(step.join("manifest.json"), manifest.replace("\"format\": 3", "\"format\": 7")).unwrap();
    }
    let refused = auto("steps=50").code(1);
    let refused = refused.stderr(contains("no checkpoint here can be resumed"));
    refused.stderr(contains("found format 7"));
    assert!(!folder.path().join("out-1").exists());
    // No manifest is readable.
    steps.iter().for_each(|step| fs::write(step.join("manifest.json"), "{").unwrap());
    auto("steps=50").code(1).stderr(contains("no checkpoint here can be resumed"));
    steps.iter().for_each(|step| fs::remove_file(step.join("manifest.json")).unwrap());
    auto("steps=50").code(1).stderr(contains("manifest.json"));
    assert!(!folder.path().join("out-1").exists());
    // All are complete, but none matches its checksums.
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    report(&mut train(folder.path(), &["--set", "checkpoints=(every: 20, keep_last: 9)"]));
    [20, 40].iter().for_each(|at| damage(&step(*at), "optimizer"));
    auto("steps=50").code(1).stderr(contains("BLAKE3")).stderr(contains("step-00000020"));
    // Without any checkpoint the run starts from the beginning.
    fs::remove_dir_all(folder.path().join("out")).unwrap();
    auto("steps=4").success();
}

#[test]
fn a_checkpoint_of_another_format_is_never_replaced() {
    let folder = folder();
    report(&mut train(folder.path(), &[]));
    let newest = folder.path().join("out/checkpoints/step-00000040/manifest.json");
    let manifest = fs::read_to_string(&newest).unwrap();
    let other = manifest.replace("\"format\": 3", "\"format\": 7");
    assert_ne!(other, manifest);
    fs::write(&newest, &other).unwrap();
    // The run resumes from an older checkpoint; its last save, of the same step, is refused, and the exit code shows
    // it.
    let went_on = train(folder.path(), &["--resume", "auto"]).assert().failure();
    went_on
        .stderr(contains("found format 7"))
        .stderr(contains("going on after update 30"))
        .stderr(contains("nothing was replaced"));
    assert_eq!(fs::read_to_string(&newest).unwrap(), other);
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names.into_iter().map(|name| name.into_string().unwrap()).collect()
}

/// The bytes of all files below a folder but the lock, which says who had it last.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with(".firebrick.lock") => {}
                false => drop(found.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    found
}

#[test]
fn a_start_that_comes_to_nothing_leaves_the_run_that_is_there() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "seed=3"]));
    let (there, of_run) = (names(folder.path()), names(&folder.path().join("out")));
    let model = fs::read(folder.path().join("out/model.safetensors")).unwrap();
    let before = contents(&folder.path().join("out"));
    let is_as_it_was = |options: &[&str]| {
        assert_eq!(names(folder.path()), there, "{options:?}");
        let after = contents(&folder.path().join("out"));
        assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>(), "{options:?}");
        let changed = after.iter().filter(|(path, bytes)| before[*path] != **bytes).map(|(path, _)| path);
        assert_eq!(changed.collect::<Vec<_>>(), Vec::<&PathBuf>::new(), "{options:?}");
    };
    let failing: [&[&str]; 8] = [
        &["--resume", "--set", "model.width=32"],
        &["--resume", "--set", "model=Llama(layers: 1, heads: 2, width: 16)"],
        &["--resume", "no/such/path"],
        &["--resume", "step-31"],
        &["--resume", "out/checkpoints/step-00000040/trainer.json"],
        &["--resume", "out", "--set", "seed=4"],
        &["--device-is-none"],
        &["--set", "device_budget=\"1kB\""],
    ];
    for options in failing {
        let refused = train(folder.path(), options).assert().failure();
        let said = String::from_utf8_lossy(&refused.get_output().stderr).into_owned();
        assert!(said.contains("error") && !said.contains("panicked"), "{options:?}: {said}");
        is_as_it_was(options);
    }
    // Kills a start before its first update, at any moment.
    #[cfg(unix)]
    {
        let endless = ["--set", "batch=(micro: 1, accumulate: 1000000)", "--set", "evaluate_every=None"];
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
            .current_dir(folder.path())
            .args(["train", "run.ron", "--plain"])
            .args(endless)
            .spawn()
            .unwrap();
        while !folder.path().join(".out-starting/metrics.jsonl").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it trained");
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::read(folder.path().join("out/model.safetensors")).unwrap() == model);
        assert!(!folder.path().join("out-1").exists());
    }
    // The next run that trains keeps it under another name, and removes the remains of the killed start.
    let moved = train(folder.path(), &[]).assert().success();
    moved.stderr(contains("kept the earlier run as out-1"));
    assert!(fs::read(folder.path().join("out-1/model.safetensors")).unwrap() == model);
    assert!(!folder.path().join(".out-starting").exists());
    assert_eq!(names(&folder.path().join("out")), of_run, "all of its files are in its own folder");
    // With several ranks, too, none writes a checkpoint into the folder of the run that is moved.
    let ranks = ["--ranks", "2", "--set", "batch.accumulate=1", "--set", "checkpoints=(every: 1)"];
    report(&mut train(folder.path(), &ranks));
    assert_eq!(names(&folder.path().join("out-2")), of_run);
    firebrick(folder.path()).args(["checkpoint", "verify", "out"]).assert().success();
}

/// A file system that is not mounted holds checkpoints all the same, so the run must not start over.
#[cfg(unix)]
#[test]
fn a_folder_of_checkpoints_that_is_elsewhere_and_not_there_is_told() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "steps=4", "--set", "schedule=Constant(lr: 1e-2)"]));
    let checkpoints = folder.path().join("out/checkpoints");
    fs::rename(&checkpoints, folder.path().join("unmounted")).unwrap();
    let before = contents(&folder.path().join("out"));
    let link = || std::os::unix::fs::symlink("/no/such/disk", &checkpoints).unwrap();
    for options in
        [&["--resume", "auto"][..], &["--resume"], &["--resume", "step-4"], &["--resume", "out"], &[]]
    {
        link();
        let refused = train(folder.path(), options).assert().code(1);
        refused.stderr(contains("found a link to /no/such/disk, which does not exist"));
        fs::remove_file(&checkpoints).unwrap();
        assert_eq!(contents(&folder.path().join("out")), before, "{options:?}");
        assert!(!folder.path().join("out-1").exists(), "{options:?}");
    }
    link();
    for command in ["show", "verify"] {
        let refused = firebrick(folder.path()).args(["checkpoint", command, "out"]).assert().code(1);
        refused.stderr(contains("found a link to /no/such/disk"));
    }
}

#[cfg(unix)]
#[test]
fn a_run_whose_checkpoints_are_on_another_disk_goes_on_in_place() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "steps=4", "--set", "checkpoints=(every: 2, keep_last: 9)"]));
    let (checkpoints, disk) = (folder.path().join("out/checkpoints"), folder.path().join("disk"));
    fs::rename(&checkpoints, &disk).unwrap();
    std::os::unix::fs::symlink(&disk, &checkpoints).unwrap();
    for (from, steps) in [("auto", "steps=6"), ("step-4", "steps=8"), ("out", "steps=10")] {
        let set = format!("resumed with {from}");
        let found = report(&mut train(folder.path(), &["--resume", from, "--set", steps]));
        assert_eq!(format!("steps={}", found["steps"]), steps, "{set}");
        assert!(!folder.path().join("out-1").exists(), "{set}");
        assert!(checkpoints.symlink_metadata().unwrap().is_symlink(), "{set}");
    }
    let log = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("\"kind\":\"train\"")).count(), 10);
}
