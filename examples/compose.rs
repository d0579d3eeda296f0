//! Composes a training recipe, one line per technique:
//!
//!     cargo run --example compose

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use firebrick::datasets::{Corpus, Tokenizer, Windows};
use firebrick::{Accumulate, Amp, Clip, Data, Schedule, Show, Trainer};
use firebrick_models::decoding::{Decoding, Prompt};
use firebrick_models::{Continues, GptConfig};

/// Trains a small GPT on the README.
pub fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Splits the text into windows of 32 characters. Each character predicts the next.
    let text = include_str!("../README.md").to_string();
    let tokenizer = Tokenizer::characters(&text)?;
    let (train, valid) = Corpus::from(text).split(0.1)?;
    let data = Data::new(Windows::new(tokenizer.encode(&train)?, 32)?.shuffled(42))
        .valid(Windows::new(tokenizer.encode(&valid)?, 32)?)
        .micro_batch(4);

    // An ordinary Burn model on an ordinary Burn device.
    let device = Device::flex().autodiff();
    let config = GptConfig { layers: 2, heads: 2, width: 32, dropout: 0.0, bias: true, tied: true };
    let model = config.init(tokenizer.vocab_size(), 32, &device);

    let trained = Trainer::new()
        .with(Amp::bf16()) // compute in bf16, keep f32 master weights
        .with(Accumulate(4)) // 4 micro-batches of 4 make one update of 16
        .with(Clip::norm(1.0)) // one norm over all parameters
        .steps(50)
        .evaluate_every(25)
        .show(Show::Lines)
        .fit(model, AdamWConfig::new().init(), Schedule::cosine(1e-2).warmup(5), data)?;

    let prompt = Prompt::new(0, tokenizer.encode("Fire")?);
    let decoding = Decoding { max_new_tokens: 60, temperature: 0.8, seed: 1, ..Decoding::default() };
    let text = tokenizer.decode(&trained.model.continued(&[prompt], &decoding)?[0][0].tokens)?;
    println!("validation loss {:?}\nFire{text}", trained.report.valid_loss);
    Ok(())
}
