//! Ranks that have some of a model's blocks each train to the same model as one rank.

use crate::support::many::*;
use crate::support::resuming::*;
use crate::support::{Bigram, Rows, adamw, device, difference, gpt, has_bf16, is_cpu};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use burn::module::Module;
use burn::tensor::Tensor;
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::strategies::{Composed, PipelineSchedule, StageBalance, StrategyError};
use firebrick::world::Collective;
use firebrick::{
    Amp, Checkpoints, Clip, Data, Ema, Freeze, Lora, Loss, Mesh, Objective, Offload, Pass, Quantize,
    RankReport, Recompute, Resume, Schedule, TrainError, Trainer, World, Zero,
};
use firebrick_models::{Gpt, GptConfig};

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;

/// Ranks of which `pipeline` have some of the three blocks each, `tensor` share layers and `context` tokens, at a stage of ZeRO.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: usize,
    pipeline: usize,
    tensor: usize,
    context: usize,
    schedule: PipelineSchedule,
    stage: u8,
    micro_batches: usize,
}

impl Shape {
    /// A pipeline of all ranks.
    fn of(pipeline: usize, micro_batches: usize) -> Self {
        Self {
            ranks: pipeline,
            pipeline,
            tensor: 1,
            context: 1,
            schedule: PipelineSchedule::default(),
            stage: 0,
            micro_batches,
        }
    }

    fn per_batch(self) -> usize {
        self.pipeline * self.tensor * self.context
    }

    fn strategies(self) -> Composed<Gpt> {
        let zero = Zero::stage(self.stage).replicate_below(64);
        let mesh = Mesh::new().pipeline(self.pipeline).tensor(self.tensor).context(self.context);
        Composed::new().with(mesh.schedule(self.schedule)).with(zero).with(accumulate(self.micro_batches))
    }

    fn run(self, setting: &Setting, with: &Composed<Gpt>) -> Outcome {
        let setting = Setting { per_batch: self.per_batch(), ..setting.clone() };
        setting.run(self.ranks, self.micro_batches, self.strategies().with(with.clone()))
    }

    fn setting(self) -> Setting {
        Setting::default().cut_for(self.ranks / self.per_batch(), self.micro_batches)
    }

    /// Compares a run with that of one rank, which has what is `learned` alone.
    fn follows(self, setting: &Setting, learned: &Composed<Gpt>, executed: &Composed<Gpt>) {
        let found = self.run(setting, &learned.clone().with(executed.clone()));
        let (losses, parameters) = apart(&found, &setting.run(1, 1, learned.clone()));
        let name = format!("{self:?}, {learned:?}, {executed:?}");
        assert!(losses < TOLERANCE, "{name}: losses differ by {losses:e}");
        assert!(parameters < TOLERANCE, "{name}: parameters differ by {parameters:e}");
    }
}

#[test]
fn stages_follow_one_rank() {
    for shape in [Shape::of(2, 1), Shape::of(2, 3), Shape::of(3, 2), Shape::of(3, 5)] {
        shape.follows(&shape.setting(), &Composed::new(), &Composed::new());
    }
}

/// Pipelines beside the other axes, at each stage of ZeRO that goes with one, in each order of passes.
#[test]
fn stages_share_layers_tokens_and_samples() {
    let schedules = [PipelineSchedule::GPipe, PipelineSchedule::OneForwardOneBackward];
    for stage in 0..=2 {
        for (ranks, pipeline, tensor, context) in
            [(2, 2, 1, 1), (4, 2, 1, 1), (6, 3, 1, 1), (4, 2, 2, 1), (4, 2, 1, 2), (8, 2, 2, 2), (8, 2, 2, 1)]
        {
            for micro_batches in [1, 3] {
                let schedule = schedules[(ranks + micro_batches + stage as usize) / 2 % 2];
                let shape =
                    Shape { ranks, tensor, context, schedule, stage, ..Shape::of(pipeline, micro_batches) };
                shape.follows(&shape.setting(), &Composed::new(), &Composed::new());
            }
        }
    }
}

