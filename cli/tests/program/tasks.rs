//! The five tasks from run file to predictions: trained, evaluated, predicted, and fine-tuned further.

use std::fs;
use std::path::Path;

use crate::small_run::at_root;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

fn firebrick(arguments: &[&str]) -> Assert {
    let mut command = at_root();
    command.args(arguments).assert()
}

/// Trains an example for some updates into a folder.
fn trained(name: &str, steps: &str, output: &Path, sets: &[&str]) -> Assert {
    let (file, output) = (format!("examples/{name}.ron"), format!("output={output:?}"));
    let steps = format!("steps={steps}");
    let mut arguments = vec!["train", &file, "--set", &output, "--set", "epochs=None", "--set", &steps];
    arguments.extend(sets.iter().flat_map(|set| ["--set", *set]));
    firebrick(&arguments)
}

fn json(assert: &Assert) -> Value {
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn lines(assert: &Assert) -> Vec<Value> {
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Evaluating a folder gives the same result as the run's own evaluation of its best weights.
fn evaluates_as_it_was_trained(output: &Path) {
    let run = output.to_str().unwrap();
    let found = json(&firebrick(&["eval", run, "--report", "json"]).success());
    let report: Value =
        serde_json::from_str(&fs::read_to_string(output.join("report.json")).unwrap()).unwrap();
    // Batches are cut differently, and padded to other lengths.
    let close = |a: &Value, b: &Value| {
        let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
        (a - b).abs() <= 1e-5 * b.abs()
    };
    assert!(close(&found["loss"], &report["best_valid_loss"]), "{found} {report}");
    for (name, score) in report["best_valid_scores"].as_object().unwrap() {
        assert!(close(&found["scores"][name], score), "{name}: {found} {report}");
    }
}

#[test]
fn words_get_labels() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    trained("token_classification", "75", &output, &["batch.micro=8"])
        .success()
        .stdout(contains("best f1").and(contains("saved in")));
    evaluates_as_it_was_trained(&output);
    let page = fs::read_to_string(output.join("report.html")).unwrap();
    assert!(page.contains("<html") && page.contains("Bergen"), "the page shows predictions");
    assert!(output.join("tensorboard").read_dir().unwrap().next().is_some());

    let run = output.to_str().unwrap();
    let answers =
        lines(&firebrick(&["predict", run, "--limit", "40"]).success().stderr(contains("40 answers")));
    assert_eq!(answers.len(), 40);
    let right = answers.iter().filter(|answer| answer["predicted"] == answer["expected"]).count();
    assert!(right > 20, "{right} of 40");
    for answer in &answers {
        assert_eq!(answer["tokens"].as_array().unwrap().len(), answer["predicted"].as_array().unwrap().len());
    }
    // Records need no labels, and may be longer than the model's context.
    let asked = folder.path().join("asked.jsonl");
    let words = ["Maria", "lives", "in", "Lisbon", "."].repeat(20);
    fs::write(&asked, format!("{}\n", serde_json::json!({"words": words}))).unwrap();
    let asked = ["predict", run, "--data", asked.to_str().unwrap(), "--set", "data.format=Jsonl"];
    let answers = lines(&firebrick(&asked).success());
    let predicted = answers[0]["predicted"].as_array().unwrap();
    assert_eq!(predicted.len(), words.len());
    assert!(predicted.iter().all(Value::is_string) && predicted[80] == "B-PER", "{predicted:?}");
    assert_eq!(answers[0].get("expected"), None);

    // Another run can start from the folder: it has the classifier, so nothing starts anew.
    let pretrained = format!("model=Pretrained({:?})", output.join("pretrained"));
    let tokenizer = format!("data.tokenizer=File({:?})", output.join("pretrained"));
    let again = folder.path().join("again");
    trained("token_classification", "2", &again, &[&pretrained, &tokenizer])
        .success()
        .stderr(contains("loading").and(contains("start anew").not()));
    let first = |output: &Path| -> f64 {
        let log = fs::read_to_string(output.join("metrics.jsonl")).unwrap();
        serde_json::from_str::<Value>(log.lines().next().unwrap()).unwrap()["loss"].as_f64().unwrap()
    };
    assert!(first(&again) < 0.3 * first(&output), "it goes on without a jump");
}

#[test]
fn texts_get_classes() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    trained("sequence_classification", "60", &output, &[]).success().stdout(contains("best accuracy"));
    evaluates_as_it_was_trained(&output);
    let answers = lines(&firebrick(&["predict", output.to_str().unwrap(), "--limit", "5"]).success());
    for answer in answers {
        let scores = answer["scores"].as_object().unwrap();
        let sum: f64 = scores.values().map(|share| share.as_f64().unwrap()).sum();
        assert!(scores.len() == 3 && (sum - 1.0).abs() < 1e-5, "{answer}");
        assert!(scores.contains_key(answer["predicted"].as_str().unwrap()));
    }
}

