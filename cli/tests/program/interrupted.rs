//! A run that a signal ends: it is saved if there is time, and resumed.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};

use crate::small_run::{folder, log, report, started, train};

fn send(signal: &str, child: &Child) {
    let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
}

/// Trains until it says `line` on standard error, and then sends the signal. Returns what it says after that.
fn stopped_at(line: &str, signal: &str, folder: &Path, options: &[&str]) -> (ExitStatus, Vec<String>) {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder)
        .args(["train", "run.ron", "--plain"])
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|said| said.starts_with(line)), "{line}");
    send(signal, &child);
    let rest = said.collect();
    (child.wait().unwrap(), rest)
}

/// Drawing the weights of a large model takes seconds, and cannot be stopped inside Burn.
#[test]
fn a_model_that_is_being_initialized_is_abandoned_at_once() {
    let folder = folder();
    let model = "model=Gpt(layers: 24, heads: 2, width: 1024)";
    let large =
        ["--set", model, "--set", "optimizer=Sgd()", "--set", "strategies=[]", "--set", "batch=(micro: 1)"];
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let (status, rest) = stopped_at("initializing the model: 2 s so far", signal, folder.path(), &large);
        assert_eq!(status.code(), Some(code));
        assert_eq!(rest, ["error: interrupted; nothing was written"]);
    }
    assert!(!folder.path().join("out").exists());
}

/// A sample that does not fit in memory is no reason to train first.
#[test]
fn a_sample_that_needs_too_much_memory_is_refused_before_the_run() {
    let folder = folder();
    let endless = r#"sample=(prompt: "to", tokens: 1000000000)"#;
    let model = "model=Llama(layers: 12, heads: 12, width: 768)";
    let error = train(folder.path(), &["--set", endless, "--set", model]).assert().failure();
    let said = String::from_utf8(error.get_output().stderr.clone()).unwrap();
    assert!(said.contains("`sample.tokens` is 1000000000: a text of this length needs at least"), "{said}");
    assert!(!folder.path().join("out").exists());
}

#[test]
fn a_sample_that_is_being_written_is_abandoned_and_the_run_is_complete() {
    let folder = folder();
    let short = ["--set", "steps=1", "--set", "schedule=Constant(lr: 1e-2)"];
    let endless = [&short[..], &["--set", r#"sample=(prompt: "to", tokens: 1000000)"#]].concat();
    let (status, rest) = stopped_at("writing a sample", "-INT", folder.path(), &endless);
    assert_eq!(status.code(), Some(130));
    let expected = "error: interrupted; the run is complete in out, except for its sample: ";
    assert!(rest.last().is_some_and(|last| last.starts_with(expected)), "{rest:?}");
    for name in ["model.safetensors", "report.json", "report.html", "pretrained/model.safetensors"] {
        assert!(folder.path().join("out").join(name).is_file(), "{name}");
    }
}

/// Names in a folder of files that are not complete.
fn staged(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(".staged")).collect()
}

/// Weights take a while to write, and a file of this size would fill a disk.
#[test]
fn a_command_that_a_signal_ends_leaves_no_half_written_file() {
    let folder = folder();
    let sets = [
        "model=Gpt(layers: 2, heads: 2, width: 512)",
        "steps=1",
        "schedule=Constant(lr: 1e-2)",
        "strategies=[]",
        "batch=(micro: 1)",
        "evaluate_every=None",
        "checkpoints=(every: 1)",
    ];
    report(&mut train(folder.path(), &sets.map(|set| ["--set", set]).concat()));
    let commands = [
        (&["consolidate", "out", "-o", "merged/whole.safetensors"][..], "merged"),
        (&["export", "out", "-o", "exported"][..], "exported"),
    ];
    for (command, into) in commands {
        for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
            let into = folder.path().join(into);
            // A command may end, or rename its file, before the signal reaches it.
            let is_met = (0..50).any(|_| {
                let _ = fs::remove_dir_all(&into);
                fs::create_dir(&into).unwrap();
                let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
                    .current_dir(folder.path())
                    .args(command)
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                while staged(&into).is_empty() && child.try_wait().unwrap().is_none() {
                    std::thread::yield_now();
                }
                if child.try_wait().unwrap().is_none() {
                    send(signal, &child);
                }
                let found = child.wait().unwrap().code();
                assert_eq!(staged(&into), [""; 0], "{command:?} {signal}");
                assert!(found == Some(code) || found == Some(0), "{command:?} {signal}: {found:?}");
                found == Some(code)
            });
            assert!(is_met, "{command:?} {signal}");
        }
    }
}

/// A step of minutes does not keep a run beyond its grace period.
#[test]
fn a_run_that_does_not_end_in_time_is_ended() {
    let folder = folder();
    fs::write(folder.path().join("text.txt"), "to be or not to be, that is the question\n".repeat(50_000))
        .unwrap();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder.path())
        .args(["train", "run.ron", "--plain", "--set", "checkpoints.grace=1"])
        .args(["--set", "batch=(micro: 1, accumulate: 1000000)", "--set", "evaluate_every=None"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // This file is written right before the first step.
    while !folder.path().join("out/metrics.jsonl").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it trained");
        std::thread::yield_now();
    }
    send("-TERM", &child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("did not end within its 1 s of grace"), "{said}");
}

/// Returns whether SIGHUP was ignored when these tests were started.
fn hang_up_is_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

#[test]
fn a_run_that_is_told_to_end_is_saved_and_goes_on() {
    for (signal, code, ranks) in [("-TERM", 143, "1"), ("-INT", 130, "2"), ("-HUP", 129, "1")] {
        if signal == "-HUP" && hang_up_is_ignored() {
            continue; // The program inherits that and continues, as under `nohup`.
        }
        let folder = folder();
        let warmup = "schedule.warmup=0";
        let long = ["--set", "steps=1000000", "--set", "checkpoints=()", "--set", warmup, "--ranks", ranks];
        let child = started(folder.path(), &long);
        send(signal, &child);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let text = String::from_utf8(output.stdout).unwrap();
        let first: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        let step = first["checkpoint_step"].as_u64().unwrap();
        assert_eq!(first["steps"], step);
        assert!(first["stopped"].as_str().unwrap().contains("interrupted"), "{first}");
        // A run that is over was not interrupted by anybody.
        let over = format!("steps={step}");
        let over = report(&mut train(
            folder.path(),
            &["--resume", "--ranks", ranks, "--set", warmup, "--set", &over],
        ));
        assert_eq!((&over["steps"], &over["stopped"]), (&step.into(), &serde_json::Value::Null), "{over}");
        let more = (step + 3).to_string();
        let steps = format!("steps={more}");
        let options = ["--resume", "--ranks", ranks, "--set", warmup, "--set", &steps];
        assert_eq!(report(&mut train(folder.path(), &options))["steps"].to_string(), more);
        assert_eq!(
            log(&folder.path().join("out")).iter().filter(|line| line.contains("train")).count() as u64,
            step + 3
        );
    }
}