/// Two and three stages on each rank. The last step of an epoch has fewer micro-batches.
#[test]
fn interleaved_stages_follow_one_rank() {
    for (ranks, pipeline, chunks, layers, micro_batches) in
        [(2, 2, 2, 4, 4), (2, 2, 3, 7, 2), (3, 3, 2, 6, 3), (4, 2, 2, 5, 4), (4, 4, 2, 8, 4)]
    {
        let schedule = PipelineSchedule::Interleaved(chunks);
        let shape = Shape { ranks, schedule, stage: ranks as u8 % 3, ..Shape::of(pipeline, micro_batches) };
        let setting = Setting { layers, ..shape.setting() };
        shape.follows(&setting, &Composed::new(), &Composed::new());
    }
}

/// The last global batch of an epoch has two rows, for three pipelines.
#[test]
fn pipelines_without_a_sample_in_the_last_step_take_part() {
    for stage in 0..=2 {
        let shape = Shape { ranks: 6, stage, ..Shape::of(2, 1) };
        let setting = Setting { rows: 20, ..shape.setting() };
        shape.follows(&setting, &Composed::new(), &Composed::new());
    }
}

#[test]
fn blocks_are_divided_under_each_technique() {
    let none = Composed::new;
    let learned: [Composed<Gpt>; 6] = [
        none().with(Lora::rank(2).alpha(4.0)),
        // The first rank has no factors.
        none()
            .with(Lora::rank(2).on(["blocks.2.*.output.weight"]).also(["positions"]))
            .with(Clip::norm(0.05)),
        none().with(Clip::norm(0.05)),
        none().with(Ema::new(0.9)),
        none().with(Freeze::paths(["tokens"])).with(Clip::norm(0.05)),
        // The first rank has nothing to train but what each has.
        none().with(Freeze::paths(["blocks.0", "blocks.1"])).with(Clip::norm(0.05)),
    ];
    let executed: [Composed<Gpt>; 3] = [
        none().with(Recompute::every_block()),
        none().with(Recompute::every_block()).with(Offload::optimizer()),
        none().with(Offload::optimizer().each_update()),
    ];
    for (stage, tensor) in [(0, 1), (1, 2), (2, 1)] {
        let shape = Shape { ranks: 4, tensor, stage, ..Shape::of(2, 2) };
        let setting = Setting { steps: shape.setting().steps / 2, ..shape.setting() };
        learned.iter().for_each(|learned| shape.follows(&setting, learned, &none()));
        if tensor == 1 {
            let lora = none().with(Lora::rank(2).dora().dropout(0.2));
            shape.follows(&setting, &lora, &none().with(Recompute::every_block()));
        }
        executed.iter().for_each(|executed| shape.follows(&setting, &none(), executed));
    }
}

#[test]
fn blocks_are_divided_in_bf16_and_with_a_loss_scale() {
    if !has_bf16() {
        return;
    }
    for (stage, amp) in [(0, Amp::bf16()), (2, Amp::bf16()), (1, Amp::f16())] {
        let shape = Shape { ranks: 4, stage, ..Shape::of(2, 2) };
        let setting = shape.setting();
        let found = shape.run(&setting, &Composed::new().with(amp.clone()));
        let (losses, _) = apart(&found, &setting.run(1, 1, amp));
        assert!(losses < 1e-2, "{losses:e}");
    }
}

/// All ranks of a pipeline evaluate the whole model, and one of them counts.
#[test]
fn evaluations_count_the_samples_of_a_pipeline_once() {
    for (tensor, context) in [(1, 1), (2, 1), (1, 2)] {
        let shape = Shape { ranks: 4 * tensor * context, tensor, context, stage: 1, ..Shape::of(2, 2) };
        let setting = Setting { evaluated: true, ..shape.setting() };
        let [found, alone] = [shape.run(&setting, &Composed::new()), setting.alone()];
        for (found, expected) in found.steps.iter().zip(&alone.steps) {
            assert_eq!((found.items, found.tokens), (expected.items, expected.tokens));
            assert!((found.gradient_norm - expected.gradient_norm).abs() < 1e-5 * expected.gradient_norm);
        }
        let perplexity = |run: &Outcome| run.report.valid_scores["perplexity"];
        let losses = [&found, &alone].map(|run| run.report.valid_loss.unwrap());
        for [found, expected] in [losses, [&found, &alone].map(perplexity)] {
            assert!((found - expected).abs() < 1e-5 * expected, "{found} {expected}");
        }
    }
}