#[test]
fn numbers_are_predicted_too() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..40).map(|at| format!("{}\t{}.5\n", "very ".repeat(at % 5), at % 5)).collect();
    fs::write(folder.path().join("data.tsv"), format!("text\tlabel\n{rows}")).unwrap();
    let output = folder.path().join("run");
    let path = format!("data.path={:?}", folder.path().join("data.tsv"));
    let valid = format!("data.valid={:?}", folder.path().join("data.tsv"));
    let sets = [&path, &valid, "task=SequenceClassification(kind: Number)", "best_by=\"rmse\""];
    trained("sequence_classification", "30", &output, &sets).success().stdout(contains("rmse"));
    evaluates_as_it_was_trained(&output);
    let answers = lines(&firebrick(&["predict", output.to_str().unwrap(), "--limit", "3"]).success());
    assert!(answers.iter().all(|answer| answer["predicted"].is_number()), "{answers:?}");
}

#[test]
fn what_is_hidden_is_filled_in() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    trained("masked_lm", "20", &output, &[]).success().stdout(contains("perplexity"));
    evaluates_as_it_was_trained(&output);
    let asked = folder.path().join("asked.jsonl");
    fs::write(&asked, "{\"text\": \"she wrote a<mask> about<mask>\"}\n").unwrap();
    let run = output.to_str().unwrap();
    let asked = ["predict", run, "--data", asked.to_str().unwrap(), "--set", "data.format=Jsonl"];
    let answers = lines(&firebrick(&asked).success());
    let hidden = answers[0]["hidden"].as_array().unwrap();
    assert_eq!((hidden.len(), hidden[0].as_array().unwrap().len()), (2, 5));
    assert!(!answers[0]["predicted"].as_str().unwrap().contains("<mask>"));
}

#[test]
fn texts_are_made_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let shown = contains("best exact_match").and(contains("saved in"));
    trained("seq2seq", "12", &output, &["evaluate_every=6"]).success().stdout(shown);
    evaluates_as_it_was_trained(&output);
    let run = output.to_str().unwrap();
    let two = [
        "generate",
        run,
        "--prompt",
        "seven",
        "--prompt",
        "two hundred",
        "--beams",
        "3",
        "--max-new-tokens",
        "6",
    ];
    let text = String::from_utf8(firebrick(&two).success().get_output().stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 2);
    // Three ranks hold a part each; one of them has no text of its own to generate.
    firebrick(&[two.as_slice(), &["--ranks", "3"]].concat()).success().stdout(text);
    let answers = lines(&firebrick(&["predict", run, "--limit", "3", "--max-new-tokens", "6"]).success());
    // By default, as long as the texts of the run's evaluations.
    firebrick(&["predict", run, "--limit", "1", "--min-new-tokens", "100"])
        .failure()
        .stderr(contains("its `max_new_tokens` 12: "));
    assert!(answers.iter().all(|answer| answer["predicted"].is_string() && answer["ended"].is_boolean()));
}

