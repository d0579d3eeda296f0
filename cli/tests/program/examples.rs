//! Runs every example for a few steps, as a user would.

use std::path::Path;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

#[path = "../../../tasks/examples/token_classification.rs"]
#[allow(dead_code)]
mod token_classification;

fn example(name: &str, sets: &[&str]) -> assert_cmd::assert::Assert {
    let output = tempfile::tempdir().unwrap();
    let mut command = crate::small_run::at_root();
    command.arg("train").arg(format!("examples/{name}.ron"));
    let folder = format!("output={:?}", output.path().join("run"));
    for set in
        sets.iter().copied().chain([folder.as_str(), "steps=2", "evaluate_every=2", "schedule.warmup=1"])
    {
        command.arg("--set").arg(set);
    }
    command.assert()
}

#[test]
fn causal_lm() {
    let sets = ["sample.tokens=5", "data.path=\"examples\"", "data.tokenizer.vocabulary=300"];
    example("causal_lm", &sets).success().stdout(contains("valid loss")).stdout(contains("saved in"));
}

/// The configuration for eight GPUs, on the CPU.
#[test]
fn eight_ranks() {
    let sets = ["sample.tokens=5", "data.path=\"examples\"", "data.tokenizer.vocabulary=300"];
    let run = example("eight_ranks", &sets).success().stdout(contains("saved in").and(contains("awaited")));
    run.stderr(contains("8 ranks x 2 micro-batches of 1 = 16 samples in an update"));
}

/// Ranks that share tokens and layers, on the CPU, and with other axes on the command line.
#[test]
fn mesh() {
    let sets =
        ["sample.tokens=5", "data.path=\"examples\"", "data.tokenizer.vocabulary=300", "data.block=40"];
    let run = example("mesh", &sets).success().stdout(contains("saved in").and(contains("awaited")));
    run.stderr(contains("2 groups of 4 ranks x 1 micro-batch of 2 = 4 samples in an update"));
    let mut other = crate::small_run::at_root();
    other.args(["plan", "examples/mesh.ron", "--mesh", "context=8", "--tokens", "64"]);
    other.assert().success().stdout(contains("Mesh(context: 8)").and(contains("tensor: 2").not()));
    let refused = |code: i32, args: &[&str], said: &str| {
        let mut wrong = crate::small_run::at_root();
        wrong
            .arg("train")
            .args(args)
            .assert()
            .code(code)
            .stderr(contains(said.to_string()).and(contains("reading").not()));
    };
    refused(2, &["examples/mesh.ron", "--mesh", "expert=2"], "such as `context=2`");
    refused(2, &["examples/mesh.ron", "--mesh", "tensor=0"], "such as `context=2`");
    refused(
        1,
        &["examples/mesh.ron", "--set", "mesh=(tensor: 0)"],
        "`mesh.tensor` must be at least 1, found 0",
    );
    refused(1, &["examples/mesh.ron", "--mesh", "tensor=8"], "must be a divisor of 4, the heads or features");
    refused(
        1,
        &["examples/mesh.ron", "--mesh", "context=3"],
        "`context` must be a divisor of the number of ranks, which is 8",
    );
    for task in ["token_classification", "seq2seq", "dpo"] {
        let example = format!("examples/{task}.ron");
        refused(1, &[&example, "--ranks", "2", "--mesh", "context=2"], "`Pass::context_columns`");
    }
    refused(1, &["examples/dpo.ron", "--ranks", "2", "--mesh", "tensor=2"], "`Objective::tensor_plan`");
    let lora = |with: &str, says: &str| {
        let strategies = format!("strategies=[Zero(stage: 0), Lora(rank: 2, {with})]");
        refused(1, &["examples/mesh.ron", "--set", &strategies], says);
    };
    lora("dora: true", "do not go with `dora` of Lora");
    lora("paths: [\"tokens.weight\"]", "outside the model's blocks");
    let pipeline = |with: &[&'static str], says: &str| {
        refused(1, &[&["examples/mesh.ron", "--mesh", "pipeline=2"], with].concat(), says);
    };
    refused(
        1,
        &["examples/mesh.ron", "--mesh", "pipeline=8"],
        "at most 4 stages, one for each block of the model, found 8",
    );
    pipeline(&["--set", "strategies=[Zero(stage: 3)]"], "does not go with stage 3 of Zero");
    pipeline(
        &["--set", "strategies=[Zero(stage: 0), Lora(rank: 2), Quantize(nf4)]"],
        "do not go with Quantize",
    );
    refused(1, &["examples/dpo.ron", "--ranks", "2", "--mesh", "pipeline=2"], "asks a reference model");
    refused(
        1,
        &["examples/seq2seq.ron", "--ranks", "2", "--mesh", "pipeline=2"],
        "as a decoder reads its encoder",
    );
}

