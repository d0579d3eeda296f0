//! A run that is killed at random moments and restarted ends as an uninterrupted run, to the bit, and has each step
//! once in its log and in TensorBoard.
//!
//! Each run of the tests kills one configuration twice. To kill all of them, as often as you like:
//!
//! ```sh
//! FIREBRICK_KILLS=100 cargo test --workspace --test program -- --include-ignored kills::
//! ```
//!
//! `FIREBRICK_KILLS_SEED` selects other moments.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::resumed_records::{is_recorded_once, logged};
use crate::small_run::{firebrick, folder, report, tensors, train};

const STEPS: u64 = 40;

/// Reads a number from the environment.
fn asked(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: no number")))
}

/// Random moments within a duration.
struct Moments(u64);

impl Moments {
    fn next(&mut self, all: Duration) -> Duration {
        // The generator of Knuth's MMIX; its high bits are random enough.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        all.mul_f64((self.0 >> 33) as f64 / (1u64 << 31) as f64)
    }
}

/// Kills runs with these settings this many times, or as often as the environment says. Compares each run that reaches
/// its end with one that was never killed, and starts the next.
fn survives(kills: u64, sets: &[&str]) {
    let mut kills = asked("FIREBRICK_KILLS", kills);
    let mut moments = Moments(asked("FIREBRICK_KILLS_SEED", 1337));
    let sets: Vec<_> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let options = [&sets[..], &["--set", "checkpoints=(every: 3, keep_last: 2)", "--plain"]].concat();
    let whole = with_lines();
    let begun = Instant::now();
    report(&mut train(whole.path(), &options));
    let duration = begun.elapsed();
    while kills > 0 {
        let killed = with_lines();
        while kills > 0 && !killed.path().join("out/report.json").exists() {
            let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
                .current_dir(killed.path())
                .args(["train", "run.ron", "--resume", "auto"])
                .args(&options)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            sleep(moments.next(duration));
            kills -= u64::from(child.try_wait().unwrap().is_none());
            child.kill().unwrap();
            child.wait().unwrap();
        }
        report(train(killed.path(), &options).args(["--resume", "auto"]));
        ends_alike(whole.path(), killed.path());
    }
}

/// Creates the folder of a run that streams its rows.
fn with_lines() -> TempDir {
    let folder = folder();
    let line = |at| format!("{{\"text\":\"to be or not to be, that is the question {at}\"}}\n");
    fs::write(folder.path().join("lines.jsonl"), (0..60).map(line).collect::<String>()).unwrap();
    folder
}

/// Compares weights, best weights and checkpoint of both runs, and checks that their records have each step once.
fn ends_alike(whole: &Path, killed: &Path) {
    let out = |folder: &Path| folder.join("out");
    for name in ["model.safetensors", "ema.safetensors", "best.safetensors"] {
        let [one, other] = [whole, killed].map(|folder| out(folder).join(name));
        assert_eq!(one.exists(), other.exists(), "{name}");
        assert!(!one.exists() || tensors(&one) == tensors(&other), "{name}");
    }
    let last = |folder: &Path| out(folder).join(format!("checkpoints/step-{STEPS:08}"));
    let same = firebrick(killed).args(["checkpoint", "diff"]).args([last(whole), last(killed)]).assert();
    same.success();
    let evaluations: Vec<_> = logged(&out(whole), "valid").into_keys().collect();
    for folder in [whole, killed] {
        is_recorded_once(&out(folder), STEPS, &evaluations);
    }
}

#[test]
fn with_accumulation_dropout_and_an_average() {
    survives(2, &[]);
}

const ON_DISK: &str = "Offload(keep: optimizer, on: \".\", bucket_bytes: 1024)";

/// The file with the optimizer's state ends with the process: checkpoints alone count.
#[test]
fn with_the_optimizer_on_a_disk() {
    survives(2, &[&format!("strategies=[{ON_DISK}, Clip(norm: 1.0)]")]);
}

#[test]
#[ignore = "takes minutes: see the top of the file"]
fn with_the_optimizer_on_a_disk_on_ranks() {
    for stage in 1..=3 {
        let strategies =
            format!("strategies=[Zero(stage: {stage}), {ON_DISK}, Accumulate(2), Ema(decay: 0.9)]");
        survives(5, &["ranks=2", "batch=(micro: 2)", &strategies]);
    }
}

#[test]
#[ignore = "takes a minute: see the top of the file"]
fn without_a_strategy() {
    survives(10, &["strategies=[]"]);
}

#[test]
#[ignore = "takes a minute: see the top of the file"]
fn in_f16() {
    survives(10, &["strategies=[Amp(f16), Clip(norm: 1.0)]"]);
}

#[test]
#[ignore = "takes minutes: see the top of the file"]
fn on_ranks_with_each_stage() {
    for stage in 0..=3 {
        let strategies =
            format!("strategies=[Zero(stage: {stage}), Accumulate(2), Clip(norm: 1.0), Ema(decay: 0.9)]");
        survives(5, &["ranks=2", "batch=(micro: 2)", &strategies]);
    }
}

#[test]
#[ignore = "takes a minute: see the top of the file"]
fn with_factors_of_low_rank() {
    survives(10, &["strategies=[Lora(rank: 2), Clip(norm: 1.0)]"]);
}

#[test]
#[ignore = "takes a minute: see the top of the file"]
fn with_streamed_data() {
    let data = "data=(path: \"lines.jsonl\", valid: \"lines.jsonl\", stream: 8, tokenizer: Bpe(vocabulary: 270), special: (pad: \"<pad>\"), block: 16)";
    survives(10, &["task=CausalLm(rows: Samples)", data]);
}
