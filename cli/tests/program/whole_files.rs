//! Files that a user names are written atomically, with the permissions of the user's umask.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use predicates::str::contains;
use tempfile::TempDir;

/// A classifier that trains in a second.
const RUN: &str = r#"(
    task: SequenceClassification(),
    data: (path: "train.jsonl", valid: "valid.jsonl", tokenizer: Bpe(vocabulary: 270),
        special: (pad: "<pad>", bos: "<s>", eos: "</s>"), max_length: 20),
    model: Bert(layers: 1, heads: 2, width: 16),
    optimizer: AdamW(),
    schedule: Constant(lr: 1e-3),
    batch: (micro: 4),
    steps: 4,
    output: "out",
)
"#;

fn firebrick(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("firebrick").unwrap();
    command.current_dir(folder).args(arguments);
    command
}

fn record(at: usize) -> String {
    format!("{{\"text\": \"{}\", \"label\": \"{}\"}}\n", "ab ".repeat(1 + at % 5), ["x", "y"][at % 2])
}

fn trained() -> TempDir {
    trained_with(&[])
}

fn trained_with(options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("run.ron"), RUN).unwrap();
    for name in ["train.jsonl", "valid.jsonl"] {
        fs::write(folder.path().join(name), (0..40).map(record).collect::<String>()).unwrap();
    }
    firebrick(folder.path(), &["train", "run.ron"]).args(options).assert().success();
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn predictions_are_written_whole_or_not_at_all() {
    let folder = trained();
    let before = names(folder.path());
    let valid = folder.path().join("valid.jsonl");
    // The output replaces its own input: every record is read before.
    let onto_itself = ["predict", "out", "--data", "valid.jsonl", "-o", "valid.jsonl"];
    firebrick(folder.path(), &onto_itself).assert().success().stderr(contains("40 answers"));
    let answers = fs::read_to_string(&valid).unwrap();
    assert_eq!(answers.lines().filter(|line| line.contains("predicted")).count(), 40);

    // The command fails in the middle: the existing file stays, and nothing else is left.
    let broken: String = (0..600).map(record).collect::<String>() + "{\n";
    fs::write(folder.path().join("broken.jsonl"), broken).unwrap();
    let broken = ["predict", "out", "--data", "broken.jsonl", "-o", "valid.jsonl"];
    firebrick(folder.path(), &broken).assert().code(1).stderr(contains("broken.jsonl"));
    assert_eq!(fs::read_to_string(&valid).unwrap(), answers);
    fs::remove_file(folder.path().join("broken.jsonl")).unwrap();
    assert_eq!(names(folder.path()), before);
}

#[cfg(unix)]
#[test]
fn an_interrupted_prediction_leaves_no_half_of_a_file() {
    let folder = trained();
    fs::write(folder.path().join("many.jsonl"), (0..200_000).map(record).collect::<String>()).unwrap();
    let before = names(folder.path());
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None)] {
        let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
            .current_dir(folder.path())
            .args(["predict", "out", "--data", "many.jsonl", "-o", "answers.jsonl"])
            .spawn()
            .unwrap();
        let staged = |name: &String| name.starts_with(".staged-") && name.ends_with("answers.jsonl");
        let begun = || {
            let staged = names(folder.path()).into_iter().find(staged);
            staged.is_some_and(|name| fs::metadata(folder.path().join(name)).is_ok_and(|file| file.len() > 0))
        };
        while !begun() {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
            std::thread::yield_now();
        }
        let kill = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(kill.unwrap().success());
        assert_eq!(child.wait().unwrap().code(), code);
        // Nothing can remove the half of a killed process when it ends: the next command does.
        assert_eq!(
            names(folder.path()).iter().filter(|name| staged(name)).count(),
            usize::from(code.is_none())
        );
    }
    let again = ["predict", "out", "--data", "many.jsonl", "--limit", "1", "-o", "answers.jsonl"];
    firebrick(folder.path(), &again).assert().success();
    fs::remove_file(folder.path().join("answers.jsonl")).unwrap();
    assert_eq!(names(folder.path()), before);
}

/// Starts a command, sends it a signal when `begun` says so, and returns whether that ended it. A fast machine may be
/// done before.
#[cfg(unix)]
fn interrupted(folder: &Path, arguments: &[&str], signal: &str, begun: impl Fn() -> bool) -> bool {
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"))
        .current_dir(folder)
        .args(arguments)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !begun() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let _ = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
    !child.wait().unwrap().success()
}

