//! Trains a small BERT to fill in masked tokens of English sentences: `cargo run --example masked_lm`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use firebrick::datasets::collators::{MaskedLm, Masking};
use firebrick::datasets::{Batcher, Encoder, Format, Source, SpecialNames, Tokenizer};
use firebrick::optim::AdamW;
use firebrick::{Clip, Data, Report, Schedule, Show, Trainer, Warmup};
use firebrick_models::pretrained::Pretrained;
use firebrick_models::{BertConfig, BertMaskedLm};

/// Trains for some epochs; the report has the perplexity of the masked tokens.
pub fn fill_in(epochs: u64) -> Result<Report, Box<dyn Error>> {
    let file = |name: &str| Path::new("examples/data").join(name);
    let text = std::fs::read_to_string(file("topics.tsv"))?;
    let names = SpecialNames { pad: Some("<pad>".into()), mask: Some("<mask>".into()), ..Default::default() };
    let tokenizer = Arc::new(Tokenizer::train_bpe_with(&text, 400, names)?);

    // Masks 15% of the tokens of each text, others in each epoch.
    let encoder = Encoder::new(tokenizer.clone()).max_length(Some(48));
    let task = Arc::new(MaskedLm::new(encoder, Masking::default().seed(7)).field("text"));
    let samples = |name: &str| Source::new(Format::Tsv.open(&[file(name)])?, task.clone()).load(|_| ());
    let train = Batcher::new(Arc::new(samples("topics.tsv")?.shuffled(7)), task.clone());
    let valid = Batcher::new(samples("topics.valid.tsv")?, task.clone());
    let data = Data::new(train).valid(valid).micro_batch(16);

    let device = Device::flex().autodiff();
    device.seed(7);
    let config = BertConfig {
        vocab_size: tokenizer.vocab_size(),
        hidden_size: 64,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        intermediate_size: 256,
        max_position_embeddings: 48,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..Default::default()
    };
    let trained = Trainer::new().with(Clip::norm(1.0)).seed(7).epochs(epochs).show(Show::Lines).fit(
        BertMaskedLm::init(&config, &device),
        AdamW::new().init()?,
        Schedule::linear(2e-3).warmup(Warmup::Ratio(0.1)),
        data,
    )?;
    Ok(trained.report)
}

#[allow(dead_code, reason = "a test calls what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let report = fill_in(20)?;
    println!("perplexity {:.2}", report.valid_scores["perplexity"]);
    Ok(())
}
