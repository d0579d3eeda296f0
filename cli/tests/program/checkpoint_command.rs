//! The checkpoint commands: checkpoints are shown, verified, kept as the run file says, and merged into one file.

use std::fs;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{firebrick, folder, report, tensors, train};

#[test]
fn checkpoints_are_shown_and_kept_as_the_run_file_says() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "checkpoints.every=5"]));
    let mut kept: Vec<_> = fs::read_dir(folder.path().join("out/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    kept.sort();
    assert!(kept.len() == 3 || kept.len() == 4, "the newest three, and the best: {kept:?}");
    assert!(kept.ends_with(&["step-00000030", "step-00000035", "step-00000040"].map(String::from)));
    let shown = firebrick(folder.path()).args(["checkpoint", "show", "out", "--tensors"]).assert().success();
    for part in
        ["step             40", "ranks            1", "Clip, Ema", "moment", "average", "F32 [16, 48]"]
    {
        assert!(String::from_utf8_lossy(&shown.get_output().stdout).contains(part), "{part}");
    }
    let json = firebrick(folder.path()).args(["checkpoint", "show", "out", "--json"]).assert().success();
    let json: serde_json::Value = serde_json::from_slice(&json.get_output().stdout).unwrap();
    assert_eq!((&json["manifest"]["step"], &json["trainer"]["step"]), (&40.into(), &40.into()));
    assert!(json["trainer"]["run"].as_str().unwrap().contains("Cosine"));
}

#[test]
fn one_file_holds_the_weights_in_any_dtype_and_in_parts() {
    let folder = folder();
    report(&mut train(folder.path(), &["--ranks", "2", "--set", "batch.accumulate=1"]));
    let consolidate = |options: &[&str]| {
        let mut command = firebrick(folder.path());
        command.args(["consolidate", "out"]).args(options);
        command.assert()
    };
    consolidate(&["-o", "whole.safetensors"]).success().stdout(contains("whole.safetensors"));
    let whole = fs::metadata(folder.path().join("whole.safetensors")).unwrap().len();
    consolidate(&["-o", "half.safetensors", "--dtype", "bf16"]).success();
    let half = fs::metadata(folder.path().join("half.safetensors")).unwrap().len();
    assert!(half < whole * 7 / 10, "{half} of {whole}");
    consolidate(&["-o", "average.safetensors", "--average"]).success();
    assert!(
        tensors(&folder.path().join("average.safetensors"))
            != tensors(&folder.path().join("whole.safetensors"))
    );
    consolidate(&["-o", "parts/model.safetensors", "--sharded", "10kB"]).failure().stderr(contains("parts"));
    fs::create_dir(folder.path().join("parts")).unwrap();
    consolidate(&["-o", "parts/model.safetensors", "--sharded", "10kB"]).success();
    let index = fs::read_to_string(folder.path().join("parts/model.safetensors.index.json")).unwrap();
    assert!(index.contains("model-00001-of-0000"), "{index}");
}

#[test]
fn a_run_without_checkpoints_has_what_to_do_in_its_errors() {
    let folder = folder();
    report(&mut train(folder.path(), &["--set", "checkpoints=()", "--set", "steps=4"]));
    for command in
        [&["consolidate", "out"][..], &["checkpoint", "show", "out"], &["checkpoint", "verify", "out"]]
    {
        firebrick(folder.path())
            .args(command)
            .assert()
            .failure()
            .stderr(contains("out: this run has saved no checkpoint: set `checkpoints: (every: 100)`"));
    }
    for command in [&["export", "out", "--step", "2"][..], &["train", "run.ron", "--resume", "step-2"]] {
        firebrick(folder.path())
            .args(command)
            .assert()
            .failure()
            .stderr(contains("no complete checkpoint of step 2; this run has saved none: set `checkpoints`"));
    }
    firebrick(folder.path())
        .args(["train", "run.ron", "--resume", "stpe-4"])
        .assert()
        .failure()
        .stderr(contains("stpe-4: there is nothing here to resume from (did you mean `step-4`?)"));
}

#[test]
fn an_incomplete_checkpoint_is_named_and_fails_the_check() {
    let folder = folder();
    report(&mut train(folder.path(), &[]));
    fs::write(folder.path().join("out/checkpoints/step-00000040/manifest.json"), "{").unwrap();
    let passed_over = || contains("warning: passed over a checkpoint").and(contains("step-00000040"));
    let verify = firebrick(folder.path()).args(["checkpoint", "verify", "out"]).assert().code(1);
    verify.stderr(passed_over().and(contains("1 problem")));
    let merged = firebrick(folder.path()).args(["consolidate", "out", "-o", "whole.safetensors"]).assert();
    merged.success().stderr(passed_over());
    // A quiet run warns too: it makes updates again that were made.
    train(folder.path(), &["--resume", "auto", "-q"]).assert().success().stderr(passed_over());
}