/// A checkpoint is one of the model: a pipeline goes on from any other mesh, and any other from a pipeline.
#[test]
fn a_run_resumes_with_other_stages() {
    let folder = tempfile::tempdir().unwrap();
    let way = |steps| Way {
        global: 12,
        steps,
        schedule: Schedule::constant(2e-3),
        checkpoints: Checkpoints::every(4),
        ..Way::on(1, 1)
    };
    let train = |way: Way, [ranks, pipeline, tensor]: [usize; 3], stage: u8, to: &str| {
        let mesh = Mesh::new().pipeline(pipeline).tensor(tensor);
        let strategies =
            Composed::new().with(mesh).with(Zero::stage(stage).replicate_below(16)).with(accumulate(2));
        let way = Way { ranks, per_batch: pipeline * tensor, micro_batches: 2, ..way };
        way.train(&folder.path().join(to), strategies).unwrap()
    };
    let meshes = [[1, 1, 1], [2, 2, 1], [3, 3, 1], [4, 2, 1], [4, 2, 2], [2, 1, 2], [2, 1, 1]];
    let whole = train(way(8), [1, 1, 1], 0, "whole");
    for (number, mesh) in meshes.into_iter().enumerate() {
        let first = format!("{number}");
        train(way(4), mesh, number as u8 % 3, &first);
        for (onto, then) in meshes.into_iter().enumerate() {
            let from = Resume::Path(saved(&folder.path().join(&first), 4));
            let stage = (number + onto) as u8 % 3;
            let part = train(way(8).from(from), then, stage, &format!("{number}-{onto}"));
            let apart = difference(&part.parameters, &whole.parameters);
            assert!(apart < 1e-5, "{mesh:?} to {then:?}: {apart}");
        }
    }
}

/// What each rank reports of updates on 4 rows of 8 tokens, in two micro-batches.
fn reported(ranks: usize, mesh: Mesh) -> Vec<RankReport> {
    let rows = Rows((0..8).map(|row| (0..9).map(|at| ((row + at) % 10) as u32).collect()).collect());
    let trainer =
        Trainer::new().over(World::threads(ranks)).with(mesh).with(Zero::stage(0)).with(accumulate(2));
    let (model, data) = (gpt(0.0, &device().autodiff()), Data::new(rows).micro_batch(2));
    let trained = trainer.steps(2).fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
    trained.report.ranks.clone()
}

/// The first and the last stage send the states of a micro-batch once, forward or backward, and the others twice. What is in
/// no block is summed once.
#[test]
fn ranks_send_states_and_their_gradients_and_hold_their_own_blocks() {
    let elements = |report: &RankReport, kind| report.per_step.get(&kind).map_or(0.0, |step| step.elements);
    let whole = &reported(2, Mesh::new())[0];
    let found = reported(3, Mesh::new().pipeline(3));
    // 4 rows of 8 tokens with 16 numbers, in two micro-batches.
    let states = (4 * 8 * 16) as f64;
    let sent: Vec<_> = found.iter().map(|report| elements(report, Collective::Send)).collect();
    assert_eq!(sent, [states, 2.0 * states, states]);
    // Embeddings of 11 tokens and 9 positions, and a norm. The first rank has gradients of the embeddings, and the last one of the
    // tied tokens and of the norm; each sends the others their chunks, and all send the chunks that they have summed to two others.
    let to_sum = (176 - 59) + (144 - 48) + (176 - 58) + 2 * (16 - 4);
    let summed: f64 = found.iter().map(|report| elements(report, Collective::AllReduce)).sum();
    assert_eq!(summed, f64::from(to_sum + 2 * (176 + 144 + 2 * 16)));
    if !is_cpu() {
        return; // Elsewhere Burn does not expose storages, so views look like copies.
    }
    // Of three blocks of 16 x 48 + 16 x 16 + 2 x 16 x 64 weights, 48 + 16 + 64 + 16 biases and two norms, each rank has one.
    let block = 16 * 48 + 16 * 16 + 2 * 16 * 64 + 48 + 16 + 64 + 16 + 2 * 2 * 16;
    // Gradients of what it has not computed come with the sum.
    for (report, not_computed) in found.iter().zip([2 * 16, 176 + 144 + 2 * 16, 144]) {
        assert_eq!(report.master_bytes, whole.master_bytes - 2 * block * 4);
        assert_eq!(report.optimizer_bytes, whole.optimizer_bytes - 4 * block * 4);
        assert_eq!(report.gradient_bytes, whole.gradient_bytes - (2 * block + not_computed) * 4);
    }
}

