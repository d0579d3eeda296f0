//! The tokens and vocabularies that runs keep for later runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;
use tempfile::TempDir;

use crate::small_run::{at_root, firebrick, folder_of, log, tensors};

/// A run on records, in a folder with `a.jsonl` and `b.jsonl`.
const RECORDS: &str = r#"(
    task: CausalLm(rows: Samples),
    data: (path: "a.jsonl", valid: "b.jsonl", tokenizer: Bpe(vocabulary: 300), max_length: 12),
    model: Gpt(layers: 1, heads: 1, width: 8),
    optimizer: AdamW(),
    schedule: Constant(lr: 1e-2),
    batch: (micro: 2),
    steps: 3,
    evaluate_every: 1,
    checkpoints: (every: 2),
    output: "out",
)
"#;

const TOKENS: &str = "from the cache: the tokens of a.jsonl";
const VOCABULARY: &str = "from the cache: the vocabulary of 300 tokens";

fn records(texts: &[&str]) -> String {
    texts.iter().map(|text| format!("{{\"text\": {text:?}}}\n")).collect()
}

fn folder() -> TempDir {
    let folder = folder_of(RECORDS, 1);
    let texts = ["the rain in the north", "the sun in the south", "the north and the south", "rain", "sun"];
    fs::write(folder.path().join("a.jsonl"), records(&texts)).unwrap();
    fs::write(folder.path().join("b.jsonl"), records(&["the rain and the sun, and what is beyond them"]))
        .unwrap();
    folder
}

fn with_cache(mut command: Command, cache: &Path) -> Command {
    command.env("FIREBRICK_CACHE", cache).env_remove("FIREBRICK_CACHE_LIMIT");
    command
}

