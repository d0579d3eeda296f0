//! Seq2Seq: training and generation use the same start token, and scores compare with the whole target texts.

use std::fs;
use std::path::Path;

use crate::small_run::at_root;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::{Value, json};

fn firebrick(arguments: &[&str]) -> Assert {
    at_root().args(arguments).assert()
}

/// Trains the example for some updates into a folder.
fn trained(steps: u64, output: &Path, sets: &[&str]) -> Assert {
    let (output, steps) = (format!("output={output:?}"), format!("steps={steps}"));
    let mut arguments = vec!["train", "examples/seq2seq.ron", "--set", &output, "--set", &steps];
    let always = ["epochs=None", "evaluate_every=20", "sample=None"];
    arguments.extend(always.iter().chain(sets).flat_map(|set| ["--set", *set]));
    firebrick(&arguments)
}

fn evaluated(arguments: &[&str]) -> Value {
    let assert = firebrick(&[&["eval", "--report", "json"], arguments].concat()).success();
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

const NOT_WRITTEN: &str = r#"task=Seq2Seq(source: "words", target: "digits")"#;
const STARTED: &str = r#"task=Seq2Seq(source: "words", target: "digits", start: "</s>")"#;

#[test]
fn the_decoder_starts_in_training_as_its_folder_says() {
    let folder = tempfile::tempdir().unwrap();
    let [output, again, named] = ["run", "again", "named"].map(|name| folder.path().join(name));
    trained(20, &output, &[NOT_WRITTEN, r#"best_by=None"#]).success();
    let run = output.to_str().unwrap();
    let loss = |arguments: &[&str]| evaluated(arguments)["loss"].as_f64().unwrap();
    let of_padding = loss(&[run]);
    let of_end = loss(&[run, "--set", STARTED]);
    assert!((of_padding - of_end).abs() > 1e-3, "{of_padding} {of_end}");

    let other = ["eval", run, "--set", "data.tokenizer=Characters"];
    firebrick(&other).failure().stderr(contains("`data.tokenizer` cannot be set here"));

    // Without a `start` the folder decides, in evaluation and in training.
    let config = output.join("pretrained/config.json");
    let mut fields = read(&config);
    assert_eq!(fields["decoder_start_token_id"], fields["pad_token_id"]);
    fields["decoder_start_token_id"] = fields["eos_token_id"].clone();
    fs::write(&config, fields.to_string()).unwrap();
    assert_eq!(loss(&[run]), of_end);
    // What another file says of generation goes before that in transformers, so the new folder does not repeat it.
    let generation = |folder: &Path| folder.join("pretrained/generation_config.json");
    let of_folder = json!({"decoder_start_token_id": fields["pad_token_id"], "top_k": 7});
    fs::write(generation(&output), of_folder.to_string()).unwrap();
    let model = format!("model=Pretrained({:?})", output.join("pretrained"));
    let tokenizer = format!("data.tokenizer=File({:?})", output.join("pretrained"));
    let still = "schedule=Constant(lr: 1e-9)";
    trained(2, &again, &[NOT_WRITTEN, "best_by=None", &model, &tokenizer, still]).success();
    let report = read(&again.join("report.json"));
    let found = report["best_valid_loss"].as_f64().unwrap();
    assert!((found - of_end).abs() < 1e-5 * of_end, "{found} {of_end}");
    let written = json!({"decoder_start_token_id": fields["eos_token_id"], "top_k": 7});
    assert_eq!(read(&generation(&again)), written);

    // The folder of the run has the token that the run file names.
    trained(2, &named, &[STARTED, "best_by=None"]).success();
    let fields = read(&named.join("pretrained/config.json"));
    assert_eq!(fields["decoder_start_token_id"], fields["eos_token_id"]);
    // A token beyond the model's vocabulary is an error, and no embedding is read beyond its end.
    let mut fields = read(&config);
    fields["decoder_start_token_id"] = 100_000.into();
    fs::write(&config, fields.to_string()).unwrap();
    firebrick(&["generate", run, "--prompt", "one"])
        .failure()
        .stderr(contains("`decoder_start_token_id`: expected a token below vocab_size"));
}

/// A model that learned truncated targets by heart does not match the whole ones.
#[test]
fn scores_are_against_the_texts_and_not_their_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let (table, output) = (folder.path().join("pairs.tsv"), folder.path().join("run"));
    let row = "seven hundred\t1 2 3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9\n";
    fs::write(&table, format!("words\tdigits\n{}", row.repeat(16))).unwrap();
    let (path, valid) = (format!("data.path={table:?}"), format!("data.valid={table:?}"));
    let cut = r#"task=Seq2Seq(source: "words", target: "digits", generate: 12, max_target_length: 4)"#;
    let sets = [
        cut,
        &path,
        &valid,
        "data.tokenizer.vocabulary=258",
        "best_by=None",
        "batch.micro=16",
        "schedule=Constant(lr: 1e-2)",
    ];
    trained(40, &output, &sets).success();
    let found = evaluated(&[output.to_str().unwrap()]);
    assert!(found["loss"].as_f64().unwrap() < 0.5, "it has learned what it was shown: {found}");
    assert_eq!(found["scores"]["exact_match"], 0.0);
    assert!(found["scores"]["rougeL"].as_f64().unwrap() < 0.5, "{found}");
}

#[test]
fn texts_end_at_any_of_the_tokens_that_the_folder_names() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    trained(2, &output, &[NOT_WRITTEN, "best_by=None"]).success();
    let run = output.to_str().unwrap();
    let asked = ["predict", run, "--limit", "1", "--max-new-tokens", "5"];
    let answer = || -> Value {
        let text = String::from_utf8(firebrick(&asked).success().get_output().stdout.clone()).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let file = output.join("pretrained/generation_config.json");
    fs::write(&file, r#"{"eos_token_id": []}"#).unwrap();
    assert_eq!(answer()["ended"], false);
    let all: Vec<u32> = (0..322).collect();
    fs::write(&file, serde_json::json!({"eos_token_id": all}).to_string()).unwrap();
    let answer = answer();
    assert!(answer["ended"] == true && answer["predicted"] == "", "{answer}");
    fs::write(&file, r#"{"eos_token_id": [1, "</s>"]}"#).unwrap();
    firebrick(&asked).failure().stderr(contains("generation_config.json").and(contains("or a list of them")));
}

#[test]
fn what_a_trained_model_cannot_read_is_told_as_in_training() {
    let folder = tempfile::tempdir().unwrap();
    let [output, words] = ["run", "words"].map(|name| folder.path().join(name));
    trained(2, &output, &[NOT_WRITTEN, "best_by=None"]).success();
    let place = format!("output={words:?}");
    let file = "examples/token_classification.ron";
    firebrick(&["train", file, "--set", &place, "--set", "epochs=None", "--set", "steps=2"]).success();
    let (run, words) = (output.to_str().unwrap(), words.to_str().unwrap());
    let long = ["--set", "data.max_length=100"];
    let unbound = ["--set", "data.max_length=None"];
    // If the run sets no length, the folder's holds, which is the model's.
    firebrick(&[&["eval", words], unbound.as_slice()].concat()).success();
    let config = Path::new(words).join("pretrained/tokenizer_config.json");
    let mut fields = read(&config);
    assert_eq!(fields.as_object_mut().unwrap().remove("model_max_length"), Some(48.into()));
    fs::write(&config, fields.to_string()).unwrap();
    for command in ["eval", "predict"] {
        let asked = |sets: [&str; 2]| firebrick(&[&[command, words], sets.as_slice()].concat()).failure();
        asked(long).stderr(contains("rows may have 100 tokens, but the model reads at most 48"));
        asked(unbound).stderr(contains("rows may have any number of tokens, but the model reads at most 48"));
    }
    // A tokenizer with more tokens, in the folder of the weights.
    let tokenizer = |run: &str| Path::new(run).join("pretrained/tokenizer.json");
    fs::copy(tokenizer(words), tokenizer(run)).unwrap();
    for command in [["eval", run].as_slice(), &["predict", run], &["generate", run, "--prompt", "one"]] {
        firebrick(command).failure().stderr(contains("but the model knows 322"));
    }
}

/// Learns numbers with a small BART, which then writes them as its folder says.
#[test]
fn a_bart_is_trained_and_writes_as_its_folder_says() {
    let folder = tempfile::tempdir().unwrap();
    let [output, again] = ["run", "again"].map(|name| folder.path().join(name));
    let written = r#"task=Seq2Seq(source: "words", target: "digits", generate: 5)"#;
    let model = "model=Bart(layers: 1, heads: 2, width: 16)";
    trained(40, &output, &[written, model, "data.max_length=24"]).success();
    let run = output.to_str().unwrap();
    let found = evaluated(&[run]);
    assert!(found["loss"].as_f64().unwrap() < 6.0, "{found}");
    let config = read(&output.join("pretrained/config.json"));
    assert_eq!(config["architectures"], json!(["BartForConditionalGeneration"]));
    assert_eq!(
        (&config["max_position_embeddings"], &config["forced_eos_token_id"]),
        (&json!(24), &Value::Null)
    );

    let asked = ["predict", run, "--limit", "1"];
    let answer = |more: &[&str]| -> Value {
        let assert = firebrick(&[&asked, more].concat()).success();
        serde_json::from_slice(&assert.get_output().stdout).unwrap()
    };
    let end = config["eos_token_id"].clone();
    let forced = json!({"forced_bos_token_id": end, "eos_token_id": end});
    let generation = output.join("pretrained/generation_config.json");
    fs::write(&generation, forced.to_string()).unwrap();
    for more in [&[][..], &["--beams", "3"]] {
        let answer = answer(more);
        assert!(answer["ended"] == true && answer["predicted"] == "", "{answer}");
    }
    // Evaluation writes such texts too; the digits of the targets are tokens.
    let digit = read(&output.join("pretrained/tokenizer.json"))["model"]["vocab"]["1"].clone();
    fs::write(&generation, json!({"forced_bos_token_id": digit}).to_string()).unwrap();
    assert!(answer(&[])["predicted"].as_str().unwrap().starts_with('1'));
    let found = evaluated(&[run]);
    assert!(found["scores"]["chrf"].as_f64().unwrap() > 0.0, "{found}");
    fs::write(&generation, json!({"forced_eos_token_id": end}).to_string()).unwrap();
    assert_eq!(answer(&["--max-new-tokens", "1"])["ended"], true);
    // A run that starts from the folder passes on what it says.
    let model = format!("model=Pretrained({:?})", output.join("pretrained"));
    let tokenizer = format!("data.tokenizer=File({:?})", output.join("pretrained"));
    let sets = [NOT_WRITTEN, "best_by=None", &model, &tokenizer, "data.max_length=24"];
    trained(2, &again, &sets).success();
    assert_eq!(read(&again.join("pretrained/generation_config.json"))["forced_eos_token_id"], end);
    let long = ["--set", "data.max_length=25"];
    firebrick(&[&["eval", run], long.as_slice()].concat())
        .failure()
        .stderr(contains("rows may have 25 tokens, but the model reads at most 24"));
    let targets = r#"task=Seq2Seq(source: "words", target: "digits", max_target_length: 30)"#;
    firebrick(&["eval", run, "--set", targets])
        .failure()
        .stderr(contains("rows may have 30 tokens, but the model reads at most 24"));
}

/// BART begins each text with its begin token, which no text has.
#[test]
fn written_texts_have_the_scores_of_training() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let sets = [
        "model=Bart(layers: 1, heads: 4, width: 48)",
        r#"data.special=(pad: "<pad>", bos: "<s>", eos: "</s>")"#,
        "schedule=Constant(lr: 3e-3)",
        "best_by=None",
    ];
    trained(80, &output, &sets).success();
    let run = output.to_str().unwrap();
    let in_training = &evaluated(&[run])["scores"];
    let written = &evaluated(&[run, "--texts"])["scores"];
    assert!(in_training["rouge1"].as_f64().unwrap() > 0.0, "{in_training}");
    for name in ["bleu", "chrf", "rouge1", "rougeL", "exact_match", "f1"] {
        let [found, expected] = [written, in_training].map(|scores| scores[name].as_f64().unwrap());
        assert!((found - expected).abs() < 1e-6, "{name}: {found} {expected}");
    }
    for asked in [&["generate", run, "--prompt", "four hundred seven"][..], &["predict", run, "--limit", "2"]]
    {
        firebrick(asked).success().stdout(contains("<s>").not());
    }
}
