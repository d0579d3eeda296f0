//! A resumed run uses its own tokenizer, and notices other data.

use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{firebrick, folder, report, train};

/// Returns the error of a refused resume.
fn refused(folder: &Path, options: &[&str]) -> String {
    let refused = train(folder, options).assert().code(1);
    String::from_utf8_lossy(&refused.get_output().stderr).into_owned()
}

#[test]
fn other_data_is_refused_by_its_fingerprint_and_may_be_allowed() {
    let folder = folder();
    let folder = folder.path();
    report(&mut train(folder, &["--set", "steps=10"]));
    let text = fs::read_to_string(folder.join("text.txt")).unwrap();
    // The same data in another place, packed, or with another timestamp is the same data.
    fs::create_dir(folder.join("moved")).unwrap();
    fs::write(folder.join("moved/other.txt"), &text).unwrap();
    let moved = ["--resume", "--set", "steps=11", "--set", "data.path=\"moved/other.txt\""];
    train(folder, &moved).assert().success().stderr(contains("changed").not());
    // A change of one letter.
    let changed = text.replacen("be", "eb", 1);
    fs::write(folder.join("text.txt"), &changed).unwrap();
    let said = refused(folder, &["--resume", "--set", "steps=12"]);
    assert!(said.contains("`training data` was 164 samples with the fingerprint "), "{said}");
    assert!(said.contains(", and is 164 samples with the fingerprint "), "{said}");
    assert!(said.contains("--allow-changes"), "{said}");
    let allowed = train(folder, &["--resume", "--allow-changes", "--set", "steps=12"]).assert().success();
    allowed.stderr(contains("changed: `training data` was"));
    // A text that the run's own tokenizer cannot encode is not blamed on the tokenizer.
    fs::write(folder.join("text.txt"), format!("{changed}#")).unwrap();
    let said = refused(folder, &["--resume", "--allow-changes", "--set", "steps=13"]);
    assert!(said.contains("'#' is not in the vocabulary") && said.contains("its own tokenizer"), "{said}");
    fs::write(folder.join("text.txt"), changed).unwrap();
    // From here on it is the data of the run.
    report(&mut train(folder, &["--resume", "--set", "steps=13"]));
}

#[test]
fn other_data_for_evaluation_is_noticed() {
    let folder = folder();
    let folder = folder.path();
    fs::write(folder.join("valid.txt"), "to be or not to be\n".repeat(3)).unwrap();
    let valid = |steps| [["--set", "data.valid=\"valid.txt\""], ["--set", steps]].concat();
    report(&mut train(folder, &valid("steps=8")));
    fs::write(folder.join("valid.txt"), "to be or not to eb\n".repeat(3)).unwrap();
    let said = refused(folder, &[&["--resume"], &valid("steps=9")[..]].concat());
    assert!(said.contains("`validation data` was data with the fingerprint "), "{said}");
    assert!(!said.contains("training data"), "{said}");
    report(&mut train(folder, &[&["--resume", "--allow-changes"], &valid("steps=9")[..]].concat()));
}

#[test]
fn a_run_keeps_its_tokenizer_and_goes_on_with_no_other() {
    for tokenizer in ["Characters", "Bpe(vocabulary: 300)"] {
        let folder = folder();
        let folder = folder.path();
        let tokenizer = format!("data.tokenizer={tokenizer}");
        let with = |options: &[&'static str]| {
            let mut command = train(folder, options);
            command.args(["--set", &tokenizer]);
            command
        };
        report(&mut with(&["--set", "steps=10"]));
        let own = fs::read(folder.join("out/tokenizer.json")).unwrap();
        // A tokenizer trained on this text would differ: it has fewer characters, and other pairs.
        fs::write(folder.join("text.txt"), "or to be not\n".repeat(120)).unwrap();
        let went_on = with(&["--resume", "--allow-changes", "--set", "steps=12"]).assert().success();
        went_on.stderr(contains("reading the run's own tokenizer"));
        assert!(fs::read(folder.join("out/tokenizer.json")).unwrap() == own);
        assert!(fs::read(folder.join("out/pretrained/tokenizer.json")).unwrap() == own);
        // A tokenizer put in its place does not count either, whatever is allowed.
        let other = String::from_utf8(own.clone()).unwrap().replace("\"Ġ", "\"Q").replace("\"q\"", "\"Q\"");
        assert_ne!(other.as_bytes(), own);
        fs::write(folder.join("out/tokenizer.json"), other).unwrap();
        let said = with(&["--resume", "--allow-changes", "--set", "steps=13"]).assert().code(1);
        said.stderr(contains("`tokenizer` was one with the fingerprint").or(contains("tokenizer.json")));
    }
}

#[test]
fn a_run_goes_on_with_the_tokenizer_of_the_run_that_its_checkpoint_is_of() {
    let folder = folder();
    let folder = folder.path();
    report(&mut train(folder, &["--set", "steps=10"]));
    let own = fs::read(folder.join("out/tokenizer.json")).unwrap();
    let options = ["--resume", "out", "--set", "output=\"next\"", "--set", "steps=12"];
    train(folder, &options).assert().success().stderr(contains("reading the run's own tokenizer"));
    assert!(fs::read(folder.join("next/tokenizer.json")).unwrap() == own);
    firebrick(folder).args(["checkpoint", "verify", "next"]).assert().success();
}
