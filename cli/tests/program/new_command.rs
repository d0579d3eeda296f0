//! `firebrick new` as users run it.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::str::contains;

fn new(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder).arg("new").args(arguments);
    command
}

#[test]
fn a_crate_is_written_that_depends_on_the_sources() {
    let folder = tempfile::tempdir().unwrap();
    // The tests of this crate run in its folder.
    let sources = Path::new("..").canonicalize().unwrap();
    let arguments = ["sine", "--firebrick", sources.to_str().unwrap()];
    new(folder.path(), &arguments).assert().success().stdout(contains("cd sine && cargo run --release"));
    let read = |file: &str| fs::read_to_string(folder.path().join("sine").join(file)).unwrap();
    assert_eq!(read("src/main.rs"), fs::read_to_string("../examples/first_model.rs").unwrap());
    let manifest = read("Cargo.toml");
    for line in ["name = \"sine\"", &format!("firebrick = {{ path = {sources:?} }}")] {
        assert!(manifest.contains(line), "{manifest}");
    }
    // Cargo reads the manifest, finds the program and the crates that it names.
    let mut cargo = Command::new(env!("CARGO"));
    let tree = ["metadata", "--offline", "--no-deps", "--format-version", "1"];
    let output = cargo.current_dir(folder.path().join("sine")).args(tree).assert().success();
    let metadata: serde_json::Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let dependencies = metadata["packages"][0]["dependencies"].as_array().unwrap();
    let names: Vec<_> = dependencies.iter().map(|dependency| dependency["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["burn", "firebrick"]);
    // The same Burn as ours.
    let ours = fs::read_to_string("../Cargo.toml").unwrap();
    let version = dependencies[0]["req"].as_str().unwrap();
    assert!(ours.contains(&format!("burn = {{ version = \"{version}\"")), "{version}");
}

#[test]
fn what_exists_stays_and_what_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let sources = Path::new("..").canonicalize().unwrap();
    let sources = sources.to_str().unwrap();
    fs::create_dir(folder.path().join("there")).unwrap();
    new(folder.path(), &["there", "--firebrick", sources]).assert().code(1).stderr(contains("it exists"));
    new(folder.path(), &["2nd", "--firebrick", sources])
        .assert()
        .code(1)
        .stderr(contains("begins with a letter"));
    new(folder.path(), &["sine"]).assert().code(1).stderr(contains("--firebrick FOLDER"));
    assert!(!folder.path().join("sine").exists() && !folder.path().join("2nd").exists());
}
