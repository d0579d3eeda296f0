//! The command `new`: writes a crate that trains a model of its own.

use std::fs;
use std::path::{Component, Path, PathBuf};

use clap::Args;

use crate::RunError;
use crate::console::print;
use firebrick::saving::save_text;

const EXAMPLES: &str = "\
Examples:
  firebrick new sine                             # beside a folder `firebrick` with the sources
  firebrick new sine --firebrick ~/src/firebrick
  cd sine && cargo run --release

The crate has a model, a data set of Burn's and a composed recipe in one file, which you change to yours.";

/// The crate's program, which is also an example of this repository.
const PROGRAM: &str = include_str!("../../../examples/first_model.rs");

/// `firebrick new`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct NewArgs {
    /// The folder to create; its name is the crate's.
    #[arg(value_name = "NAME")]
    folder: PathBuf,
    /// The folder with the sources of Firebrick.
    #[arg(long, value_name = "FOLDER", default_value = "firebrick")]
    firebrick: PathBuf,
}

/// Runs `firebrick new`.
pub(crate) fn new(args: &NewArgs) -> Result<(), RunError> {
    let refuse = |reason: String| RunError::New { folder: args.folder.clone(), reason };
    let name = crate_name(&args.folder).map_err(refuse)?;
    if args.folder.exists() {
        return Err(refuse("it exists; choose another name".into()));
    }
    let sources = sources(&args.firebrick).map_err(refuse)?;
    let source = args.folder.join("src");
    fs::create_dir_all(&source).map_err(|error| refuse(error.to_string()))?;
    save_text(&manifest(&name, &sources), &args.folder.join("Cargo.toml"))?;
    save_text("/target\n/runs\n", &args.folder.join(".gitignore"))?;
    save_text(PROGRAM, &source.join("main.rs"))?;
    let folder = args.folder.display();
    print(&format!("{folder} is a crate that trains a model: cd {folder} && cargo run --release\n"));
    Ok(())
}

/// Returns the last part of the path if Cargo takes it as the name of a package.
fn crate_name(folder: &Path) -> Result<String, String> {
    let name = match folder.components().next_back() {
        Some(Component::Normal(name)) => name.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || !name.chars().all(is_word) {
        return Err(format!(
            "a crate's name has letters, digits, - and _, and begins with a letter, found `{name}`"
        ));
    }
    let what = [
        (&TAKEN[..], "the name of another crate"),
        (&KEYWORDS[..], "a word of Rust"),
        (&FOLDERS[..], "the name of a folder of Cargo's"),
        (&DEVICES[..], "the name of a device on Windows"),
    ];
    let is_in = |names: &[&str]| names.iter().any(|taken| taken.eq_ignore_ascii_case(&name));
    match what.into_iter().find(|(names, _)| is_in(names)) {
        Some((_, what)) => Err(format!("`{name}` is {what}; choose another name")),
        None => Ok(name),
    }
}

/// A crate of the same name as a dependency, or as Rust's own, does not build.
const TAKEN: [&str; 8] = ["burn", "firebrick", "test", "core", "std", "alloc", "proc_macro", "proc-macro"];

/// The keywords of Rust, reserved ones included. Cargo refuses them.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop",
    "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static",
    "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use", "virtual",
    "where", "while", "yield",
];

/// The folders of Cargo beside those of programs.
const FOLDERS: [&str; 4] = ["build", "deps", "examples", "incremental"];

/// Names that files and folders cannot have on Windows.
const DEVICES: [&str; 22] = [
    "con", "prn", "aux", "nul", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9",
    "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7", "lpt8", "lpt9",
];

/// Returns the absolute path of the sources, if they are there.
fn sources(folder: &Path) -> Result<PathBuf, String> {
    let found = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    if !found.lines().any(|line| line.trim() == "name = \"firebrick\"") {
        let folder = folder.display();
        return Err(format!(
            "the sources of Firebrick are not in `{folder}`: name their folder with --firebrick FOLDER"
        ));
    }
    folder.canonicalize().map_err(|error| error.to_string())
}

fn manifest(name: &str, sources: &Path) -> String {
    // A TOML string has the same escapes as Rust's.
    let path = sources.display().to_string();
    format!(
        r#"[package]
name = "{name}"
version = "0.1.0"
edition = "2024"

[features]
# GPUs: `cargo run --release --features cuda`, with `firebrick::device::find("auto")?.0` as the device.
cuda = ["firebrick/cuda"]
wgpu = ["firebrick/wgpu", "firebrick/autotune"]

[dependencies]
burn = {{ version = "=0.22.1", default-features = false, features = ["std", "autodiff", "optim", "flex", "train"] }}
firebrick = {{ path = {path:?} }}
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_cargo() {
        for name in ["sine", "my-model_2", "some/where/net"] {
            assert!(crate_name(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["", "..", "2nd", "a b", "größe", "burn", "firebrick", "x/.."] {
            assert!(crate_name(Path::new(name)).is_err(), "{name}");
        }
        for (name, said) in [
            ("fn", "a word of Rust"),
            ("self", "a word of Rust"),
            ("x/Self", "a word of Rust"),
            ("con", "a device on Windows"),
            ("LPT1", "a device on Windows"),
            ("deps", "a folder of Cargo's"),
            ("std", "another crate"),
        ] {
            assert!(crate_name(Path::new(name)).unwrap_err().contains(said), "{name}");
        }
    }
}
