//! Tokenizers with more or fewer tokens than a model, and what they put around texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::small_run::{firebrick, report, train};

const GOLDEN: &str = "tests/golden/measures/model";

/// Copies a model, and writes its run file and records.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(Path::new(GOLDEN).join(name), folder.path().join("model").join(name)).unwrap();
    }
    let records = "{\"text\": \"to be or not to be\"}\n".repeat(8);
    fs::write(folder.path().join("data.jsonl"), records).unwrap();
    let run = r#"(
        task: CausalLm(rows: Samples),
        data: (path: "data.jsonl", valid: "data.jsonl", tokenizer: File("model"), max_length: 16),
        model: Pretrained("model"),
        optimizer: AdamW(),
        schedule: Constant(lr: 1e-3),
        batch: (micro: 4),
        steps: 2,
        sample: (prompt: "to", tokens: 40, temperature: 1.0),
        device: "cpu",
        output: "out",
    )"#;
    fs::write(folder.path().join("run.ron"), run).unwrap();
    folder
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Adds tokens to a tokenizer, as many as it has, and returns how many it has then.
fn double(tokenizer: &Path) -> usize {
    let mut file = read(tokenizer);
    // Its one added token is in the vocabulary too.
    let known = file["model"]["vocab"].as_object().unwrap().len();
    let added = (known..2 * known).map(|id| {
        json!({"id": id, "content": format!("<new{id}>"), "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": false})
    });
    file["added_tokens"].as_array_mut().unwrap().extend(added);
    fs::write(tokenizer, file.to_string()).unwrap();
    2 * known
}

#[test]
fn a_larger_tokenizer_adds_rows_and_a_smaller_one_decodes_them_to_nothing() {
    let folder = folder();
    let tokenizer = folder.path().join("model/tokenizer.json");
    let original = fs::read(&tokenizer).unwrap();
    let known = read(&folder.path().join("model/config.json"))["vocab_size"].as_u64().unwrap();
    let tokens = double(&tokenizer);
    let said = format!("the tokenizer has {tokens} tokens, and the model of the folder {known}");
    train(folder.path(), &[]).assert().success().stderr(contains(said));
    let grown = folder.path().join("out/pretrained");
    assert_eq!(read(&grown.join("config.json"))["vocab_size"], tokens);

    // Now the model has rows that the tokenizer lacks, half of all.
    fs::write(&tokenizer, original).unwrap();
    fs::copy(grown.join("config.json"), folder.path().join("model/config.json")).unwrap();
    fs::copy(grown.join("model.safetensors"), folder.path().join("model/model.safetensors")).unwrap();
    let output = folder.path().join("second");
    train(folder.path(), &["--set", "output=\"second\""]).assert().success();
    assert!(output.join("report.html").is_file() && output.join("sample.txt").is_file());
    for more in [&["generate", "second", "--prompt", "to", "--temperature", "1"][..], &["predict", "second"]]
    {
        firebrick(folder.path()).args(more).assert().success();
    }
}