/// The table of 400 tokens has as many numbers as two blocks, and the last stage multiplies by it.
#[test]
fn the_stage_that_computes_the_logits_has_fewer_blocks() {
    let shape = GptConfig { layers: 4, heads: 2, width: 16, dropout: 0.0, bias: true, tied: true };
    let model = shape.init(400, 9, &device().autodiff());
    let trainer = in_two_stages(Zero::stage(0)).with(accumulate(2));
    let data = Data::new(Rows::ragged(8)).micro_batch(2);
    let trained = trainer.fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
    let held: Vec<_> = trained.report.ranks.iter().map(|rank| rank.master_bytes).collect();
    let block = 16 * 48 + 16 * 16 + 2 * 16 * 64 + 48 + 16 + 64 + 16 + 2 * 2 * 16;
    // Three blocks, and one.
    assert_eq!(held[0] - held[1], 2 * block * 4);
}

/// A model of four blocks of the same parameters, of which the first one takes far longer than the others.
#[derive(Module, Debug)]
struct Uneven {
    inner: Bigram,
    blocks: Vec<burn::nn::Linear>,
}

impl Objective<TokenBatch> for Uneven {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let (losses, mask) = self.inner.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let start: Tensor<3> = (losses * mask).unsqueeze_dim(2);
        let blocks = self.blocks.iter().enumerate();
        let y = blocks.fold(start, |x, (at, block)| {
            pass.segment(block, x, move |block: &burn::nn::Linear, x: Tensor<3>, _: &Pass| {
                if at == 0 {
                    std::thread::sleep(Duration::from_millis(300));
                }
                block.forward(x)
            })
        });
        Loss { sum: y.sum().reshape([1]), items: batch.items() }
    }
}

#[test]
fn stages_that_take_the_same_time_have_other_blocks_than_those_of_the_same_size() {
    let device = device().autodiff();
    let held = |mesh: Mesh| {
        let blocks = (0..4).map(|_| burn::nn::LinearConfig::new(1, 1).init(&device)).collect();
        let model = Uneven { inner: Bigram::new(&device), blocks };
        let trainer = Trainer::new().over(World::threads(2)).with(Zero::stage(0)).with(mesh.pipeline(2));
        let data = Data::new(Rows::ragged(2)).micro_batch(1);
        let trainer = trainer.with(accumulate(2)).steps(1);
        let trained = trainer.fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
        let held: Vec<_> = trained.report.ranks.iter().map(|rank| rank.master_bytes as i64).collect();
        // A weight and a bias.
        (held[1] - held[0]) / 8
    };
    assert_eq!(held(Mesh::new()), 0);
    assert_eq!(held(Mesh::new().balance(StageBalance::MeasuredTime)), 2);
}

/// A model whose second block reads what its first one has read.
#[derive(Module, Debug)]
struct Skipping {
    inner: Bigram,
    blocks: Vec<burn::nn::Linear>,
    /// What is wrong with it: the order of the blocks, a block that is not run, or what a block reads.
    #[module(skip)]
    fault: usize,
}