#[test]
fn tinyshakespeare() {
    let text = tempfile::tempdir().unwrap();
    let path = text.path().join("input.txt");
    std::fs::write(&path, "First Citizen:\nBefore we proceed any further, hear me speak.\n\n".repeat(40))
        .unwrap();
    let sets = [format!("data.path={path:?}"), "sample.tokens=5".into()];
    example("tinyshakespeare", &sets.each_ref().map(String::as_str)).success().stdout(contains("valid loss"));
}

/// Runs `firebrick data` of an example on data like its own.
fn data_example(name: &str, files: &[(&str, &str)], sets: &[&str]) -> assert_cmd::assert::Assert {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in files {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let mut command = Command::cargo_bin("firebrick").unwrap();
    let run = std::path::absolute(format!("../examples/{name}.ron")).unwrap();
    command.current_dir(folder.path()).arg("data").arg(run);
    sets.iter().for_each(|set| {
        command.args(["--set", set]);
    });
    command.assert()
}

#[test]
fn wnut17() {
    let sentence = "@paulwalk\tO\nEmpire\tB-location\nState\tI-location\n\n";
    let files = [("wnut17/wnut17train.conll", &*sentence.repeat(5)), ("wnut17/emerging.dev.conll", sentence)];
    data_example("wnut17", &files, &["data.tokenizer.vocabulary=300"])
        .success()
        .stdout(contains("B-location").and(contains("samples      5")));
}

#[test]
fn multi30k() {
    let (english, french) = ("Two young guys.\n".repeat(6), "Deux jeunes hommes.\n".repeat(6));
    let files = [
        ("multi30k/train.en", &*english),
        ("multi30k/train.fr", &french),
        ("multi30k/val.en", &english),
        ("multi30k/val.fr", &french),
    ];
    data_example("multi30k", &files, &["data.tokenizer.vocabulary=300"])
        .success()
        .stdout(contains("decoder").and(contains("samples      6")));
}

/// Returns the validation losses in a run's log.
fn valid_losses(output: &Path) -> Vec<f64> {
    let log = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter(|line| line["kind"] == "valid").map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// Fine-tunes a tiny BERT with fresh weights and a tokenizer on sentences that name people.
#[test]
fn token_classification_in_rust() {
    use burn::tensor::Device;
    use firebrick_models::pretrained::{Folder, Pretrained, save};
    use firebrick_models::{BertConfig, BertMaskedLm, BertTokenClassifier};

    let folder = tempfile::tempdir().unwrap();
    let [model, train, valid] = ["bert", "train.conll", "valid.conll"].map(|name| folder.path().join(name));
    let config = BertConfig {
        vocab_size: 500,
        hidden_size: 32,
        num_hidden_layers: 2,
        num_attention_heads: 2,
        intermediate_size: 64,
        ..Default::default()
    };
    save(&BertMaskedLm::init(&config, &Device::flex()), &config, &model).unwrap();
    let golden = Path::new("../datasets/tests/golden/wordpiece");
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let sentence = "Maria\tB-PER\nbakes\tO\nbread\tO\nfor\tO\nPeter\tB-PER\nBell\tI-PER\n\n";
    std::fs::write(&train, sentence.repeat(64)).unwrap();
    std::fs::write(&valid, sentence.repeat(4)).unwrap();

    let output = folder.path().join("run");
    let report = token_classification::fine_tune(&model, [&train, &valid], &output, 1).unwrap();
    assert_eq!(report.steps, 3 * 4);
    // The result of so few updates depends on the random weights, but each epoch improves it in any case.
    let losses = valid_losses(&output);
    assert!(losses.len() == 3 && losses.is_sorted_by(|before, after| after < before), "{losses:?}");
    assert!(report.valid_scores.contains_key("f1"), "{:?}", report.valid_scores);
    let saved = Folder::open(output.join("pretrained")).unwrap();
    let config = saved.config::<BertConfig>().unwrap();
    assert_eq!(config.label_names().len(), 3);
    assert!(saved.load::<BertTokenClassifier>(&config, &Device::flex()).unwrap().fresh.is_empty());
}