#[test]
fn new_tokens_are_added_to_the_tokenizer_and_the_model() {
    let folder = folder();
    let known = read(&folder.path().join("model/config.json"))["vocab_size"].as_u64().unwrap();
    let new = ["--set", r#"data.new_tokens=["<question>", "<answer>"]"#];
    train(folder.path(), &new).assert().success().stderr(contains("2 rows are added to its embeddings"));
    let pretrained = folder.path().join("out/pretrained");
    assert_eq!(read(&pretrained.join("config.json"))["vocab_size"], known + 2);
    let saved = fs::read_to_string(pretrained.join("tokenizer.json")).unwrap();
    assert!(saved.contains("<question>") && saved.contains("<answer>"));
    firebrick(folder.path()).args(["eval", "out"]).assert().success();
    train(
        folder.path(),
        &[new.as_slice(), &["--set", "data.tokenizer=Characters", "--set", "output=\"other\""]].concat(),
    )
    .assert()
    .code(1)
    .stderr(contains("`data.new_tokens`"));
}

#[test]
fn an_adapter_of_a_grown_vocabulary_has_its_tables_and_its_tokenizer() {
    let folder = folder();
    let known = read(&folder.path().join("model/config.json"))["vocab_size"].as_u64().unwrap();
    let lora = ["--set", "strategies=[Lora(rank: 2, alpha: 4)]"];
    let new = ["--set", r#"data.new_tokens=["<question>", "<answer>"]"#];
    train(folder.path(), &[lora, new].concat()).assert().success();
    let tables = |adapter: &Path| {
        let bytes = fs::read(adapter.join("adapter_model.safetensors")).unwrap();
        let (size, rest) = bytes.split_at(8);
        let (header, data) = rest.split_at(u64::from_le_bytes(size.try_into().unwrap()) as usize);
        let header: BTreeMap<String, Value> = serde_json::from_slice(header).unwrap();
        let tables = header.iter().filter(|(_, tensor)| tensor["shape"][0] == known + 2);
        let tables: BTreeMap<_, _> = tables
            .map(|(name, tensor)| {
                let [from, to] = [0, 1].map(|at| tensor["data_offsets"][at].as_u64().unwrap() as usize);
                (name.clone(), data[from..to].to_vec())
            })
            .collect();
        assert!(!tables.is_empty(), "{header:?}");
        tables
    };
    let adapter = folder.path().join("out/adapter");
    let first = tables(&adapter);
    assert!(fs::read_to_string(adapter.join("tokenizer.json")).unwrap().contains("<answer>"));
    assert!(adapter.join("tokenizer_config.json").is_file());

    // Training goes on from it with its tokenizer, and the tables stay.
    let on = ["--set", r#"adapter="out/adapter""#, "--set", r#"output="second""#];
    let tokenizer = ["--set", r#"data.tokenizer=File("out/adapter")"#];
    train(folder.path(), &[&lora[..], &on, &tokenizer].concat()).assert().success();
    assert!(first == tables(&folder.path().join("second/adapter")));
    let refused = train(folder.path(), &[&lora[..], &on].concat()).assert().code(1);
    refused.stderr(contains("out/adapter").and(contains("`data.tokenizer`")));
}

/// Counts the tokens of eight texts. The tokenizer begins each with `<s>`, or ends it in `</s>`, and `--begin-token` adds
/// one token to a text that does not begin with it.
#[test]
fn texts_are_surrounded_alike_in_windows_files_and_perplexity() {
    for (special, added) in [(r#"bos: "<s>""#, 0), (r#"eos: "</s>""#, 8)] {
        let folder = folder();
        let run = format!(
            r#"(
                task: CausalLm(),
                data: (path: "data.jsonl", valid: "data.jsonl", tokenizer: Bpe(vocabulary: 258), block: 8,
                    special: ({special})),
                model: Gpt(layers: 1, heads: 2, width: 8),
                optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 4), steps: 1,
                device: "cpu", output: "out",
            )"#
        );
        fs::write(folder.path().join("run.ron"), run).unwrap();
        let mut tokenize = firebrick(folder.path());
        let tokenized = report(tokenize.args(["tokenize", "run.ron", "-o", "tokens", "--report", "json"]));
        train(folder.path(), &[]).assert().success();
        let predicted = |more: &[&str]| {
            let mut eval = firebrick(folder.path());
            let options = ["eval", "out", "--perplexity", "--data", "data.jsonl", "--report", "json"];
            report(eval.args(options).args(more))["tokens"].as_u64().unwrap()
        };
        // The first token of each text is not predicted; all others are.
        assert_eq!(tokenized["tokens"], predicted(&[]) + 8, "{special}");
        assert_eq!(predicted(&["--begin-token"]), predicted(&[]) + added, "{special}");
        let mut texts = firebrick(folder.path());
        let refused = texts.args(["eval", "out", "--texts", "--begin-token"]).assert().code(2);
        refused.stderr(contains("--begin-token").and(contains("--texts")));
    }
}

/// What follows the training does not take away its report.
#[test]
fn a_sample_that_fails_leaves_the_report_page() {
    let folder = folder();
    let output = folder.path().join("out");
    fs::create_dir_all(&output).unwrap();
    // A run that was killed before its first step left the folder. The sample cannot be written over another one.
    fs::write(output.join("metrics.jsonl"), "").unwrap();
    fs::create_dir(output.join("sample.txt")).unwrap();
    train(folder.path(), &[]).assert().code(1).stderr(contains("sample.txt"));
    assert!(output.join("report.html").is_file());
}