impl Objective<TokenBatch> for Skipping {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let (losses, mask) = self.inner.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let x: Tensor<2> = losses * mask;
        let run = |block: &burn::nn::Linear, x: Tensor<3>, _: &Pass| block.forward(x);
        let start = x.clone().unsqueeze_dim::<3>(2);
        let order: &[usize] = match self.fault {
            0 => &[1, 0],
            1 => &[0],
            _ => &[0, 1],
        };
        let y = match self.fault {
            2 => {
                let run =
                    |block: &burn::nn::Linear, x: Tensor<2>, _: &Pass| block.forward(x.unsqueeze_dim::<3>(2));
                order.iter().fold(start, |_, at| pass.segment(&self.blocks[*at], x.clone(), run))
            }
            // Something stands between two blocks.
            4 => order.iter().fold(start, |x, at| pass.segment(&self.blocks[*at], x * 2.0, run)),
            3 => {
                let y = pass.segment(&self.blocks[0], start.clone(), run);
                // On the second rank, the first block has not run.
                pass.segment(&self.blocks[1], y.clone(), run) + y
            }
            _ => order.iter().fold(start, |x, at| pass.segment(&self.blocks[*at], x, run)),
        };
        Loss { sum: (y.sum() + x.sum()).reshape([1]), items: batch.items() }
    }
}

fn in_two_stages<M: Module + 'static>(zero: Zero) -> Trainer<M> {
    Trainer::new().over(World::threads(2)).with(zero).with(Mesh::new().pipeline(2)).steps(2)
}

#[test]
fn what_cannot_be_a_pipeline_is_refused() {
    let fit = |ranks: usize, mesh: Mesh, with: Composed<Gpt>| {
        let trainer =
            Trainer::new().over(World::threads(ranks)).with(Zero::stage(0)).with(mesh).with(with).steps(2);
        let data = Data::new(Rows::ragged(8)).micro_batch(2);
        trainer.fit(gpt(0.0, &device().autodiff()), adamw(), Schedule::constant(1e-3), data)
    };
    let none = Composed::new;
    let error = |ranks, mesh, with| fit(ranks, mesh, with).unwrap_err().to_string();
    let refused = |mesh: Mesh, with: Composed<Gpt>, says: &str| {
        let ranks = if says.contains("four") { 4 } else { 2 };
        let found = error(ranks, mesh, with);
        assert!(found.contains(says.trim_start_matches("four ")), "{found}");
    };
    let two = || Mesh::new().pipeline(2);
    refused(Mesh::new().pipeline(4), none(), "four `pipeline` must be at most 3 stages");
    refused(
        Mesh::new().pipeline(3),
        none(),
        "`pipeline` must be a divisor of the number of ranks, which is 2",
    );
    refused(Mesh::new().pipeline(0), none(), "`pipeline` must be at least 1");
    refused(Mesh::new().stages([1, 2]), none(), "a `pipeline` of several ranks where there are");
    refused(two().stages([1, 1]), none(), "the numbers of blocks of 2 stages, which are 3 together");
    let both = two().stages([1, 2]).balance(StageBalance::MeasuredTime);
    refused(both, none(), "no `stages` where there is a `balance`");
    refused(Mesh::new().balance(StageBalance::MeasuredTime), none(), "a `pipeline` of several ranks");
    let interleaved = two().schedule(PipelineSchedule::Interleaved(1));
    refused(interleaved, none(), "at least 2");
    refused(two(), none().with(Quantize::nf4()).with(Lora::rank(2)), "do not go with Quantize");
    refused(two(), none().with(Offload::parameters()), "does not go with `Offload(parameters)`");
    let data = || Data::new(Rows::ragged(8)).micro_batch(2);
    let model = gpt(0.0, &device().autodiff());
    let third =
        in_two_stages(Zero::stage(3)).fit(model, adamw(), Schedule::constant(1e-3), data()).unwrap_err();
    assert!(matches!(third, TrainError::Strategy(StrategyError::NotWithPipeline(_))), "{third}");
    for (fault, says) in [
        (0, "runs out of the order"),
        (1, "has not run all"),
        (2, "reads no tensor like it"),
        (3, "something else in this model reads it"),
        (4, "something else in this model reads it"),
    ] {
        let device = device().autodiff();
        let blocks = (0..2).map(|_| burn::nn::LinearConfig::new(1, 1).init(&device)).collect();
        let model = Skipping { inner: Bigram::new(&device), blocks, fault };
        let error = in_two_stages(Zero::stage(0)).fit(model, adamw(), Schedule::constant(1e-3), data());
        let error = error.unwrap_err().to_string();
        assert!(error.contains(says), "{fault}: {error}");
    }
}

