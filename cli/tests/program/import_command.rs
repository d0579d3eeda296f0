//! `firebrick import`, from a ds_config to a run that trains.

use std::fs;
use std::path::Path;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use predicates::prelude::*;
use predicates::str::contains;
use serde_json::Value;

/// Runs the program in a folder.
fn firebrick(folder: &Path, arguments: &[&str]) -> Assert {
    Command::cargo_bin("firebrick").unwrap().current_dir(folder).args(arguments).assert()
}

const CONFIG: &str = r#"{
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.99], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 2}}
}"#;

const ARGUMENTS: &str = r#"{
    "output_dir": "out",
    "learning_rate": 1e-3,
    "per_device_train_batch_size": 2,
    "max_steps": 4,
    "eval_strategy": "no"
}"#;

#[test]
fn a_ds_config_becomes_a_run_that_trains() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("ds_config.json"), CONFIG).unwrap();
    fs::write(folder.join("args.json"), ARGUMENTS).unwrap();
    fs::write(folder.join("text.txt"), "to be or not to be, that is the question\n".repeat(40)).unwrap();
    let import =
        ["import", "ds_config.json", "--training-args", "args.json", "--ranks", "2", "-o", "run.ron"];
    firebrick(folder, &import).success().stderr(contains("zero_optimization.stage"));
    let text = fs::read_to_string(folder.join("run.ron")).unwrap();
    // Fills in the two lines that the files do not contain, as a user would in an editor.
    let filled = text.lines().map(|line| match line.split_once("// fill in: ") {
        Some((_, rest)) if rest.starts_with("data:") => {
            "data: (path: \"text.txt\", tokenizer: Characters, block: 16),"
        }
        Some((_, rest)) if rest.starts_with("model:") => "model: Gpt(layers: 2, heads: 2, width: 16),",
        Some((_, rest)) => panic!("the files do tell {rest}"),
        None => line,
    });
    let filled = filled.collect::<Vec<_>>().join("\n");
    fs::write(folder.join("run.ron"), &filled).unwrap();
    let train = ["train", "run.ron", "--device", "cpu", "--report", "json"];
    let trained = firebrick(folder, &train).success();
    let output = String::from_utf8(trained.get_output().stdout.clone()).unwrap();
    let report: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!((&report["steps"], report["ranks"].as_array().unwrap().len()), (&Value::from(4), 2));
    assert!(report["host_bytes"].as_u64().unwrap() > 0, "moments wait on the host: {report}");

    firebrick(folder, &import).failure().stderr(contains("it already exists"));
    assert_eq!(fs::read_to_string(folder.join("run.ron")).unwrap(), filled, "it is left as it was");
}

#[test]
fn what_is_not_supported_is_told_before_a_file_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let config = r#"{"train_batch_size": 8, "sparse_attention": {"mode": "fixed"}}"#;
    fs::write(folder.join("ds_config.json"), config).unwrap();
    let import = ["import", "ds_config.json", "-o", "run.ron"];
    let expected = contains("sparse_attention").and(contains("--allow-unsupported"));
    firebrick(folder, &import).failure().stderr(expected);
    assert!(!folder.join("run.ron").exists());
    firebrick(folder, &[&import[..], &["--allow-unsupported"]].concat()).success();
    assert!(folder.join("run.ron").exists());
    // The error for invalid JSON names its position.
    fs::write(folder.join("ds_config.json"), "{\"train_batch_size\": 8,\n").unwrap();
    firebrick(folder, &["import", "ds_config.json"]).failure().stderr(contains("ds_config.json"));
}

#[test]
fn training_arguments_need_no_ds_config() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("args.json"), include_str!("../import/transformers_5_24/args.json")).unwrap();
    let made = firebrick(folder, &["import", "--training-args", "args.json"]).success();
    made.stdout(contains("// Made of args.json").and(contains("Clip(norm: 1.0)")));
    firebrick(folder, &["import"]).code(2).stderr(contains("DS_CONFIG.json"));
}
