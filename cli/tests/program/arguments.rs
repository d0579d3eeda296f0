//! Arguments that cannot be meant so: what is wrong with them is said, and found before anything is read.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::command_line::folder;
use crate::small_run::firebrick;

#[test]
fn numbers_that_cannot_be_are_explained() {
    let folder = folder();
    let number = "expected a whole number, at least 0";
    for (arguments, code, said) in [
        (&["train", "run.ron", "--steps", "-3"][..], 2, number),
        (&["train", "run.ron", "--steps", "many"], 2, number),
        (&["train", "run.ron", "--batch", "-4"], 2, number),
        (&["train", "run.ron", "--ranks", "-2"], 2, number),
        (&["eval", "out", "--perplexity", "--window", "-8"], 2, number),
        (&["data", "run.ron", "--width", "-8"], 2, "-8 is not in 20..=10000"),
        (&["train", "run.ron", "--lr", "-1"], 1, "`schedule.lr` must be finite and above 0, found -1"),
    ] {
        let refused = firebrick(folder.path()).args(arguments).assert().code(code);
        refused.stderr(contains(said).and(contains("tip:").not())).stdout("");
    }
    firebrick(folder.path()).args(["train", "run.ron", "-3"]).assert().code(2).stderr(contains("'-3'"));
}

#[test]
fn a_place_without_a_run_says_where_runs_are() {
    let folder = folder();
    fs::create_dir(folder.path().join("data")).unwrap();
    for (command, more) in [
        ("eval", &[][..]),
        ("predict", &[]),
        ("generate", &["--prompt", "to be"]),
        ("export", &[]),
        ("push", &["org/name"]),
    ] {
        for place in ["data", "nope"] {
            let refused = firebrick(folder.path()).args([command, place]).args(more).assert().code(1);
            let said = format!("{place}: expected the output folder of a run; `firebrick runs FOLDER` lists");
            refused.stderr(contains(said));
        }
    }
    let folders = firebrick(folder.path()).args(["train", "data"]).assert().code(1);
    folders.stderr(contains("it is a folder: name the run file in it"));
    let named = firebrick(folder.path()).args(["predict", "out", "new.jsonl"]).assert().code(2);
    named.stderr(contains("a file is named with --data new.jsonl"));
}

/// The data is missing too, but the output is looked at first.
#[test]
fn an_output_that_cannot_be_written_is_found_before_anything_is_read() {
    let folder = folder();
    fs::remove_file(folder.path().join("text.txt")).unwrap();
    for command in [["tokenize", "run.ron", "--output"], ["predict", "out", "--output"]] {
        let refused = firebrick(folder.path()).args(command).arg("no/such").assert().code(1);
        refused.stderr(contains("no/such: making the file"));
    }
    firebrick(folder.path()).args(["tokenize", "run.ron", "--output", "fine"]).assert().code(1);
    assert!(!Path::new(&folder.path().join("fine")).exists(), "nothing was tokenized");
}