/// Trains, and returns what was said.
fn said(folder: &Path, options: &[&str]) -> String {
    let mut command = with_cache(firebrick(folder), &folder.join("cache"));
    // On the CPU: a GPU's driver that is looked for may print what it likes.
    command.args(["train", "run.ron", "--plain", "--device", "cpu"]).args(options);
    String::from_utf8(command.assert().success().get_output().stderr.clone()).unwrap()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        fs::read_dir(folder.join("cache/tokens")).unwrap().map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The log of a run, and the tensors of its weights and of its checkpoint.
fn results(out: &Path) -> (Vec<String>, Vec<Vec<u8>>) {
    let saved = out.join("checkpoints").join("step-00000002");
    let files = ["parameters-00000-of-00001.safetensors", "optimizer-00000-of-00001.safetensors"];
    let files = files.map(|file| saved.join(file)).into_iter().chain([out.join("model.safetensors")]);
    (log(out), files.map(|file| tensors(&file)).collect())
}

/// Each task, and windows of texts and of records, in memory and streamed.
#[test]
fn a_run_with_tokens_of_an_earlier_one_is_the_same_run() {
    let folder = folder();
    let jsonl = folder.path().join("a.jsonl").display().to_string();
    let path = format!("data.path={jsonl:?}");
    let records = folder.path().join("run.ron").display().to_string();
    let valid = format!("data.valid={:?}", folder.path().join("b.jsonl"));
    let of_records = |more: &[&str]| {
        let more = more.iter().map(|set| set.to_string());
        (records.clone(), [path.clone(), valid.clone()].into_iter().chain(more).collect::<Vec<_>>())
    };
    let example = |name: &str| (format!("examples/{name}.ron"), Vec::new());
    let mut numbers = example("sequence_classification");
    let scores = folder.path().join("scores.jsonl");
    let record = |score: usize| format!("{{\"text\": \"the rain\", \"label\": {score}.5}}\n");
    fs::write(&scores, (0..9).map(record).collect::<String>()).unwrap();
    numbers.1 = ["task=SequenceClassification(kind: Number)", "data.valid=None", "best_by=None"]
        .map(String::from)
        .to_vec();
    numbers.1.push(format!("data.path={scores:?}"));
    let windows = |more: &[&str]| {
        of_records(&[&["task=CausalLm()", "data.max_length=None", "data.block=4"], more].concat())
    };
    let text = format!("data.path={:?}", folder.path().join("text.txt"));
    fs::write(folder.path().join("text.txt"), "the rain in the north, the sun in the south\n".repeat(9))
        .unwrap();
    for ((run, sets), entries) in [
        (example("chat"), 3),
        (example("dpo"), 3),
        (example("masked_lm"), 3),
        (example("seq2seq"), 3),
        (example("sequence_classification"), 3),
        (numbers, 2),
        (example("token_classification"), 3),
        (of_records(&[]), 3),
        (of_records(&["data.stride=2", "data.malformed=Skip"]), 3),
        (of_records(&["data.stream=3"]), 3),
        (windows(&[]), 3),
        (windows(&[&text, "data.valid=None", "data.valid_fraction=0.3"]), 3),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let train = |out: &str, set: &str| {
            let out = cache.path().join(out);
            let mut command = with_cache(at_root(), cache.path());
            command.args(["train", &run, "--plain", "--set", set, "--set", "evaluate_samples=4"]);
            command.args(["--set", "epochs=None", "--set", "steps=2", "--set", "checkpoints=(every: 2)"]);
            command.args(["--set", "evaluate_every=1", "--output", out.to_str().unwrap()]);
            command.args(sets.iter().flat_map(|set| ["--set", set]));
            let output = command.assert().success().get_output().stderr.clone();
            let said = String::from_utf8(output).unwrap();
            (results(&out), said.matches("from the cache: ").count(), said)
        };
        let (without, none, _) = train("without", "data.cache=false");
        assert!(!cache.path().join("tokens").exists() && none == 0, "{run}");
        let (first, none, _) = train("first", "data.cache=true");
        let (second, all, said) = train("second", "data.workers=2");
        assert_eq!((none, all), (0, entries), "{run} {sets:?}: {said}");
        assert_eq!(fs::read_dir(cache.path().join("tokens")).unwrap().count(), entries, "{run}");
        assert!(!said.contains("learning a vocabulary"), "{said}");
        assert!(first == without && second == without, "{run} {sets:?}");
    }
}

#[test]
fn what_changes_the_tokens_is_tokenized_again() {
    let folder = folder();
    let path = folder.path();
    assert!(!said(path, &[]).contains("from the cache"));
    // Settings that tokens do not depend on.
    let same = [
        "--set",
        "seed=7",
        "--set",
        "batch.micro=1",
        "--set",
        "data.padding=(multiple_of: 8)",
        "--lr",
        "1e-3",
    ];
    let found = said(path, &same);
    assert!(found.contains(TOKENS) && found.contains(VOCABULARY), "{found}");
    for set in [
        "data.max_length=11",
        "data.stride=1",
        "task=CausalLm(rows: Samples, end: Some(false), text: \"other\")",
        "data.special=(eos: \"</s>\")",
        "data.malformed=Skip",
    ] {
        fs::write(path.join("b.jsonl"), "{\"text\": \"the rain\", \"other\": \"sun\"}\n".repeat(3)).unwrap();
        let other = set.contains("other");
        let data = if other { "{\"other\": \"the rain in the north\"}\n" } else { "" };
        let before = fs::read_to_string(path.join("a.jsonl")).unwrap();
        if other {
            fs::write(path.join("a.jsonl"), data.repeat(3)).unwrap();
        }
        let found = said(path, &["--set", set]);
        assert!(!found.contains(TOKENS), "{set}: {found}");
        assert!(said(path, &["--set", set]).contains(TOKENS), "{set}");
        fs::write(path.join("a.jsonl"), before).unwrap();
    }
    assert!(said(path, &[]).contains(TOKENS));
    // The same contents elsewhere, and other contents in the same place.
    fs::create_dir(path.join("moved")).unwrap();
    fs::rename(path.join("a.jsonl"), path.join("moved/c.jsonl")).unwrap();
    assert!(said(path, &["--set", "data.path=\"moved/c.jsonl\""]).contains("the tokens of moved/c.jsonl"));
    fs::write(path.join("a.jsonl"), records(&["the rain in the north", "the sun", "the north"])).unwrap();
    let found = said(path, &[]);
    assert!(!found.contains(TOKENS) && !found.contains(VOCABULARY), "{found}");
}

#[test]
fn damaged_tokens_are_made_again() {
    let folder = folder();
    let path = folder.path();
    said(path, &[]);
    let good: Vec<_> = entries(path).iter().map(|entry| fs::read(entry).unwrap()).collect();
    let expected = results(&path.join("out"));
    type Damage = fn(&[u8]) -> Vec<u8>;
    let damages: [(&str, Damage); 4] = [
        ("checksum", |bytes| [&bytes[..bytes.len() - 1], &[bytes[bytes.len() - 1] ^ 1]].concat()),
        ("truncated", |bytes| bytes[..bytes.len() / 2].to_vec()),
        ("truncated", |_| Vec::new()),
        ("not an entry", |bytes| vec![b'x'; bytes.len()]),
    ];
    for (reason, damage) in damages {
        for (entry, bytes) in entries(path).iter().zip(&good) {
            fs::write(entry, damage(bytes)).unwrap();
        }
        let found = said(path, &[]);
        assert_eq!(found.matches("in the cache cannot be used").count(), 3, "{found}");
        assert!(found.contains(reason) && found.contains("made again"), "{found}");
        assert_eq!(results(&path.join("out")), expected);
        assert_eq!(said(path, &[]).matches("from the cache: ").count(), 3);
        let again: Vec<_> = entries(path).iter().map(|entry| fs::read(entry).unwrap()).collect();
        assert_eq!(again, good);
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_a_warning() {
    let folder = folder();
    let path = folder.path();
    fs::write(path.join("cache"), "").unwrap();
    for options in [&[][..], &["--quiet"]] {
        let found = said(path, options);
        assert_eq!(found.matches("warning: later runs tokenize again").count(), 1, "{found}");
        assert_eq!(found.lines().count() == 1, options == ["--quiet"], "{found}");
    }
    let train = || {
        let mut command = firebrick(path);
        command.args(["train", "run.ron", "--plain"]);
        command
    };
    let mut limited = with_cache(train(), &path.join("other"));
    limited.env("FIREBRICK_CACHE_LIMIT", "300B").assert().success().stderr(contains("FIREBRICK_CACHE_LIMIT"));
    let mut wrong = with_cache(train(), &path.join("other"));
    wrong.env("FIREBRICK_CACHE_LIMIT", "much").assert().success().stderr(contains("found \"much\""));
}

/// What is said about the data is the same, and a checkpoint knows its data.
#[test]
fn skipped_and_cut_records_are_reported_and_a_run_resumes() {
    let folder = folder();
    let path = folder.path();
    let data = fs::read_to_string(path.join("a.jsonl")).unwrap();
    said(path, &["--output", "tokenizer"]);
    fs::write(path.join("a.jsonl"), format!("{{\n{data}")).unwrap();
    let tokenizer = "data.tokenizer=File(\"tokenizer/tokenizer.json\")";
    let skip = ["--set", "data.malformed=Skip", "--set", "data.max_length=5", "--set", tokenizer];
    let about_data = |said: String| {
        let lines = said.lines().filter(|line| {
            line.contains("skipped 1 mal") || line.contains("cut off") || line.contains("a.jsonl:1")
        });
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let first = about_data(said(path, &skip));
    assert_eq!(first.len(), 4, "{first:?}");
    assert_eq!(about_data(said(path, &skip)), first);
    let resumed = said(path, &[&skip[..], &["--steps", "4", "--resume", "auto"]].concat());
    assert!(resumed.contains(TOKENS) && resumed.contains("step      4/4"), "{resumed}");
}

#[test]
fn ranks_and_processes_share_the_tokens() {
    let folder = folder();
    let path = folder.path();
    let both = ["one", "two"].map(|out| {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("firebrick"));
        command.current_dir(path).env("FIREBRICK_CACHE", path.join("cache"));
        command.args(["train", "run.ron", "--quiet", "--output", out]).stdout(Stdio::null()).spawn().unwrap()
    });
    both.into_iter().for_each(|mut run| assert!(run.wait().unwrap().success()));
    assert_eq!(results(&path.join("one")), results(&path.join("two")));
    assert_eq!(entries(path).len(), 3);
    let found = said(path, &["--ranks", "2", "--set", "batch.micro=1"]);
    assert_eq!(found.matches("from the cache: ").count(), 3, "{found}");
}

#[test]
fn tokens_are_listed_and_cleared() {
    let folder = folder();
    let path = folder.path();
    said(path, &[]);
    let cache = |arguments: &[&str]| {
        let mut command = with_cache(firebrick(path), &path.join("cache"));
        command.arg("cache").args(arguments).assert().success()
    };
    let listed = contains("cache/tokens: ").and(contains("the tokens of b.jsonl"));
    cache(&[]).stdout(listed.and(contains("the vocabulary of 300 tokens")));
    let json = cache(&["--report", "json"]).get_output().stdout.clone();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 3);
    fs::write(path.join("cache/kernels_a_full.db"), "1").unwrap();
    cache(&["clear", "tokens"]).stdout(contains("cache/tokens").and(contains("1 B").not()));
    assert!(entries(path).is_empty() && path.join("cache/kernels_a_full.db").exists());
    said(path, &[]);
    cache(&["clear", "kernels"]);
    assert_eq!(entries(path).len(), 3);
    cache(&["clear"]);
    assert!(entries(path).is_empty() && !path.join("cache/kernels_a_full.db").exists());
}

/// If this fails although the data and the settings are the same, raise the number of `VERSION` in
/// `tasks/src/load/kept.rs`, or runs would take the tokens that older versions made. Then update the hashes.
#[test]
fn samples_are_those_of_this_version() {
    let mut found = Vec::new();
    for example in ["chat", "dpo", "masked_lm", "seq2seq", "sequence_classification", "token_classification"]
    {
        let cache = tempfile::tempdir().unwrap();
        let mut command = with_cache(at_root(), cache.path());
        command.args(["data", &format!("examples/{example}.ron")]).assert().success();
        let files = fs::read_dir(cache.path().join("tokens")).unwrap();
        // Without the header, whose key depends on the version.
        let bytes =
            |file: std::io::Result<fs::DirEntry>| fs::read(file.unwrap().path()).unwrap()[112..].to_vec();
        let mut hashes: Vec<_> = files.map(|file| blake3::hash(&bytes(file)).to_string()).collect();
        hashes.sort();
        found.push(format!("{example} {}", &blake3::hash(hashes.concat().as_bytes()).to_string()[..16]));
    }
    let expected = [
        "chat 5b8ce0a43fdf4f4d",
        "dpo 6366a3b12df9dd2e",
        "masked_lm feb80aac8027867a",
        "seq2seq 5967557e94bae5b3",
        "sequence_classification edef66c3bced4928",
        "token_classification 7f70dd0516c13390",
    ];
    assert_eq!(found, expected);
}
