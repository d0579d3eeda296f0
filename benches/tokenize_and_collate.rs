//! Reads, tokenizes and collates a data set once, and prints the times as JSON. `against_transformers.py` runs this
//! program, and describes the comparison.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use burn::tensor::Device;
use firebrick::datasets::collators::{
    CausalLm, LabeledBatch, Labels, MaskedLm, Masking, Seq2Seq, Seq2SeqBatch, TokenClassification,
};
use firebrick::datasets::{
    Batch, Batcher, Batches, Collator, ConllReader, DataError, Encoder, Files, Malformed, ParallelReader,
    Reader, Source, TextReader, TokenBatch, TokenFile, TokenWriter, Tokenizer,
};

/// Samples of a batch.
const BATCH: usize = 32;

/// Tokens of a window of the token file, a usual length.
const BLOCK: usize = 1024;

/// Tokens of the file.
const TOKENS: usize = 100_000_000;

/// Creates a batch's tensors on the device, and counts the real tokens of its inputs.
trait Used: Batch {
    fn used(&self, device: &Device) -> usize;
}

fn real(mask: &[bool]) -> usize {
    mask.iter().filter(|&&real| real).count()
}

impl Used for TokenBatch {
    fn used(&self, device: &Device) -> usize {
        let _ = (self.ids(device), self.mask(device), self.labels(device));
        real(self.host_mask())
    }
}

impl Used for LabeledBatch {
    fn used(&self, device: &Device) -> usize {
        let _ = (self.inputs().ids(device), self.inputs().mask(device), self.labels(device));
        real(self.inputs().host_mask())
    }
}

impl Used for Seq2SeqBatch {
    fn used(&self, device: &Device) -> usize {
        let _ = (self.source().ids(device), self.source().mask(device));
        let _ = (self.decoder_ids(device), self.labels(device));
        real(self.source().host_mask())
    }
}

/// Converts all data to tensors, batch by batch.
fn run<C: Collator>(reader: impl Reader, collator: C) -> Result<usize, DataError>
where
    C::Batch: Used,
{
    let source = Source::new(reader, Arc::new(collator));
    let batches = Batcher::new(source.load(|_| ())?, source.collator().clone());
    let device = Device::flex();
    let samples = batches.samples(0);
    let mut tokens = 0;
    for start in (0..samples).step_by(BATCH) {
        tokens += batches.batch(0, start..samples.min(start + BATCH))?.used(&device);
    }
    Ok(tokens)
}

fn task(task: &str, data: &Path, encoder: Encoder) -> Result<usize, DataError> {
    let english = || Files::find([data.join("multi30k/train.en")], &[]);
    match task {
        "masked_lm" => run(TextReader::new(english()?), MaskedLm::new(encoder, Masking::default())),
        "causal_lm" => run(TextReader::new(english()?), CausalLm::new(encoder)),
        "seq2seq" => {
            let french = Files::find([data.join("multi30k/train.fr")], &[])?;
            run(ParallelReader::new(english()?, french)?, Seq2Seq::new(encoder.clone(), encoder))
        }
        "token_classification" => {
            let reader = ConllReader::new(Files::find([data.join("wnut17/wnut17train.conll")], &[])?);
            let labels = Labels::from_records(reader.open(0)?, "labels", Malformed::Stop)?;
            run(reader, TokenClassification::new(encoder, labels))
        }
        other => {
            eprintln!("no task is called {other}");
            std::process::exit(2);
        }
    }
}

/// Reads a token file in shuffled windows, and copies the same amount of memory.
fn token_file() -> Result<String, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokens");
    let characters: String = ('\u{4E00}'..'\u{9FFF}').collect();
    let mut writer = TokenWriter::create(&path, &Tokenizer::characters(&characters)?)?;
    let chunk: Vec<u32> = (0..1_000_000_u32).map(|at| at.wrapping_mul(2_654_435_761) % 20_000).collect();
    for _ in 0..TOKENS / chunk.len() {
        writer.document(&chunk)?;
    }
    writer.finish()?;
    let file = TokenFile::open(&path)?;
    file.verify()?;
    let bytes = 2 * TOKENS;
    let windows = TOKENS / BLOCK;
    let order = firebrick::datasets::Permutation::new(windows, 1, 0);

    let read = Instant::now();
    let mut sum = 0;
    for at in 0..windows {
        let start = order.at(at) * BLOCK;
        sum += file.range(start..start + BLOCK)?.len();
    }
    let read = read.elapsed().as_secs_f64();

    // The same from memory: two-byte ids widened to four bytes.
    let memory: Vec<u16> = (0..TOKENS).map(|at| at as u16).collect();
    let copy = Instant::now();
    for at in 0..windows {
        let start = order.at(at) * BLOCK;
        let ids: Vec<u32> = memory[start..start + BLOCK].iter().copied().map(u32::from).collect();
        sum += std::hint::black_box(ids).len();
    }
    let copy = copy.elapsed().as_secs_f64();

    let speed = |seconds: f64| bytes as f64 / seconds / 1e9;
    assert_eq!(sum, 2 * windows * BLOCK);
    Ok(format!(
        r#"{{"bytes": {bytes}, "read_gb_per_second": {}, "copy_gb_per_second": {}, "ratio": {}}}"#,
        speed(read),
        speed(copy),
        copy / read
    ))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["token_file"] => println!("{}", token_file()?),
        [name, data, tokenizer] => {
            let encoder = Encoder::new(Arc::new(Tokenizer::from_file(tokenizer)?));
            let started = Instant::now();
            let tokens = task(name, data.as_ref(), encoder)?;
            let seconds = started.elapsed().as_secs_f64();
            println!(r#"{{"tokens": {tokens}, "seconds": {seconds}}}"#);
        }
        _ => {
            let tasks = "masked_lm, causal_lm, seq2seq or token_classification";
            eprintln!(
                "tokenize_and_collate TASK DATA TOKENIZER, where TASK is {tasks}; or tokenize_and_collate token_file"
            );
            std::process::exit(2);
        }
    }
    Ok(())
}
