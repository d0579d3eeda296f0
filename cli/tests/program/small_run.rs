//! A run of a second that the tests of saved runs share. It has dropout, evaluations, an average, and a checkpoint at
//! every tenth update.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use assert_cmd::Command;
use tempfile::TempDir;

/// The run file.
pub const RUN: &str = r#"(
    data: (path: "text.txt", tokenizer: Characters, block: 8, valid_fraction: 0.2),
    model: Gpt(layers: 2, heads: 2, width: 16, dropout: 0.1, tied: true),
    optimizer: AdamW(weight_decay: 0.1),
    schedule: Cosine(lr: 1e-2, warmup: 3),
    batch: (micro: 4, accumulate: 2),
    steps: 40,
    evaluate_every: 8,
    checkpoints: (every: 10, keep_last: 3, keep_best: 1),
    strategies: [Clip(norm: 1.0), Ema(decay: 0.9)],
    output: "out",
)
"#;

pub fn folder() -> TempDir {
    folder_of(RUN, 40)
}

/// Creates a folder with a run file and its `text.txt`, of so many lines.
pub fn folder_of(run: &str, lines: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.ron"), run).unwrap();
    let text = "to be or not to be, that is the question\n".repeat(lines);
    fs::write(folder.path().join("text.txt"), text).unwrap();
    folder
}

/// The program at the root of the repository, where the paths of the examples begin.
pub fn at_root() -> Command {
    firebrick(Path::new(".."))
}

pub fn firebrick(folder: &Path) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder);
    command
}

pub fn train(folder: &Path, options: &[&str]) -> Command {
    let mut command = firebrick(folder);
    command.args(["train", "run.ron", "--report", "json"]).args(options);
    command
}

pub fn report(command: &mut Command) -> serde_json::Value {
    let output = command.assert().success().get_output().stdout.clone();
    serde_json::from_str(String::from_utf8(output).unwrap().lines().last().unwrap()).unwrap()
}

/// Returns the numbers of each step and evaluation in the log, without times and sizes.
pub fn log(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let steps = lines.filter(|line| line["kind"] != "checkpoint");
    steps
        .map(|line| ["kind", "step", "loss", "learning_rate"].map(|name| line[name].to_string()).join(" "))
        .collect()
}

/// Returns the tensors of a safetensors file: the bytes after the header.
pub fn tensors(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[8 + header..].to_vec()
}

/// Starts a run that would take minutes, and waits until it trains.
pub fn started(folder: &Path, options: &[&str]) -> Child {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder)
        .args(["train", "run.ron", "--plain", "--report", "json"])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().starts_with("step")).unwrap().unwrap();
    // Reads the rest of its output, so that the pipe stays open.
    std::thread::spawn(move || lines.for_each(drop));
    child
}

/// Waits until something is so, a minute at most.
pub fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        sleep(Duration::from_millis(5));
    }
}
