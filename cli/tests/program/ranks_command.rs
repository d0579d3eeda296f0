//! Several ranks on the command line.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::folder_of;

/// A run that takes a second: characters, two layers, four steps.
const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.1),
    model: Gpt(layers: 2, heads: 2, width: 16),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Cosine(lr: 1e-2, warmup: 1),
    batch: (micro: 2, accumulate: 3),
    steps: 4,
    ranks: 2,
    strategies: [Clip(norm: 1.0)],
    output: "out",
)
"#;

fn folder() -> TempDir {
    folder_of(RUN, 20)
}

/// Runs the program without a launcher.
fn firebrick(folder: &Path, command: &str) -> Command {
    let mut program = Command::cargo_bin("firebrick").unwrap();
    program.current_dir(folder).arg(command).arg("run.ron");
    for name in ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"] {
        program.env_remove(name);
    }
    program
}

fn report(output: &[u8]) -> serde_json::Value {
    let text = String::from_utf8(output.to_vec()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn ranks_train_and_the_option_overrides_the_file() {
    let folder = folder();
    for (options, ranks, words) in [
        (vec![], 2, "2 ranks x 3 micro-batches of 2 = 12 samples in an update"),
        (vec!["--ranks", "3"], 3, "3 ranks x 3 micro-batches of 2 = 18 samples in an update"),
        (vec!["--ranks", "4", "--set", "strategies=[Zero(stage: 3), Clip(norm: 1.0)]"], 4, "4 ranks x"),
    ] {
        let run =
            firebrick(folder.path(), "train").args(&options).args(["--report", "json"]).assert().success();
        let run = run.stderr(predicate::str::starts_with(words)).get_output().stdout.clone();
        let report = report(&run);
        assert_eq!(report["steps"], 4);
        assert_eq!(report["ranks"].as_array().unwrap().len(), ranks, "{report}");
        // One exchange of numbers in each of the four steps, and one before the first.
        assert_eq!(report["ranks"][1]["per_step"]["scalars"]["calls"], 1.25, "{report}");
        let saved = fs::metadata(folder.path().join("out/model.safetensors")).unwrap();
        assert!(saved.len() > 1000);
    }
    let text = firebrick(folder.path(), "train").assert().success().get_output().stdout.clone();
    assert!(String::from_utf8(text).unwrap().contains("awaited"));
}

#[test]
fn one_rank_reports_no_others() {
    let folder = folder();
    let run = firebrick(folder.path(), "train").args(["--ranks", "1", "--report", "json"]).assert().success();
    let run = run.stderr(predicate::str::starts_with("1 rank x 3 micro-batches of 2 = 6 samples"));
    let report = report(&run.get_output().stdout);
    assert!(report.get("ranks").is_none(), "{report}");
}

#[test]
fn bench_shows_a_line_for_each_rank() {
    let folder = folder();
    let bench = ["--steps", "2", "--warmup", "1", "--rounds", "1", "--ranks", "3"];
    let text = firebrick(folder.path(), "bench").args(bench).assert().success().get_output().stdout.clone();
    let text = String::from_utf8(text).unwrap();
    let table: Vec<_> = text.lines().skip_while(|line| !line.starts_with("rank")).collect();
    assert_eq!(table.len(), 4, "{text}");
    assert!(table[3].starts_with('2'), "{text}");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = folder();
    let refused = |options: &[&str], words: &str| {
        let run = firebrick(folder.path(), "train").args(options).assert().code(1);
        run.stderr(contains(words).and(contains("panicked").not()));
        assert!(!folder.path().join("out").exists());
    };
    refused(&["--set", "ranks=0"], "`ranks` must be at least 1");
    refused(&["--set", "strategies=[Zero(stage: 2), Zero(stage: 1)]"], "Zero is named twice");
}

#[test]
fn a_launcher_of_a_program_without_mpi_is_told_how_to_build_it() {
    if cfg!(feature = "mpi") {
        return;
    }
    let folder = folder();
    let mut run = firebrick(folder.path(), "train");
    run.env("OMPI_COMM_WORLD_SIZE", "4").env("OMPI_COMM_WORLD_RANK", "1");
    let words = contains("4 processes").and(contains("--features mpi")).and(contains("--ranks 4"));
    run.assert().code(1).stderr(words);
}
