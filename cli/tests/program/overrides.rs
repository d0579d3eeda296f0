//! The options that override the run file, and the place that an error shows.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{firebrick, folder_of, log, train};

/// A run with a warmup of half its length. Its 20 lines of text make 93 windows to train on, which are 24
/// micro-batches.
const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.1),
    model: Gpt(layers: 1, heads: 2, width: 8),
    optimizer: AdamW(),
    schedule: Cosine(lr: 1e-2, min_lr: 1e-4, warmup: 100),
    batch: (micro: 4),
    steps: 200,
    output: "out",
)
"#;

/// Runs the changed run file with these options, and returns the updates, the rates, and what was said.
fn trained(run: &str, options: &[&str]) -> (u64, Vec<f64>, String) {
    let folder = folder_of(run, 20);
    let assert = train(folder.path(), options).assert().success();
    let output = assert.get_output();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let rates = lines.filter_map(|line| line["learning_rate"].as_f64()).collect();
    (report["steps"].as_u64().unwrap(), rates, said)
}

/// Returns the error for the run file with these options.
fn refused(run: &str, options: &[&str]) -> String {
    let folder = folder_of(run, 20);
    let mut command = firebrick(folder.path());
    let assert = command.args(["train", "run.ron"]).args(options).assert().code(1).stdout("");
    assert!(!folder.path().join("out").exists(), "refused before anything is written");
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

#[test]
fn a_length_replaces_the_other_one() {
    let of_epochs = RUN.replace("steps: 200", "epochs: 50");
    assert_eq!(trained(&of_epochs, &["--steps", "3"]).0, 3);
    assert_eq!(trained(RUN, &["--epochs", "1"]).0, 24);
    assert_eq!(trained(&of_epochs, &["--epochs", "2"]).0, 48);
    // They exclude each other.
    let both = ["train", "run.ron", "--steps", "3", "--epochs", "1"];
    firebrick(Path::new(".")).args(both).assert().code(2).stderr(contains("cannot be used with"));
}

#[test]
fn a_batch_replaces_a_number_of_tokens() {
    let of_tokens = RUN.replace("micro: 4", "micro_tokens: 64");
    assert_eq!(trained(&of_tokens, &["--epochs", "1", "--batch", "2"]).0, 47);
    assert_eq!(trained(RUN, &["--epochs", "1", "--batch", "31"]).0, 3);
    let said = refused(RUN, &["--batch", "0"]);
    assert!(said.contains("error: --batch 0: `batch.micro` must be at least 1"), "{said}");
    assert!(said.ends_with("\n  --batch 0\n          ^\n"), "{said}");
}

#[test]
fn a_rate_is_the_highest_of_any_schedule() {
    let run = |schedule: &str| RUN.replace("Cosine(lr: 1e-2, min_lr: 1e-4, warmup: 100)", schedule);
    let options = ["--lr", "0.5", "--steps", "2"];
    assert_eq!(trained(&run("Constant(lr: 1e-2)"), &options).1, [0.5, 0.5]);
    let of_deepspeed = run("WarmupLR(warmup_max_lr: 1e-2, warmup_num_steps: 0)");
    assert_eq!(trained(&of_deepspeed, &options).1, [0.5, 0.5]);

    let said = refused(RUN, &["--lr", "0"]);
    assert!(said.contains("error: --lr 0.0: `schedule.lr` must be finite and above 0, found 0"), "{said}");
    assert!(said.ends_with("\n  --lr 0.0\n       ^\n"), "{said}");
    // The file's lowest rate bounds it.
    let said = refused(RUN, &["--lr", "1e-5"]);
    let bound = "run.ron:5: `schedule.min_lr` must be at least 0 and at most `schedule.lr`, which is 0.00001, found 0.0001";
    assert!(said.contains(bound), "{said}");
}

#[test]
fn a_folder_needs_no_quotes() {
    let folder = folder_of(RUN, 20);
    let at = |name: &str| folder.path().join(name).join("model.safetensors").exists();
    for (options, written) in [
        (["--output", "runs/one two"], "runs/one two"),
        (["--set", "output=runs/three"], "runs/three"),
        (["--set", "output=\"runs/four\""], "runs/four"),
    ] {
        train(folder.path(), &["--steps", "1"]).args(options).assert().success();
        assert!(at(written), "{written}");
    }
    assert!(!folder.path().join("out").exists());
}

#[test]
fn a_warmup_longer_than_the_run_is_shortened_and_told() {
    let line = |updates: u64| {
        let to = updates / 10;
        format!(
            "the schedule's `warmup` is shortened from 100 to {to} updates, because the run has {updates}\n"
        )
    };
    for (options, updates) in [
        (["--steps", "20"], 20),
        (["--set", "steps=20"], 20),
        (["--epochs", "1"], 24), // known only when the data is loaded
    ] {
        let (_, rates, said) = trained(RUN, &options);
        assert_eq!(said.matches(&line(updates)).count(), 1, "{options:?}: {said}");
        // After a warmup of two updates the rate is at its highest, and then it falls.
        assert!(rates[1] < rates[2] && rates[3] < rates[2], "{options:?}: {rates:?}");
        assert_eq!(rates[2], 1e-2, "{options:?}: {rates:?}");
    }
    // A rate says nothing about the phases, and a warmup that fits stays.
    let said = trained(RUN, &["--steps", "20", "--set", "schedule.lr=1e-3"]).2;
    assert!(said.contains(&line(20)), "{said}");
    assert!(!trained(RUN, &["--steps", "101"]).2.contains("shortened"));
    // A warmup that was asked for is not changed.
    let said = refused(RUN, &["--steps", "20", "--set", "schedule.warmup=30"]);
    assert!(said.contains("`schedule.warmup` must be below `steps`, which is 20, found 30"), "{said}");
    // A run file that contradicts itself is refused, and so is a length of 0, without a word about its warmup.
    let said = refused(&RUN.replace("steps: 200", "steps: 20"), &[]);
    assert!(said.contains("run.ron:5: `schedule.warmup` must be below `steps`"), "{said}");
    let said = refused(RUN, &["--steps", "0"]);
    assert!(said.contains("--steps 0: `steps` must be at least 1") && !said.contains("shortened"), "{said}");
}

#[test]
fn a_shortened_run_is_saved_as_it_was_trained() {
    let folder = folder_of(RUN, 20);
    let saves = ["--set", "checkpoints=(every: 8)"];
    train(folder.path(), &["--epochs", "1"]).args(saves).assert().success();
    let first = log(&folder.path().join("out"));
    // With the same options it is the same run, and another warmup is a change.
    let resumed = train(folder.path(), &["--epochs", "1", "--resume"]).args(saves).assert().success();
    resumed.stderr(contains("--allow-changes").not());
    let longer = train(folder.path(), &["--epochs", "2", "--resume"]).args(saves).assert().code(1);
    longer.stderr(contains("schedule.Cosine.warmup").and(contains("--allow-changes")));
    fs::copy(folder.path().join("out/run.ron"), folder.path().join("run.ron")).unwrap();
    train(folder.path(), &[]).assert().success().stderr(contains("shortened").not());
    assert_eq!(log(&folder.path().join("out")), first);
}

#[test]
fn an_error_of_a_run_file_shows_its_place() {
    for (right, wrong, shown) in [
        ("steps: 200", "stebs: 200", "\n  7 |     stebs: 200,\n    |     ^\n"),
        ("heads: 2", "heads: 3", "\n  3 |     model: Gpt(layers: 1, heads: 3, width: 8),\n    |"),
        ("micro: 4", "micro: four", "\n  6 |     batch: (micro: four),\n    |                    ^\n"),
    ] {
        let said = refused(&RUN.replace(right, wrong), &[]);
        assert!(said.starts_with("error: run.ron:") && said.contains(shown), "{wrong}: {said}");
    }
}

#[test]
fn overrides_that_are_no_overrides_say_what_one_is() {
    for (set, expected) in [
        ("steps", "expected path=value"),
        ("steps=", "expected"),
        ("steps=1)", "expected nothing after the value"),
        ("batch..micro=1", "batch..micro"),
        ("strategies.3=Amp(bf16)", "strategies.3"),
        ("steps.more=1", "steps.more"),
        ("steps=many", "--set steps=many"),
        ("data.path=input.txt", "cannot access `input.txt`"),
    ] {
        let said = refused(RUN, &["--set", set]);
        assert!(said.contains(expected), "{set}: {said}");
    }
}

#[test]
fn an_error_of_an_override_shows_its_place() {
    for (set, reason, under) in [
        ("batch.mirco=4", "unknown name `mirco` (did you mean `micro`?)", "mirco=4"),
        ("data.block=0", "`data.block` must be", "0"),
        ("strategies=[Clip(nrom: 1.0)]", "unknown name `nrom`", "nrom: 1.0)]"),
    ] {
        let said = refused(RUN, &["--set", set]);
        assert!(said.starts_with(&format!("error: --set {set}: {reason}")), "{said}");
        let shown = format!("  --set {set}");
        let blanks = " ".repeat(shown.len() - under.len());
        assert!(said.ends_with(&format!("\n{shown}\n{blanks}^\n")), "{said}");
    }
}
