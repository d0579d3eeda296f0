//! Fine-tunes a pretrained BERT for named entities, and keeps the model with the best F1:
//!
//!     cargo run --example token_classification -- MODEL TRAIN.conll VALID.conll OUTPUT [SEED]
//!
//! MODEL is a Hugging Face folder of the BERT family, with its tokenizer. The settings are the defaults of
//! transformers' `Trainer`: AdamW, a learning rate of 5e-5 that decays to 0, a norm of at most 1, three epochs of
//! batches of 16.

use std::error::Error;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use firebrick::optim::AdamW;
use firebrick::{Clip, Report, Schedule, Show, Trainer};
use firebrick_datasets::collators::LabeledBatch;
use firebrick_models::pretrained::{Folder, save};
use firebrick_models::{BertConfig, BertTokenClassifier};
use firebrick_tasks::{DataConfig, Dataset, TokenClassificationTask, TokenizerConfig};

/// Trains on one file, and evaluates on the other after each epoch.
pub fn fine_tune(
    model: &Path,
    [train, valid]: [&Path; 2],
    output: &Path,
    seed: u64,
) -> Result<Report, Box<dyn Error>> {
    // From words and their tags to batches, with the model's own tokenizer.
    let files = DataConfig {
        valid: Some(valid.to_path_buf().into()),
        max_length: Some(128),
        ..DataConfig::new(train, TokenizerConfig::File(model.into()))
    };
    let mut dataset = Dataset::new(TokenClassificationTask::default(), files, 16);
    dataset.seed = seed;
    let data = dataset.load(|doing| eprintln!("{doing}"))?;
    let (Some(batches), Some(labels)) = (data.data.batches::<LabeledBatch>(), data.labels) else {
        return Err("the task has no labels for tokens".into());
    };

    // The pretrained encoder, and a fresh head for these labels.
    let device = Device::flex().autodiff();
    device.seed(seed);
    let folder = Folder::open(model)?;
    let config = folder.config::<BertConfig>()?.with_labels(labels.names());
    let loaded = folder.load::<BertTokenClassifier>(&config, &device)?;

    let trained = Trainer::new()
        .with(Clip::norm(1.0))
        .seed(seed)
        .epochs(3)
        .best_by("f1")
        .output(output)
        .show(Show::Lines)
        .fit(loaded.model, AdamW::new().init()?, Schedule::linear(5e-5), batches)?;

    // A folder that transformers opens.
    let folder = output.join("pretrained");
    save(&trained.model, &config, &folder)?;
    data.tokenizer.save(folder.join("tokenizer.json"))?;
    Ok(trained.report)
}

#[allow(dead_code, reason = "a test calls what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [model, train, valid, output, seed @ ..] = arguments.as_slice() else {
        return Err("expected: MODEL TRAIN.conll VALID.conll OUTPUT [SEED]".into());
    };
    let seed = seed.first().and_then(|seed| seed.to_str()).map_or(Ok(42), str::parse)?;
    let report = fine_tune(model, [train, valid], output, seed)?;
    let scores = report.valid_scores.iter().map(|(name, value)| format!("{name} {value:.4}"));
    println!("{}", scores.collect::<Vec<_>>().join("  "));
    println!(
        "step {:.3} s (median), first step after {:.2} s, peak {:.0} MB",
        report.step_seconds_median,
        report.first_step_seconds,
        report.peak_bytes as f64 / 1e6
    );
    Ok(())
}