#[test]
fn a_causal_model_goes_on_from_a_prompt_and_from_its_own_weights() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let text = folder.path().join("text.txt");
    fs::write(&text, "to be or not to be, that is the question\n".repeat(60)).unwrap();
    let path = format!("data.path={text:?}");
    let small = [
        path.as_str(),
        "data.tokenizer.vocabulary=300",
        "evaluate_every=20",
        "schedule.warmup=1",
        "sample=None",
    ];
    let valid = folder.path().join("valid.txt");
    fs::write(&valid, "to be or not to be, that is the question\n".repeat(9)).unwrap();
    let valid = format!("data.valid={valid:?}");
    for (model, valid) in [
        ("Gpt(layers: 2, heads: 2, width: 32)", "data.valid_fraction=0.1"),
        ("Llama(layers: 2, heads: 2, key_value_heads: 1, width: 32)", valid.as_str()),
    ] {
        let _ = fs::remove_dir_all(&output);
        let model = format!("model={model}");
        let sets: Vec<_> = small.iter().copied().chain([model.as_str(), valid]).collect();
        trained("causal_lm", "40", &output, &sets).success().stdout(contains("perplexity"));
        evaluates_as_it_was_trained(&output);
        let run = output.to_str().unwrap();
        let asked = [
            "generate",
            run,
            "--prompt",
            "to be or",
            "--max-new-tokens",
            "30",
            "--returned",
            "2",
            "--temperature",
            "0.9",
            "--top-k",
            "20",
        ];
        let say = || String::from_utf8(firebrick(&asked).success().get_output().stdout.clone()).unwrap();
        let said = say();
        assert!(said.matches("to be or").count() >= 2, "{said}");
        assert_eq!(said, say(), "equal seeds write equal texts");
        firebrick(&[asked.as_slice(), &["--ranks", "2"]].concat()).success().stdout(said);

        let pretrained = format!("model=Pretrained({:?})", output.join("pretrained"));
        let tokenizer = format!("data.tokenizer=File({:?})", output.join("pretrained"));
        let others = small.iter().copied().filter(|set| !set.contains("vocabulary"));
        let further: Vec<_> = others.chain([pretrained.as_str(), tokenizer.as_str()]).collect();
        let again = folder.path().join("again");
        let _ = fs::remove_dir_all(&again);
        trained("causal_lm", "2", &again, &further).success();
        let report = |output: &Path| -> Value {
            serde_json::from_str(&fs::read_to_string(output.join("report.json")).unwrap()).unwrap()
        };
        let (before, after) =
            (report(&output)["best_valid_loss"].as_f64(), report(&again)["train_loss"].as_f64());
        assert!((before.unwrap() - after.unwrap()).abs() < 0.5, "no jump: {before:?} {after:?}");
    }
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let refused = |set: &str, said: &str| {
        trained("token_classification", "2", &output, &[set]).failure().stderr(contains(said));
        assert!(!output.exists(), "nothing was written");
    };
    refused(
        "model=Gpt(layers: 1, heads: 1, width: 8)",
        "expected one that learns `TokenClassification`: `Bert`",
    );
    refused("model=Pretrained(\"no/such/folder\")", "no/such/folder");
    refused("model.width=30", "`model.width` must be a multiple of `model.heads`");
    refused("data.max_length=None", "set `data.max_length`");
    refused("best_by=\"bleu\"", "no score is called `bleu`");
    refused("sample=(tokens: 3)", "`sample` must be left out");
    let example = "examples/token_classification.ron";
    let nowhere = format!("output={output:?}");
    firebrick(&["eval", example, "--set", &nowhere]).failure().stderr(contains("train the run to its end"));
    firebrick(&["generate", example, "--set", &nowhere, "--prompt", "a"])
        .failure()
        .stderr(contains("train the run to its end"));

    trained("token_classification", "2", &output, &[]).success();
    let run = output.to_str().unwrap();
    firebrick(&["generate", run, "--prompt", "a"]).failure().stderr(contains("firebrick predict"));
    firebrick(&["predict", run, "--data", "no.conll"]).failure().stderr(contains("no.conll"));
    // The error for damaged weights names the file.
    fs::write(output.join("pretrained/model.safetensors"), b"damaged").unwrap();
    firebrick(&["eval", run]).failure().stderr(contains("model.safetensors"));
}

/// A tokenizer of characters adds no tokens to an empty text, whose batch of one row has none then.
#[test]
fn empty_texts_are_trained_on_and_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (task, model, table) in [
        ("SequenceClassification()", "Bert", "label\ttext\na\thello\nb\t\n"),
        ("Seq2Seq(source: \"text\", target: \"label\")", "T5", "label\ttext\naaa\thello\nbbb\t\n"),
        ("Seq2Seq(source: \"text\", target: \"label\")", "Bart", "label\ttext\naaa\thello\nbbb\t\n"),
    ] {
        let data = path("data.tsv");
        fs::write(&data, table).unwrap();
        let run = format!(
            "(
                task: {task},
                data: (
                    path: {data:?}, valid: {data:?}, tokenizer: Characters, special: (pad: \"h\"), max_length: 8,
                ),
                model: {model}(layers: 1, heads: 1, width: 8),
                optimizer: AdamW(), schedule: Constant(lr: 1e-3), batch: (micro: 1), steps: 4, output: {:?},
            )",
            path("run")
        );
        fs::write(path("run.ron"), run).unwrap();
        firebrick(&["train", &path("run.ron")]).success().stderr(contains("panicked").not());
        firebrick(&["predict", &path("run")]).success().stderr(contains("panicked").not());
    }
}
