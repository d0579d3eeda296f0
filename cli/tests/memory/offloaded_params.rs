//! The memory of a run whose parameters of blocks are on a disk.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::alone;
use crate::support::*;
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::memory::{Account, Usage, reset_peak};
use firebrick::optim::Sgd;
use firebrick::strategies::{Effects, Grads, Outcome, Setup, Stage, Stages, StrategyError, StrategyRecipe};
use firebrick::{Amp, Checkpoints, Data, Ema, Lora, Offload, Schedule, StepNumbers, Strategy, Trainer, Zero};
use firebrick_models::{Gpt, GptConfig};

const LENGTH: usize = 8;
const WIDTH: usize = 128;
/// Bytes of the largest parameter, the first matrix of the feed-forward layers.
const BUCKET: usize = WIDTH * 4 * WIDTH * 4;
/// Bytes of the matrices of a block.
const BLOCK: usize = 12 * WIDTH * WIDTH * 4;

/// Looks at what is in use after each backward pass, before the update.
#[derive(Clone, Debug, Default)]
struct Look(Arc<Mutex<Vec<usize>>>);

impl StrategyRecipe for Look {
    fn effects(&self) -> Effects {
        Effects::none("Look")
    }
}

impl<M: Module> Strategy<M> for Look {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl<M: Module> Stage<M> for Look {
    fn name(&self) -> &'static str {
        "Look"
    }

    fn collect(&mut self, _: &M, grads: Grads) -> Result<Outcome, StrategyError> {
        self.0.lock().unwrap().push(Usage::of_process().unwrap().live);
        Ok(Outcome::Apply(grads))
    }
}

/// Makes a model's parameters lazy, so that the run creates them.
struct Later;

impl ModuleMapper for Later {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        let of_value = shape.clone();
        let value = move |device: &Device, requires_grad: bool| {
            Tensor::<D>::full(of_value, 0.01, device).set_require_grad(requires_grad)
        };
        Param::uninitialized(id, value, device, true, shape)
    }
}

/// Trains a model whose parameters are created in the run. Returns what is in use when the numbers of a step are known, and the most since
/// those of the step before; the first time, since the start of the run.
fn used(trainer: Trainer<Gpt>, layers: usize) -> Vec<Usage> {
    let config = GptConfig { layers, heads: 4, width: WIDTH, dropout: 0.0, bias: true, tied: true };
    let model = config.init(VOCABULARY, LENGTH, &device().autodiff()).map(&mut Later);
    let account = Account::new();
    let _on_it = account.enter();
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let rows = Rows((0..8).map(row).collect());
    let data = Data::new(rows.clone()).valid(rows).micro_batch(1);
    let (sender, seen) = channel();
    let watch = move |_: &StepNumbers| {
        sender.send(Usage::of_process().unwrap()).unwrap();
        reset_peak();
    };
    let (trainer, sgd) = (trainer.steps(4).observe(watch), Sgd::new().init().unwrap());
    trainer.fit(model, sgd, Schedule::constant(1e-3), data).unwrap();
    // The last numbers are known at the end, where the model comes together.
    let seen: Vec<_> = seen.into_iter().collect();
    seen[..seen.len() - 1].to_vec()
}

/// Returns the bytes of blocks that are in memory at most: at the peak, and when the numbers of a step are known. What else is in
/// memory is as much as in a run with all blocks in memory.
fn blocks_in_memory(layers: usize, with: impl Fn(Offload) -> Trainer<Gpt>) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    let on_disk = || used(with(Offload::parameters().on(folder.path()).bucket_bytes(BUCKET)), layers);
    // The first run of a process makes allocations that last for the whole process.
    on_disk();
    let (memory, disk) = (used(with(Offload::parameters()), layers), on_disk());
    let most = |seen: &[Usage], of: fn(&Usage) -> usize| seen.iter().map(of).max().unwrap() as f64;
    let of: [fn(&Usage) -> usize; 2] = [|usage| usage.peak, |usage| usage.live];
    let blocks = (layers * BLOCK) as f64;
    of.map(|of| (most(&disk, of) - (most(&memory, of) - blocks)) / blocks)
}