/// A clock that stands still but for blocks, each of which takes one unit of time on its rank when it runs.
#[derive(Default)]
struct Clock {
    ranks: Vec<usize>,
    /// When a block was done with each micro-batch: in the forward pass, and when it ran again in the backward one.
    done: HashMap<(usize, Passing), Vec<usize>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Passing {
    Forward,
    Backward,
}

impl Clock {
    /// Runs a block on its rank as soon as this rank is idle and the block beside it has sent what this one reads.
    ///
    /// # Panics
    ///
    /// If the block beside it has not run yet.
    fn run(&mut self, block: usize, blocks: usize, passing: Passing) {
        let micro_batch = self.done.get(&(block, passing)).map_or(0, Vec::len);
        let before = match passing {
            Passing::Forward => block.checked_sub(1).map(|before| (before, Passing::Forward)),
            Passing::Backward if block + 1 < blocks => Some((block + 1, Passing::Backward)),
            Passing::Backward => Some((block, Passing::Forward)),
        };
        let sent = before.map_or(0, |before| self.done[&before][micro_batch]);
        let rank = block % self.ranks.len();
        self.ranks[rank] = self.ranks[rank].max(sent) + 1;
        self.done.entry((block, passing)).or_default().push(self.ranks[rank]);
    }
}

/// A model whose blocks take the time of a clock, forward and when they run again.
#[derive(Module, Debug)]
struct Timed {
    inner: Bigram,
    blocks: Vec<burn::nn::Linear>,
}

static CLOCK: Mutex<Option<Clock>> = Mutex::new(None);

impl Objective<TokenBatch> for Timed {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let (losses, mask) = self.inner.losses(batch.ids(pass.device()), batch.labels(pass.device()));
        let mut y: Tensor<3> = (losses * mask).unsqueeze_dim(2);
        for (i, block) in self.blocks.iter().enumerate() {
            let blocks = self.blocks.len();
            y = pass.segment(block, y, move |block: &burn::nn::Linear, x: Tensor<3>, _: &Pass| {
                // A block whose activations are not kept runs on constants first.
                let runs_again = block.weight.val().is_require_grad();
                let passing = if runs_again { Passing::Backward } else { Passing::Forward };
                CLOCK.lock().unwrap().as_mut().unwrap().run(i, blocks, passing);
                block.forward(x)
            });
        }
        Loss { sum: y.sum().reshape([1]), items: batch.items() }
    }
}

/// The share of a step in which a rank waits is (p-1)/(v m + p-1), exactly (Narayanan et al., 2021, section 2.2).
#[test]
fn ranks_wait_as_long_as_the_bubble() {
    for (ranks, chunks, micro_batches) in [(2, 1, 4), (3, 1, 3), (3, 1, 5), (2, 2, 2), (2, 3, 4)] {
        let schedule =
            if chunks > 1 { PipelineSchedule::Interleaved(chunks) } else { PipelineSchedule::default() };
        let device = device().autodiff();
        let blocks = (0..ranks * chunks).map(|_| burn::nn::LinearConfig::new(1, 1).init(&device)).collect();
        let model = Timed { inner: Bigram::new(&device), blocks };
        *CLOCK.lock().unwrap() = Some(Clock { ranks: vec![0; ranks], ..Clock::default() });
        let trainer = Trainer::new()
            .over(World::threads(ranks))
            .with(Mesh::new().pipeline(ranks).schedule(schedule))
            .with(Zero::stage(0))
            .with(accumulate(micro_batches))
            .with(Recompute::every_block());
        let data = Data::new(Rows::ragged(2 * micro_batches)).micro_batch(2);
        trainer.steps(1).fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
        let clock = CLOCK.lock().unwrap().take().unwrap();
        let computed = 2 * chunks * micro_batches;
        let step = clock.ranks.into_iter().max().unwrap();
        assert_eq!(clock.done.values().map(Vec::len).sum::<usize>(), ranks * computed);
        // Of a step of 2 (v m + p - 1) units, 2 (p - 1).
        assert_eq!(step - computed, 2 * (ranks - 1), "{ranks} ranks, {chunks} chunks");
    }
}
