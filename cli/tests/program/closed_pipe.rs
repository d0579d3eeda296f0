//! Commands whose output is not read to the end, as by `head`: all of them end quietly, with code 0.

use std::io::{BufRead, BufReader, Read, Write, pipe};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::small_run::{RUN, folder_of, train};

/// Starts a command that writes into a pipe that nobody reads, and returns its exit code and what it says.
fn unread(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let mut child = Command::new(assert_cmd::cargo::cargo_bin("firebrick"));
    child.current_dir(folder).args(arguments).stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped());
    let output = child.spawn().unwrap().wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits for the end of a command, a minute at most.
fn end(mut child: Child) -> (Option<i32>, String) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut said = String::new();
            child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            return (status.code(), said);
        }
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it goes on although nobody reads its output");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn every_command_ends_quietly() {
    let folder = folder_of(RUN, 40);
    train(folder.path(), &["--steps", "2", "--set", "checkpoints=(every: 1)"]).assert().success();
    let commands: [&[&str]; 22] = [
        &["--help"],
        &["--version"],
        &["train", "run.ron", "--steps", "2", "--output", "other", "--report", "json"],
        &["train", "run.ron", "--steps", "2", "--output", "third"],
        &["eval", "out"],
        &["generate", "out", "--prompt", "to be", "--max-new-tokens", "2"],
        &["watch", "out"],
        &["report", "out"],
        &["runs", "."],
        &["compare", "out", "out"],
        &["data", "run.ron"],
        &["data", "run.ron", "--report", "json"],
        &["tokenize", "run.ron", "--output", "corpus.tokens"],
        &["export", "out", "-o", "exported"],
        &["consolidate", "out", "-o", "model.safetensors"],
        &["checkpoint", "show", "out"],
        &["checkpoint", "verify", "out"],
        &["plan", "run.ron"],
        &["init", "CausalLm", "--data", "text.txt"],
        &["schema"],
        &["completions", "bash"],
        &["devices"],
    ];
    for command in commands {
        let (code, said) = unread(folder.path(), command);
        assert_eq!(code, Some(0), "{command:?}: {said}");
        assert!(!said.contains("error") && !said.contains("panicked"), "{command:?}: {said}");
    }
}

/// `yes rain | firebrick generate RUN | head -1` ends, although there is always another prompt.
#[test]
fn a_command_that_answers_lines_ends_when_nobody_reads_the_answers() {
    let folder = folder_of(RUN, 40);
    train(folder.path(), &["--steps", "2"]).assert().success();
    for command in [
        &["generate", "out", "--max-new-tokens", "1"][..],
        &["predict", "out", "-", "--max-new-tokens", "1"],
        &["predict", "out", "-", "--max-new-tokens", "1", "-o", "/dev/stdout"],
    ] {
        let mut child = Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
            .current_dir(folder.path())
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut prompts = child.stdin.take().unwrap();
        // It ends with the command, which no longer reads.
        let asks = thread::spawn(move || while writeln!(prompts, "to be").is_ok() {});
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        answers.read_line(&mut first).unwrap();
        assert!(first.contains("to be"), "{first}");
        drop(answers);
        let (code, said) = end(child);
        assert_eq!(code, Some(0), "{command:?}: {said}");
        assert!(!said.contains("error"), "{command:?}: {said}");
        asks.join().unwrap();
    }
}
