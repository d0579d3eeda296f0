//! Training from a Hugging Face folder: what is kept of it, and what starts anew.

use std::fs;
use std::path::{Path, PathBuf};

use crate::small_run::at_root;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

fn firebrick(arguments: &[&str]) -> Assert {
    at_root().args(arguments).assert()
}

/// Trains an example for some updates into a folder.
fn trained(name: &str, steps: u64, output: &Path, sets: &[&str]) -> Assert {
    let (file, output) = (format!("examples/{name}.ron"), format!("output={output:?}"));
    let steps = format!("steps={steps}");
    let mut arguments = vec!["train", &file, "--set", &output, "--set", "epochs=None", "--set", &steps];
    arguments.extend(sets.iter().flat_map(|set| ["--set", *set]));
    firebrick(&arguments)
}

/// Returns overrides that use the folder of a run as model and tokenizer of another.
fn from(output: &Path) -> [String; 2] {
    let folder = output.join("pretrained");
    [format!("model=Pretrained({folder:?})"), format!("data.tokenizer=File({folder:?})")]
}

fn evaluated(output: &Path) -> Value {
    let run = output.to_str().unwrap();
    let assert = firebrick(&["eval", run, "--report", "json"]).success();
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn read(path: PathBuf) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_classifier_keeps_the_ids_of_its_labels() {
    let folder = tempfile::tempdir().unwrap();
    let [first, again, other] = ["first", "again", "other"].map(|name| folder.path().join(name));
    let unsorted = r#"task=SequenceClassification(names: ["weather", "kitchen", "music"])"#;
    trained("sequence_classification", 100, &first, &[unsorted]).success();
    let accuracy = |output: &Path| evaluated(output)["scores"]["accuracy"].as_f64().unwrap();
    let before = accuracy(&first);
    assert!(before > 0.7, "{before}");

    // The data sets no order of labels, so the folder's holds.
    let [model, tokenizer] = from(&first);
    let still = ["schedule=Constant(lr: 1e-9)", &model, &tokenizer];
    trained("sequence_classification", 2, &again, &still).success();
    assert_eq!(accuracy(&again), before);
    let labels = read(again.join("pretrained/config.json"))["id2label"].clone();
    assert_eq!(labels, json!({"0": "weather", "1": "kitchen", "2": "music"}));

    // With other labels, the run must not train rows of the head that mean something else.
    let table = folder.path().join("other.tsv");
    fs::write(&table, "label\ttext\ngood\tit is good\nbad\tit is bad\n").unwrap();
    let path = format!("data.path={table:?}");
    let others = [model.as_str(), &tokenizer, &path, "data.valid=None", "batch.micro=1", "best_by=None"];
    trained("sequence_classification", 2, &other, &others)
        .failure()
        .stderr(contains(r#"["weather", "kitchen", "music"]"#).and(contains(r#"["bad", "good"]"#)))
        .stderr(contains("set `task.new_head` to true"));
    let fresh = [others.as_slice(), &["task=SequenceClassification(new_head: true)"]].concat();
    trained("sequence_classification", 2, &other, &fresh)
        .success()
        .stderr(contains("start anew: classifier.bias, classifier.weight"));
    let labels = read(other.join("pretrained/config.json"))["id2label"].clone();
    assert_eq!(labels, json!({"0": "bad", "1": "good"}));
    let number = [others.as_slice(), &["task=SequenceClassification(kind: Number)"]].concat();
    trained("sequence_classification", 2, &other, &number)
        .failure()
        .stderr(contains("the task learns a number").and(contains("task.new_head")));
}

#[test]
fn beside_factors_a_head_that_the_folder_lacks_is_trained_and_saved() {
    let folder = tempfile::tempdir().unwrap();
    let [body, output] = ["body", "run"].map(|name| folder.path().join(name));
    let special = r#"data.special=(pad: "<pad>", mask: "<mask>", bos: "<s>", eos: "</s>")"#;
    trained("masked_lm", 2, &body, &[special]).success();
    let [model, tokenizer] = from(&body);
    let lora = "strategies=[Lora(rank: 4), Clip(norm: 1.0)]";
    let sets = [model.as_str(), &tokenizer, "schedule=Constant(lr: 5e-3)", lora];
    trained("sequence_classification", 150, &output, &sets)
        .success()
        .stderr(contains("start anew: classifier.bias, classifier.weight, bert.pooler.dense.bias"));
    let accuracy = evaluated(&output)["scores"]["accuracy"].as_f64().unwrap();
    assert!(accuracy > 0.8, "{accuracy}");
    let saved = read(output.join("adapter/adapter_config.json"))["modules_to_save"].clone();
    assert_eq!(saved, json!(["bert.pooler.dense", "classifier"]));
    // Parameters frozen by name stay frozen, and the plan counts the same parameters as the run.
    let frozen = r#"strategies=[Freeze(["classifier"]), Lora(rank: 4)]"#;
    trained("sequence_classification", 2, &output, &[model.as_str(), &tokenizer, frozen]).success();
    let saved = read(output.join("adapter/adapter_config.json"))["modules_to_save"].clone();
    assert_eq!(saved, json!(["bert.pooler.dense"]));
}

#[test]
fn a_run_starts_from_the_adapter_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let [body, first, on] = ["body", "first", "on"].map(|name| folder.path().join(name));
    let special = r#"data.special=(pad: "<pad>", mask: "<mask>", bos: "<s>", eos: "</s>")"#;
    trained("masked_lm", 2, &body, &[special]).success();
    let [model, tokenizer] = from(&body);
    let lora = "strategies=[Lora(rank: 4, alpha: 8), Clip(norm: 1.0)]";
    // One evaluation, so that the best weights are the last ones, which the adapter has.
    let once = ["best_by=None", "early_stopping=None", "evaluate_every=60", &model, &tokenizer];
    let learns = [once.as_slice(), &["schedule=Constant(lr: 5e-3)", lora]].concat();
    trained("sequence_classification", 60, &first, &learns).success();
    let adapter = format!("adapter={:?}", first.join("adapter"));
    let started = |rate: &str, lora: &str, adapter: &str| {
        let rate = format!("schedule=Constant(lr: {rate})");
        let sets = [once.as_slice(), &[lora, adapter, &rate]].concat();
        trained("sequence_classification", 1, &on, &sets)
    };
    // A rate that moves nothing evaluates what the first run ended with.
    started("1e-30", lora, &adapter).success();
    let [before, after] = [&first, &on].map(|output| evaluated(output));
    assert_eq!(after["loss"], before["loss"]);
    assert!(before["scores"]["accuracy"].as_f64().unwrap() > 0.5 && after["scores"] == before["scores"]);

    started("1e-3", "strategies=[Lora(rank: 4)]", &adapter).failure().stderr(
        contains("expected factors of rank 4 and alpha 4").and(contains("write `Lora(rank: 4, alpha: 8)`")),
    );
    started("1e-3", "strategies=[]", &adapter).failure().stderr(contains("add `Lora(rank: 4, alpha: 8)`"));
    let missing = format!("adapter={:?}", folder.path().join("none"));
    started("1e-3", lora, &missing).failure().stderr(contains("none/adapter_config.json"));
    trained("sequence_classification", 1, &on, &[lora, &adapter])
        .failure()
        .stderr(contains("`adapter` must be left out unless the model is `Pretrained`"));
}

/// One plans before one downloads: `config.json` and the tokenizer are enough.
#[test]
fn a_plan_needs_no_weights() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    trained("sequence_classification", 1, &first, &[]).success();
    let [model, tokenizer] = from(&first);
    let planned = |sets: &[&str]| {
        let mut arguments = vec!["plan", "examples/sequence_classification.ron", "--report", "json"];
        arguments.extend(sets.iter().chain(&[model.as_str(), &tokenizer]).flat_map(|set| ["--set", *set]));
        let output = firebrick(&arguments).success().get_output().stdout.clone();
        serde_json::from_str::<Value>(String::from_utf8(output).unwrap().lines().last().unwrap()).unwrap()
    };
    // A new head is trained whole beside the factors, the folder's is not.
    let settings = [
        ["strategies=[]", "seed=1"],
        ["strategies=[Lora(rank: 2)]", "seed=1"],
        ["strategies=[Lora(rank: 2)]", "task=SequenceClassification(new_head: true)"],
    ];
    let with_weights = settings.map(|sets| planned(&sets));
    fs::remove_file(first.join("pretrained/model.safetensors")).unwrap();
    let without = settings.map(|sets| planned(&sets));
    assert_eq!(without, with_weights);
    let states = |of: &Value| of["as_written"]["optimizer_bytes"].as_u64().unwrap();
    assert!(states(&without[1]) < states(&without[2]) && states(&without[2]) < states(&without[0]));
    trained("sequence_classification", 1, &folder.path().join("again"), &[&model, &tokenizer])
        .failure()
        .stderr(contains("model.safetensors"));
    // A width that no machine holds is planned from narrow models.
    let config = first.join("pretrained/config.json");
    let mut wide = read(config.clone());
    for (field, size) in
        [("hidden_size", 262_144), ("intermediate_size", 1_048_576), ("num_attention_heads", 512)]
    {
        wide[field] = json!(size);
    }
    fs::write(&config, wide.to_string()).unwrap();
    firebrick(&["plan", "examples/sequence_classification.ron", "--set", &model, "--set", &tokenizer])
        .success()
        .stdout(contains("1718114058243 parameters").and(contains("TB at the peak")));
}
