//! The exit code is 0 only if everything that was asked for was done.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::folder_of;

const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.2),
    model: Gpt(layers: 1, heads: 2, width: 8),
    optimizer: AdamW(),
    schedule: Constant(lr: 1e-2),
    batch: (micro: 4),
    steps: 4,
    checkpoints: (every: 2, retries: 0),
    output: "out",
)
"#;

fn folder() -> TempDir {
    folder_of(RUN, 20)
}

fn firebrick(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder).args(arguments);
    command
}

#[test]
fn help_lists_the_codes() {
    let help = firebrick(Path::new("."), &["--help"]).assert().success();
    help.stdout(contains("Exit codes").and(contains("130")).and(contains("143")));
    firebrick(Path::new("."), &["trian"]).assert().code(2);
}

#[test]
fn checkpoints_that_differ_are_told_by_the_code() {
    let folder = folder();
    firebrick(folder.path(), &["train", "run.ron"]).assert().success();
    let step = |step: u64| format!("out/checkpoints/step-0000000{step}");
    let diff =
        |first: &str, second: &str| firebrick(folder.path(), &["checkpoint", "diff", first, second]).assert();
    diff(&step(2), &step(2)).code(0).stdout(contains("0 differ"));
    diff(&step(2), &step(4)).code(1).stdout(contains("elements differ")).stderr("");
}

/// A file stands in the place of the checkpoints.
#[test]
fn a_run_whose_last_save_failed_is_not_done() {
    let folder = folder();
    firebrick(folder.path(), &["train", "run.ron", "--set", "checkpoints=()"]).assert().success();
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/.firebrick.lock"), "").unwrap();
    fs::write(folder.path().join("other/checkpoints"), "in the way").unwrap();
    let train = ["train", "run.ron", "--set", "output=\"other\""];
    let failed = firebrick(folder.path(), &train).assert().code(1);
    failed.stderr(contains("the last checkpoint could not be saved").and(contains("checkpoints")));
    assert!(folder.path().join("other/model.safetensors").exists(), "the weights are saved");
}