#[cfg(unix)]
#[test]
fn an_interrupted_export_leaves_no_half_of_a_folder() {
    let folder = trained_with(&["--set", "model=Bert(layers: 2, heads: 4, width: 512)", "--set", "steps=1"]);
    let before = names(folder.path());
    let exported = folder.path().join("exported");
    let export = ["export", "out", "-o", "exported"];
    // Its name has the number of its process.
    let staged = |within: &Path| {
        let is_staged = |name: &String| name.starts_with(".staged-") && name.ends_with("-exported");
        names(within).into_iter().find(is_staged).map(|name| within.join(name))
    };
    let has = |within: &Path| {
        staged(within).is_some_and(|staged| fs::read_dir(staged).is_ok_and(|entries| entries.count() > 0))
    };
    for signal in ["-INT", "-TERM", "-KILL"] {
        let again = || {
            let _ = fs::remove_dir_all(&exported);
            interrupted(folder.path(), &export, signal, || has(folder.path()))
        };
        assert!((0..20).any(|_| again()), "{signal}: each export ended before");
        // The signal may come when all is written.
        assert!(!exported.exists() || exported.join(".made_of").exists(), "{signal}");
        assert_eq!(staged(folder.path()).is_some(), signal == "-KILL" && !exported.exists(), "{signal}");
    }
    let _ = fs::remove_dir_all(&exported);
    firebrick(folder.path(), &export).assert().success();
    assert_eq!(names(folder.path()), [&["exported".to_owned()], &before[..]].concat());

    // An earlier export stays as it was, with what else is in its folder.
    fs::write(exported.join("README.md"), "mine").unwrap();
    let files = names(&exported);
    for signal in ["-INT", "-TERM", "-KILL"] {
        let again = || {
            for name in &files {
                fs::write(exported.join(name), "earlier").unwrap();
            }
            interrupted(folder.path(), &export, signal, || has(&exported))
        };
        assert!((0..20).any(|_| again()), "{signal}: each export ended before");
        let texts = files.iter().map(|name| fs::read(exported.join(name)).unwrap());
        let earlier = texts.filter(|text| text == b"earlier").count();
        // All but what the export does not write is new if it came to its end.
        assert!([files.len(), 1].contains(&earlier), "{signal}: {earlier} of {}", files.len());
    }
    firebrick(folder.path(), &export).assert().success();
    assert_eq!(names(&exported), files);
    firebrick(folder.path(), &["eval", "out", "--weights", "exported"]).assert().success();
}

/// The data may take hours to read.
#[cfg(target_os = "linux")]
#[test]
fn an_output_that_cannot_be_written_is_found_first() {
    let folder = trained_with(&["--set", "checkpoints=(every: 4)"]);
    // Not even the superuser creates files there.
    let output = |arguments: &[&str]| {
        let failed = firebrick(folder.path(), arguments).assert().code(1);
        let said = String::from_utf8(failed.get_output().stderr.clone()).unwrap();
        assert!(said.contains("/proc/none"), "{said}");
        assert!(!said.contains("learning a vocabulary") && !said.contains("loading"), "{said}");
    };
    let cache = "data.cache=false";
    output(&["train", "run.ron", "--set", "output=\"/proc/none/out\"", "--set", cache]);
    output(&["train", "run.ron", "--set", "output=\"/proc/none\"", "--set", cache, "--resume", "auto"]);
    output(&["predict", "out", "-o", "/proc/none/answers.jsonl"]);
    output(&["export", "out", "-o", "/proc/none/exported"]);
    output(&["tokenize", "run.ron", "-o", "/proc/none/tokens"]);
    output(&["consolidate", "out", "-o", "/proc/none/model.safetensors"]);
}

#[cfg(unix)]
#[test]
fn files_follow_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let folder = trained();
    firebrick(folder.path(), &["train", "run.ron", "--set", "checkpoints=(every: 2)"]).assert().success();
    let program = assert_cmd::cargo::cargo_bin("firebrick");
    for (umask, mode) in [("022", 0o644), ("027", 0o640), ("002", 0o664)] {
        let train =
            format!("umask {umask} && {} train run.ron --set output='\"{umask}\"'", program.display());
        Command::new("sh").current_dir(folder.path()).args(["-c", &train]).assert().success();
        let mut files = vec![folder.path().join(umask)];
        let mut seen = 0;
        while let Some(path) = files.pop() {
            let metadata = fs::metadata(&path).unwrap();
            if metadata.is_dir() {
                files.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            } else {
                seen += 1;
                assert_eq!(metadata.permissions().mode() & 0o777, mode, "{}", path.display());
            }
        }
        assert!(seen > 10, "{seen} files");
    }
}
