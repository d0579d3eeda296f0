//! Times what a save costs training and what a resume costs a run, and prints a line of JSON for each.
//!
//! The pause of a save, during which training stops, is compared with a copy of the same bytes in memory: of master and
//! moments, tensor by tensor. The additional time of a resumed run until its first step, compared with a new run, is
//! compared with reading the same files. `cargo bench -p firebrick-checkpoints` compares a whole save with writing and
//! syncing its bytes.

use std::hint::black_box;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Instant;

use burn::tensor::Device;
use firebrick::datasets::Windows;
use firebrick::optim::AdamW;
use firebrick::{Checkpoints, Data, Resume, Schedule, Trainer};
use firebrick_models::{Gpt, GptConfig};
use serde_json::json;

/// A model of about 25 million parameters.
const CONFIG: GptConfig = GptConfig { layers: 8, heads: 8, width: 512, dropout: 0.0, bias: true, tied: true };
const STEPS: u64 = 15;
const ROUNDS: usize = 5;

fn model() -> Gpt {
    CONFIG.init(64, 8, &Device::flex().autodiff())
}

/// Trains, and returns the seconds to the end of the first step.
fn train(output: &Path, resume: Option<Resume>, steps: u64, checkpoints: Checkpoints) -> f64 {
    let tokens: Vec<u32> = (0..999).map(|i| i * 7 % 64).collect();
    let data = Data::new(Windows::new(tokens, 8).unwrap().shuffled(1)).micro_batch(1);
    let trainer = Trainer::new().steps(steps).output(output).checkpoints(checkpoints);
    let trainer = match resume {
        Some(resume) => trainer.resume(resume),
        None => trainer,
    };
    let (sender, first) = channel();
    let model = model();
    let started = Instant::now();
    let watch = move |_: &_| sender.send(started.elapsed().as_secs_f64()).unwrap_or_default();
    trainer.observe(watch).fit(model, AdamW::new().init().unwrap(), Schedule::constant(1e-4), data).unwrap();
    first.recv().unwrap()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    train(&run, None, STEPS, Checkpoints::every(3));
    let log = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let saves: Vec<_> = lines.filter(|line| line["kind"] == "checkpoint").collect();
    let pause = median(saves.iter().map(|save| save["pause_seconds"].as_f64().unwrap()).collect());
    let whole = median(saves.iter().map(|save| save["seconds"].as_f64().unwrap()).collect());

    let sizes = sizes();
    let sources: Vec<Vec<f32>> = sizes.iter().map(|size| vec![1.0; *size]).collect();
    let copy = || {
        // Master and both moments, with all copies alive at once, as in a snapshot.
        let copies: Vec<_> =
            (0..3).flat_map(|_| sources.iter().map(|source| black_box(source).to_vec())).collect();
        drop(black_box(copies));
    };
    let copied = median((0..ROUNDS).map(|_| seconds(copy)).collect());
    let bytes = 12 * sizes.iter().sum::<usize>();
    println!(
        "{}",
        json!({
            "bytes": bytes, "pause_seconds": pause, "copy_seconds": copied, "pause_over_copy": pause / copied,
            "save_seconds": whole,
        })
    );

    let checkpoint = firebrick::checkpoints::Folder::new(run.join("checkpoints")).latest().unwrap().unwrap();
    let (mut fresh, mut resumed, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let output = |name: &str| folder.path().join(format!("{name}-{round}"));
        fresh.push(train(&output("fresh"), None, 1, Checkpoints::when_stopped()));
        let from = Resume::Path(checkpoint.path.clone());
        resumed.push(train(&output("resumed"), Some(from), STEPS + 1, Checkpoints::when_stopped()));
        read.push(seconds(|| {
            for entry in std::fs::read_dir(&checkpoint.path).unwrap() {
                drop(black_box(std::fs::read(entry.unwrap().path()).unwrap()));
            }
        }));
    }
    let [fresh, resumed, read] = [fresh, resumed, read].map(median);
    println!(
        "{}",
        json!({
            "new_run_seconds": fresh, "resumed_run_seconds": resumed, "reading_seconds": read,
            "resuming_over_reading": (resumed - fresh) / read,
        })
    );
}

/// Returns the number of elements of each tensor of the model.
fn sizes() -> Vec<usize> {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::Tensor;
    struct Sizes(Vec<usize>);
    impl ModuleVisitor for Sizes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.base().shape().num_elements());
        }
    }
    let mut sizes = Sizes(Vec::new());
    model().visit(&mut sizes);
    sizes.0
}