/// A folder stands in the place of the best model, and a file in that of the metric files.
#[test]
fn a_run_whose_files_are_not_complete_is_not_done_but_trained() {
    let folder = folder();
    let output = folder.path().join("out");
    fs::create_dir_all(output.join("best.safetensors/in the way")).unwrap();
    fs::write(output.join(".firebrick.lock"), "").unwrap();
    fs::write(output.join("metrics"), "in the way").unwrap();
    // The remains of a killed run.
    fs::write(output.join(".staged-best.safetensors"), "half").unwrap();
    let failed = firebrick(folder.path(), &["train", "run.ron"]).assert().code(1);
    failed
        .stderr(contains("best.safetensors cannot be written; training continues"))
        .stderr(contains("error: the run is trained, but best.safetensors is not complete"))
        .stdout(contains("times, of best.safetensors: it is not complete"));
    let report = fs::read_to_string(output.join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["steps"], 4);
    let failed = report["failed_writes"].as_array().unwrap();
    let failures = |file: &str| failed.iter().find(|one| one["file"] == file).unwrap()["failures"].as_u64();
    assert!(failures("metrics") >= Some(4) && failures("best.safetensors") >= Some(1), "{report}");
    assert!(output.join("model.safetensors").exists());
    assert!(!output.join(".staged-best.safetensors").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_result_that_cannot_be_printed_is_not_done() {
    let folder = folder();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(["train", "run.ron", "--report", "json"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be printed"));
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_printed_is_not_done() {
    for arguments in [&["--help"][..], &["--version"], &["train", "--help"], &["help"], &["schema"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"));
        let output = command.args(arguments).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("standard output: No space left"), "{arguments:?}: {said}");
    }
}

#[cfg(unix)]
#[test]
fn a_signal_ends_the_learning_of_a_vocabulary_at_once_and_it_shows_that_it_goes_on() {
    use std::io::{BufRead, BufReader};
    let folder = folder();
    // Words that hardly repeat: learning the vocabulary takes long.
    let mut state = 1_u64;
    let mut letter = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'a' + (state >> 33) as u8 % 26)
    };
    let text: String = (0..3_000_000).map(|at| if at % 9 == 8 { ' ' } else { letter(at) }).collect();
    fs::write(folder.path().join("text.jsonl"), format!("{{\"text\": {text:?}}}\n")).unwrap();
    let long = [
        "data=(path: \"text.jsonl\", tokenizer: Bpe(vocabulary: 60000), max_length: 8)",
        "task=CausalLm(rows: Samples)",
    ];
    let sets = long.iter().flat_map(|set| ["--set", set]);
    for command in ["train", "tokenize"] {
        let output = ["-o", "text.tokens"].into_iter().take(if command == "tokenize" { 2 } else { 0 });
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
            .current_dir(folder.path())
            .args([command, "run.ron"])
            .args(sets.clone())
            .args(output)
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let goes_on =
            said.any(|line| line.contains("learning a vocabulary of 60000") && line.ends_with("so far"));
        assert!(goes_on, "it says how long it has been learning");
        let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        let after: Vec<_> = said.filter(|line| line.contains("tokenizing")).collect();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(after.is_empty(), "it did not wait for the vocabulary: {after:?}");
        assert!(!folder.path().join("out").exists() && !folder.path().join("text.tokens").exists());
    }
}

/// What does not fit this machine or its ranks is refused before the data, which would take hours to read, is looked for.
#[test]
fn what_does_not_fit_the_machine_is_refused_before_the_data_is_read() {
    let folder = folder();
    for (sets, expected) in [
        (vec!["strategies=[Offload(on: \"nowhere\")]"], "existing folder"),
        (vec!["ranks=4", "strategies=[Zero(stage: 3, within: 3)]"], "a divisor of the 4 ranks"),
    ] {
        let sets = sets.into_iter().chain(["data.path=\"missing.txt\""]).flat_map(|set| ["--set", set]);
        let arguments: Vec<_> = ["train", "run.ron"].into_iter().chain(sets).collect();
        let refused = firebrick(folder.path(), &arguments).assert().failure();
        refused.stderr(contains(expected).and(contains("missing.txt").not()));
    }
}

/// The folder for the optimizer's state is missing, or the disk takes no more of it.
#[test]
fn a_disk_that_cannot_keep_the_state_of_the_optimizer_ends_the_run() {
    let folder = folder();
    let on = |place: &str| format!("strategies=[Offload(keep: optimizer, on: \"{place}\")]");
    let missing = on("nowhere");
    let refused = firebrick(folder.path(), &["train", "run.ron", "--set", &missing]).assert().code(1);
    refused.stderr(contains("nowhere: cannot create a file").and(contains("existing folder")));
    assert!(!folder.path().join("out/metrics.jsonl").exists());

    firebrick(folder.path(), &["train", "run.ron", "--set", &on(".")]).assert().success();
    #[cfg(unix)]
    {
        // Each tensor of the state takes a block of 4096 bytes, so that this is the only file of more than 64 kB.
        let limited = "trap '' XFSZ; ulimit -f 128; exec \"$@\"";
        let program = assert_cmd::cargo::cargo_bin("firebrick");
        let mut command = Command::new("sh");
        command.current_dir(folder.path()).args(["-c", limited, "sh"]).arg(program);
        let longer = [
            "train",
            "run.ron",
            "--resume",
            "auto",
            "--set",
            "steps=6",
            "--set",
            &on("."),
            "--allow-changes",
        ];
        let full = command.args(longer).assert().code(1);
        full.stderr(contains("cannot write bucket 0").and(contains("resume from the last")));
        // What was saved goes on.
        firebrick(folder.path(), &longer).assert().success();
    }
}
