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
//! Where both are about equal, no order of exchanges reaches that. Gradients exist from the backward pass on, and the new
//! parameters that the forward pass needs only after the update, so that neither half of the traffic can use what the other
//! leaves of the link. `of halves` is the step over what the halves allow: the larger of the two in the forward pass, the
//! larger of the two in the rest of the step, and a bucket.
//!
//! A step is the mean of neighbouring ones, since stage 2 gathers the parameters of one step while the next one computes. Each
//! line ends with the seconds that a rank waits in a step, by kind of collective.
//!
//! The blocks of the first model sleep in place of computing, so that its table is about the exchange alone and does not
//! depend on what else the machine does. The second model is a GPT; it needs an idle machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use firebrick::datasets::{Batch, TokenBatch, Windows};
use firebrick::memory::keep_freed;
use firebrick::observe::timeline::{RankTimeline, StepTimeline};
use firebrick::world::{Activity, Collective, Event, Link, World};
use firebrick::{
    Data, Loss, Objective, Observer, Pass, Recompute, Report, Schedule, StepNumbers, Trainer, Zero,
};
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

/// Measured steps of a run.
const STEPS: u64 = 5;

/// Runs. The fastest counts, because other work only adds time.
const RUNS: usize = 3;

/// About the bytes of a block. By default, a bucket would hold the whole model.
const BUCKET_BYTES: usize = 1 << 20;

/// Seconds of communication over seconds of computation.
const RATIOS: [f64; 3] = [0.5, 1.0, 2.0];

/// The measured steps of a run.
#[derive(Default)]
struct Measured {
    /// Seconds of all of them.
    seconds: f64,
    /// Bytes that a rank sends in a step.
    sent: u64,
    /// The step after them: its timeline is an exchange of its own.
    timeline: StepTimeline,
}

/// Sends what it has measured when the run ends.
struct Steps(Sender<Measured>, Measured);

impl Observer for Steps {
    fn timeline(&mut self, timeline: &StepTimeline) {
        self.1.timeline = timeline.clone();
    }

    fn step(&mut self, numbers: &StepNumbers) {
        if (BEFORE + 1..=BEFORE + STEPS).contains(&numbers.step) {
            self.1.seconds += numbers.seconds;
            self.1.sent = numbers.sent_bytes;
        }
    }

    fn ended(&mut self, _: &Report) {
        let _ = self.0.send(std::mem::take(&mut self.1));
    }
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

/// Returns the fastest of a few runs of a model.
fn measured<M: Objective<TokenBatch> + 'static>(
    model: impl Fn() -> M,
    stage: u8,
    link: Option<Link>,
) -> Measured {
    let tokens = (0..20_000u32).map(|at| at * at % VOCABULARY as u32).collect::<Vec<_>>();
    let data = Data::new(Windows::new(tokens, LENGTH).unwrap()).micro_batch(ROWS);
    let world = World::threads(RANKS);
    let world = match link {
        Some(link) => world.over_link(link),
        None => world,
    };
    let (sender, runs) = channel();
    let last = BEFORE + STEPS + 1;
    for _ in 0..RUNS {
        let steps = Steps(sender.clone(), Measured::default());
        let trainer = Trainer::new()
            .over(world.clone())
            .with(Zero::stage(stage).bucket_bytes(BUCKET_BYTES))
            .with(Recompute::every_block());
        let trainer = trainer.steps(last).timeline(last..=last).observe(steps);
        drop(
            trainer.fit(model(), AdamWConfig::new().init(), Schedule::constant(1e-4), data.clone()).unwrap(),
        );
    }
    drop(sender);
    runs.into_iter().min_by(|one, other| one.seconds.total_cmp(&other.seconds)).expect("a run ends")
}

/// Returns the seconds that a rank waits for each kind of exchange.
fn waits(rank: &RankTimeline) -> BTreeMap<Collective, f64> {
    let mut seconds = BTreeMap::new();
    for event in &rank.events {
        if let Activity::Wait(kind) = event.activity {
            *seconds.entry(kind).or_default() += event.end - event.start;
        }
    }
    seconds
}

/// Returns the bytes of the gradients of the largest block that a rank sends.
fn bucket(rank: &RankTimeline) -> u64 {
    let of_sums = |event: &&Event| event.activity == Activity::Exchange(Collective::ReduceScatter);
    rank.events.iter().filter(of_sums).map(|event| event.bytes).max().unwrap_or(0)
}

/// Returns the part of a step's computation that is its forward pass.
fn forward_of_computation(rank: &RankTimeline) -> f64 {
    let seconds_of = |activity| {
        let events = rank.events.iter().filter(move |event| event.activity == activity);
        events.filter(|event| event.name == "the model").map(|event| event.end - event.start).sum::<f64>()
    };
    let [forward, backward] = [Activity::Forward, Activity::Backward].map(seconds_of);
    forward / (forward + backward)
}

/// Returns the part of a step's bytes that the forward pass needs: the gathers that begin before the backward pass.
fn forward_of_bytes(rank: &RankTimeline) -> f64 {
    let mut backward = rank.events.iter().filter(|event| event.activity == Activity::Backward);
    let begins = backward.next().map_or(f64::INFINITY, |event| event.start);
    let bytes_of = |counts: &dyn Fn(&Event) -> bool| {
        let exchanges = rank.events.iter().filter(|event| matches!(event.activity, Activity::Exchange(_)));
        exchanges.filter(|event| counts(event)).map(|event| event.bytes).sum::<u64>() as f64
    };
    let in_forward = |event: &Event| event.start < begins;
    bytes_of(&in_forward) / bytes_of(&|_| true)
}

/// Prints a line for each stage and speed.
fn compare<M: Objective<TokenBatch> + 'static>(name: &str, model: impl Fn(&Device) -> M) {
    println!("\n{name}");
    println!("stage    MB/s  computation  communication   bucket     step  ratio  of halves  waits");
    let device = Device::flex().autodiff();
    for stage in [2, 3] {
        let of = |link| measured(|| model(&device), stage, link);
        let alone = of(None);
        let computation = alone.seconds / STEPS as f64;
        for ratio in RATIOS {
            let bytes_per_second = alone.sent as f64 / (ratio * computation);
            let found = of(Some(Link::new(bytes_per_second)));
            let (step, rank) = (found.seconds / STEPS as f64, &found.timeline.ranks[0]);
            let [communication, bucket] =
                [found.sent, bucket(rank)].map(|bytes| bytes as f64 / bytes_per_second);
            let ratio = step / (computation.max(communication) + bucket);
            let (computed, sent) = (forward_of_computation(&alone.timeline.ranks[0]), forward_of_bytes(rank));
            let forward = (computation * computed).max(communication * sent);
            let rest = (computation * (1.0 - computed)).max(communication * (1.0 - sent));
            let of_halves = step / (forward + rest + bucket);
            let waits: Vec<_> =
                waits(rank).iter().map(|(kind, seconds)| format!("{kind} {seconds:.3} s")).collect();
            println!(
                "{stage:<5} {:>7.1} {computation:>10.3} s {communication:>12.3} s {bucket:>6.3} s {step:>6.3} s \
                 {ratio:>6.2} {of_halves:>10.2}  {}",
                bytes_per_second / 1e6,
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
