//! Trains a small T5 to write numbers in digits from their words: `cargo run --example seq2seq`.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use burn::tensor::Device;
use firebrick::datasets::collators::{Inputs, Seq2Seq, Tokens};
use firebrick::datasets::{Batcher, Encoder, Format, Padding, Source, SpecialNames, Tokenizer};
use firebrick::optim::AdamW;
use firebrick::{Clip, Data, Schedule, Show, Trainer, Warmup};
use firebrick_models::decoding::Decoding;
use firebrick_models::pretrained::Pretrained;
use firebrick_models::{T5, T5Config, Writes};

/// Trains for some epochs, and returns what the model generates for each text of `asked`.
pub fn learn_numbers(epochs: u64, asked: &[&str]) -> Result<Vec<String>, Box<dyn Error>> {
    let file = |name: &str| Path::new("examples/data").join(name);
    let text = std::fs::read_to_string(file("numbers.tsv"))?;
    let names = SpecialNames { pad: Some("<pad>".into()), eos: Some("</s>".into()), ..Default::default() };
    let tokenizer = Arc::new(Tokenizer::train_bpe_with(&text, 320, names)?);

    // From records to samples to batches: columns of a table, tokenized, padded to the longest.
    let encoder = Encoder::new(tokenizer.clone()).max_length(Some(32));
    let task = Arc::new(Seq2Seq::new(encoder.clone(), encoder.clone()).fields("words", "digits"));
    let samples = |name: &str| Source::new(Format::Tsv.open(&[file(name)])?, task.clone()).load(|_| ());
    let train = Batcher::new(Arc::new(samples("numbers.tsv")?.shuffled(7)), task.clone());
    let valid = Batcher::new(samples("numbers.valid.tsv")?, task.clone());
    let data = Data::new(train).valid(valid).micro_batch(32);

    let device = Device::flex().autodiff();
    device.seed(7);
    let config = T5Config {
        vocab_size: tokenizer.vocab_size(),
        d_model: 64,
        d_kv: 16,
        d_ff: 256,
        num_layers: 2,
        num_heads: 4,
        dropout_rate: 0.0,
        feed_forward_proj: "gated-gelu".into(),
        ..Default::default()
    };
    let trained = Trainer::new().with(Clip::norm(1.0)).seed(7).epochs(epochs).show(Show::Lines).fit(
        T5::init(&config, &device),
        AdamW::new().init()?,
        Schedule::linear(3e-3).warmup(Warmup::Ratio(0.1)),
        data,
    )?;

    // Beam search: the most probable of four texts that are generated together.
    let (pad, eos) = (tokenizer.special().pad.unwrap_or(0), tokenizer.special().eos);
    let sources = asked.iter().map(|text| {
        let ids = encoder.ids(text)?;
        Ok::<_, Box<dyn Error>>(Tokens { type_ids: vec![0; ids.len()], ids })
    });
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let sources = Inputs::new(&sources.iter().collect::<Vec<_>>(), &Padding::default(), pad)?;
    let decoding = Decoding {
        max_new_tokens: 8,
        beams: 4,
        end_tokens: eos.into_iter().collect(),
        ..Decoding::default()
    };
    let texts = trained.model.written(&sources, pad, &decoding)?;
    texts.iter().map(|texts| Ok(tokenizer.written(texts[0].without_end())?)).collect()
}

#[allow(dead_code, reason = "a test calls what is above")]
fn main() -> Result<(), Box<dyn Error>> {
    let asked = ["four hundred seven", "twelve", "nine hundred ninety nine"];
    for (words, digits) in asked.iter().zip(learn_numbers(40, &asked)?) {
        println!("{words}: {digits}");
    }
    Ok(())
}
