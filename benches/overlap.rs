//! Compares the step of two ranks over a simulated link with the larger of its computation and its communication:
//!
//! ```sh
//! cargo bench -p firebrick --bench overlap
//! ```
//!
//! A step that hides its communication behind its computation, or the other way round, takes the larger of the two and one
//! bucket: the last block's gradients have nothing to travel behind. Each line is one speed of the link. The computation is
//! measured without a link, the communication is the bytes that a rank sends in a step at the speed of the link, and a
//! bucket is the gradients of a block. `ratio` is the step over the larger of the two and a bucket.
//!
//! Stage 2 gathers the new parameters after the update, when nothing is left to compute: `exposed` is what that takes, and
//! the second ratio leaves it out of the step. Each line ends with the seconds that a rank waits, by kind of collective.
//!
//! Where communication and computation are about equal, a step takes somewhat more than the larger one: gradients travel in
//! the backward pass only, so what the forward pass leaves unused of the link is lost.
//!
//! The blocks of the first model sleep in place of computing, so that its table is about the exchange alone and does not
//! depend on what else the machine does. The second model is a GPT; it needs an idle machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use firebrick::datasets::{Batch, TokenBatch, Windows};
use firebrick::memory::keep_freed;
use firebrick::observe::timeline::{RankTimeline, StepTimeline};
use firebrick::world::{Activity, Kind, Link, World};
use firebrick::{Data, Loss, Objective, Observer, Pass, Recompute, Schedule, StepNumbers, Trainer, Zero};
use firebrick_models::{Gpt, GptConfig};

const RANKS: usize = 2;
const LAYERS: usize = 6;
const WIDTH: usize = 192;
const LENGTH: usize = 128;
const VOCABULARY: usize = 64;

/// The time that a block sleeps in place of its forward pass.
const NAP: Duration = Duration::from_millis(15);

const SLEEPER_WIDTH: usize = 512;

/// Rows of each rank in a step.
const ROWS: usize = 2;

/// Steps that are not measured: the first ones allocate memory.
const BEFORE: u64 = 2;

/// Measured steps. The fastest counts, because other work only adds time.
const STEPS: u64 = 5;

/// Seconds of communication over seconds of computation.
const RATIOS: [f64; 3] = [0.5, 1.0, 2.0];

/// A measured step.
struct Step {
    seconds: f64,
    sent: u64,
    timeline: StepTimeline,
}

/// Sends the numbers and the timeline of each step.
struct Steps(Sender<Step>, Option<StepTimeline>);

impl Observer for Steps {
    fn timeline(&mut self, timeline: &StepTimeline) {
        self.1 = Some(timeline.clone());
    }

    fn step(&mut self, numbers: &StepNumbers) {
        if let Some(timeline) = self.1.take_if(|timeline| timeline.step == numbers.step) {
            let seconds = timeline.seconds();
            let _ = self.0.send(Step { seconds, sent: numbers.sent_bytes, timeline });
        }
    }
}

/// Returns the fastest step.
fn fastest(steps: Receiver<Step>) -> Step {
    steps.into_iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds)).expect("steps are recorded")
}

/// Blocks that sleep and have parameters to exchange.
#[derive(Module, Debug)]
struct Sleeper {
    embedding: Embedding,
    blocks: Vec<Linear>,
}

impl Sleeper {
    fn new(device: &Device) -> Self {
        let block = || LinearConfig::new(SLEEPER_WIDTH, SLEEPER_WIDTH).init(device);
        let embedding = EmbeddingConfig::new(VOCABULARY, SLEEPER_WIDTH).init(device);
        Self { embedding, blocks: (0..LAYERS).map(|_| block()).collect() }
    }
}

impl Objective<TokenBatch> for Sleeper {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let ids = batch.ids(pass.device());
        let first = ids.slice([0..ROWS, 0..1]);
        let x = self.blocks.iter().fold(self.embedding.forward(first), |x, block| {
            let runs_again = AtomicBool::new(false);
            pass.segment(block, x, move |block, x, _| {
                // The second time for the backward pass, which takes twice a forward pass.
                thread::sleep(if runs_again.swap(true, Relaxed) { 3 * NAP } else { NAP });
                block.forward(x)
            })
        });
        Loss { sum: x.powf_scalar(2.0).sum(), items: batch.items() }
    }
}