/// A run whose matrices are frozen has an eighth of their bytes in memory, from its start on.
#[test]
fn frozen_blocks_are_in_memory_a_few_at_a_time() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let cases = [
        (None, None),
        // The average has the trained parameters alone.
        (None, Some(Ema::new(0.9))),
        // The model is distributed parameter by parameter.
        (Some(Zero::stage(0)), None),
        (Some(Zero::stage(3)), None),
    ];
    for (zero, average) in cases {
        let name = format!("{zero:?}, {average:?}");
        let with = |offload| {
            Trainer::new().with(Lora::rank(1)).with(zero.clone()).with(offload).with(average.clone())
        };
        let [peak, between] = blocks_in_memory(64, with);
        let name = format!("{name}: {peak} of the blocks at the peak, {between} between steps");
        assert!(peak < 0.125 && between < 0.1, "{name}");
    }
}

/// Gradients are in memory all the same; an update has a few buckets of blocks in memory beside them.
#[test]
fn trained_blocks_are_in_memory_a_few_buckets_at_a_time() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let few = |name: &str, [peak, between]: [f64; 2]| {
        let found = format!("{name}: {peak} of the blocks at the peak, {between} between steps");
        assert!(peak < 0.2 && between < 0.1, "{found}");
    };
    few("alone", blocks_in_memory(24, |offload| Trainer::new().with(offload)));
    // The model is distributed parameter by parameter, and not published as a whole.
    for stage in [0, 3] {
        let sharded = |offload| Trainer::new().with(Zero::stage(stage)).with(offload);
        few(&format!("stage {stage}"), blocks_in_memory(24, sharded));
    }
    let summed = |offload| Trainer::new().with(offload).with(Amp::f32()).with(Zero::stage(0));
    few("before stage 0", blocks_in_memory(24, summed));
}

/// An evaluation in another dtype reads all parameters. They leave memory before training goes on.
#[test]
fn what_reads_all_blocks_leaves_none_in_memory() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    const LAYERS: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let after_passes = |offload: Offload| {
        let (look, amp) = (Look::default(), Amp::f32().evaluate_in(FloatDType::F16));
        let trainer = Trainer::new().with(Lora::rank(1)).with(offload).with(amp).with(look.clone());
        let evaluation = used(trainer.evaluate_every(1), LAYERS)[1].peak;
        let passes = look.0.lock().unwrap().iter().copied().max().unwrap();
        (evaluation, passes)
    };
    let on_disk = || after_passes(Offload::parameters().on(folder.path()).bucket_bytes(BUCKET));
    on_disk();
    let ((_, memory), (evaluation, disk)) = (after_passes(Offload::parameters()), on_disk());
    let blocks = LAYERS * BLOCK;
    assert!(evaluation > blocks, "{evaluation} bytes at the peak of an evaluation, {blocks} of blocks");
    assert!(disk + blocks * 8 / 10 < memory, "{disk} and {memory} bytes after a pass, {blocks} of blocks");
}

/// A save reads the parameters tensor by tensor, in parallel with training, and gathers 4 MiB for each file.
#[test]
fn a_checkpoint_is_written_without_the_blocks_in_memory() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // No account counts a device's pool.
    }
    let output = tempfile::tempdir().unwrap();
    let [peak, _] = blocks_in_memory(64, |offload| {
        let trainer = Trainer::new().with(Lora::rank(1)).with(offload).output(output.path().join("run"));
        trainer.checkpoints(Checkpoints::every(1))
    });
    let gathered = (8 << 20) as f64 / (64 * BLOCK) as f64;
    assert!(peak < 0.125 + gathered, "{peak} of the blocks at the peak, with {gathered} for files");
}
