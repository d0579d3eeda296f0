//! Mistakes that were told late, or wrongly: what is said names the place and what to do.

use std::fs;

use predicates::prelude::*;
use predicates::str::contains;

use crate::small_run::{RUN, firebrick, folder_of, train};

#[test]
fn an_empty_cell_is_no_label() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "a good film,good\na bad film,bad\nanother film,\n".repeat(8);
    fs::write(folder.path().join("films.csv"), format!("text,label\n{rows}")).unwrap();
    let run = "(task: SequenceClassification(), data: (path: \"films.csv\", valid_fraction: 0.2, \
        tokenizer: Bpe(vocabulary: 270), special: (pad: \"<pad>\", bos: \"<s>\", eos: \"</s>\"), max_length: 32), \
        batch: (micro: 4))";
    fs::write(folder.path().join("run.ron"), run).unwrap();
    let mut data = firebrick(folder.path());
    let refused = data.args(["data", "run.ron"]).assert().code(1);
    refused.stderr(contains("films.csv:4, field `label`: expected a label"));
    let mut skipping = firebrick(folder.path());
    let skipped = skipping.args(["data", "run.ron", "--set", "data.malformed=Skip"]).assert().success();
    skipped.stderr(contains("skipped 8 malformed records"));
}

#[test]
fn a_damaged_model_is_not_a_diverged_run() {
    let folder = folder_of(RUN, 40);
    train(folder.path(), &["--steps", "2"]).assert().success();
    let model = folder.path().join("out/pretrained");
    let trained = |said: &str| {
        for arguments in [
            &["generate", "out", "--prompt", "to be"][..],
            &[
                "train",
                "run.ron",
                "--set",
                "model=Pretrained(\"out/pretrained\")",
                "--set",
                "data.tokenizer=File(\"out/pretrained\")",
                "--set",
                "output=other",
            ],
        ] {
            let mut command = firebrick(folder.path());
            let failed = command.args(arguments).assert().code(1);
            failed.stderr(contains(said).and(contains("diverged; ").not()).and(contains("panicked").not()));
        }
    };
    let weights = fs::read(model.join("model.safetensors")).unwrap();
    let mut damaged = weights.clone();
    let end = damaged.len();
    damaged[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(model.join("model.safetensors"), damaged).unwrap();
    trained("expected finite numbers, found NaN or infinity");

    fs::write(model.join("model.safetensors"), weights).unwrap();
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["layer_norm_epsilon"] = (-1.0).into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    trained("`layer_norm_epsilon`: expected at least 0 and below 1, found -1");
}

#[test]
fn a_resume_that_finds_nothing_says_what_is_there() {
    let folder = folder_of(RUN, 40);
    fs::create_dir(folder.path().join("empty")).unwrap();
    let resumed = |place: &str| train(folder.path(), &["--resume", place]).assert().code(1);
    resumed("empty").stderr(contains("expected a checkpoint").and(contains("manifest.json").not()));
    resumed("text.txt").stderr(contains("found a file"));
    for step in ["step-9999", "step-99999999999999999999"] {
        resumed(step).stderr(contains("did you mean").not());
    }
}

#[test]
fn a_folder_that_is_no_run_is_not_watched() {
    let folder = folder_of(RUN, 40);
    let mut watch = firebrick(folder.path());
    watch.args(["watch", "."]).assert().code(1).stderr(contains("is not the output folder of a run"));
}

#[test]
fn names_that_cargo_refuses_make_no_crate() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["fn", "self", "con"] {
        let mut new = firebrick(folder.path());
        new.args(["new", name]).assert().code(1).stderr(contains("choose another name"));
        assert!(!folder.path().join(name).exists());
    }
}