fn gpt(device: &Device) -> Gpt {
    let config = GptConfig { layers: LAYERS, heads: 3, width: WIDTH, dropout: 0.0, bias: true, tied: true };
    config.init(VOCABULARY, LENGTH, device)
}

/// Returns the fastest step of a model.
fn step<M: Objective<TokenBatch> + 'static>(model: M, stage: u8, link: Option<Link>) -> Step {
    let tokens = (0..20_000u32).map(|at| at * at % VOCABULARY as u32).collect::<Vec<_>>();
    let data = Data::new(Windows::new(tokens, LENGTH).unwrap()).micro_batch(ROWS);
    let world = World::threads(RANKS);
    let world = match link {
        Some(link) => world.over_link(link),
        None => world,
    };
    let (sender, steps) = channel();
    let last = BEFORE + STEPS;
    let trainer = Trainer::new().over(world).with(Zero::stage(stage)).with(Recompute::every_block());
    let trainer = trainer.steps(last).timeline(BEFORE + 1..=last).observe(Steps(sender, None));
    drop(trainer.fit(model, AdamWConfig::new().init(), Schedule::constant(1e-4), data).unwrap());
    fastest(steps)
}

/// Returns the seconds that a rank waits for each kind of exchange.
fn waits(rank: &RankTimeline) -> BTreeMap<Kind, f64> {
    let mut seconds = BTreeMap::new();
    for event in &rank.events {
        if let Activity::Wait(kind) = event.activity {
            *seconds.entry(kind).or_default() += event.end - event.start;
        }
    }
    seconds
}

/// Returns the bytes of the gradients of the largest block that a rank sends, and of the parameters that it gathers after
/// the update.
fn bucket_and_exposed(step: &Step) -> (u64, u64) {
    let events = &step.timeline.ranks[0].events;
    let of = |kind| events.iter().filter(move |event| event.activity == Activity::Exchange(kind));
    let bucket = of(Kind::ReduceScatter).map(|event| event.bytes).max();
    let updated =
        events.iter().find(|event| event.activity == Activity::Update).map_or(0.0, |event| event.start);
    let exposed = of(Kind::AllGather).filter(|event| event.start > updated).map(|event| event.bytes).sum();
    (bucket.unwrap_or(0), exposed)
}

/// Prints a line for each stage and speed.
fn compare<M: Objective<TokenBatch> + 'static>(name: &str, model: impl Fn(&Device) -> M) {
    println!("\n{name}");
    println!(
        "stage    MB/s  computation  communication  exposed  bucket     step   ratio  of the rest  waits"
    );
    let device = Device::flex().autodiff();
    for stage in [2, 3] {
        let alone = step(model(&device), stage, None);
        for ratio in RATIOS {
            let bytes_per_second = alone.sent as f64 / (ratio * alone.seconds);
            let found = step(model(&device), stage, Some(Link::new(bytes_per_second)));
            let communication = found.sent as f64 / bytes_per_second;
            let (bucket, exposed) = bucket_and_exposed(&found);
            let [bucket, exposed] = [bucket, exposed].map(|bytes| bytes as f64 / bytes_per_second);
            let ratio = found.seconds / (alone.seconds.max(communication) + bucket);
            let of_rest = (found.seconds - exposed) / (alone.seconds.max(communication - exposed) + bucket);
            let waits = waits(&found.timeline.ranks[0]);
            let waits: Vec<_> =
                waits.iter().map(|(kind, seconds)| format!("{kind} {seconds:.3} s")).collect();
            println!(
                "{stage:<5} {:>7.1} {:>10.3} s {communication:>12.3} s {exposed:>6.3} s {bucket:>5.3} s {:>6.3} s \
                 {ratio:>7.2} {of_rest:>12.2}  {}",
                bytes_per_second / 1e6,
                alone.seconds,
                found.seconds,
                waits.join(", "),
            );
        }
    }
}

fn main() {
    // As the program does: memory that a step frees serves the next one.
    keep_freed();
    compare("blocks that sleep", Sleeper::new);
    compare("GPT", gpt);
}
