//! Every combination of precision, accumulation, recompute, clipping and dropout trains to the same model as a plain
//! loop.
//!
//! | row | tolerance against the plain run |
//! |---|---|
//! | f32, one micro-batch, not clipped | equal to the bit on the CPU |
//! | f32, others | 1e-6 of the largest parameter: sums run in another order |
//! | bf16 | 8 bits of mantissa, over 20 updates |
//! | f16, scaled | 11 bits of mantissa, over 20 updates |
//!
//! Each recomputed run must also equal the same run without recompute, to the bit on the CPU.

use crate::support::*;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{FloatDType, Tensor};
use firebrick::datasets::{Batch, Batches};
use firebrick::strategies::Draws;
use firebrick::{Accumulate, Amp, Clip, Data, Objective, Pass, Recompute, Schedule, StepNumbers, Trainer};

const SEED: u64 = 11;
const RATE: f64 = 2e-3;
/// Rows of a global batch. An epoch of 21 rows ends in one of 5, which with 4 micro-batches of 2 gives two full
/// ones and one of a single row.
const GLOBAL: usize = 8;
const ROWS: usize = 21;
const NORM: f64 = 0.4;

/// Updates of a run: past the end of an epoch, and few if a processor emulates the GPU.
fn steps() -> u64 {
    if is_cpu() { 20 } else { 4 }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Precision {
    F32,
    Bf16,
    F16,
}

impl Precision {
    fn amp(self) -> Option<Amp> {
        match self {
            Self::F32 => None,
            Self::Bf16 => Some(Amp::bf16()),
            Self::F16 => Some(Amp::f16()),
        }
    }

    /// Tolerance of losses and parameters against the plain run, relative to the largest.
    fn tolerance(self) -> (f64, f64) {
        match self {
            Self::F32 => (1e-6, 1e-6),
            Self::Bf16 => (1e-2, 5e-2),
            Self::F16 => (2e-3, 1e-2),
        }
    }
}

/// The optimizer of both runs. The epsilon is large, because a smaller one turns the rounding of a gradient near 0 into
/// a whole step.
fn optimizer() -> ModuleOptimizer {
    AdamWConfig::new().with_epsilon(1e-3).with_weight_decay(0.1).init()
}

struct Run {
    losses: Vec<f64>,
    parameters: Vec<f32>,
}

/// The loop that a Burn user writes.
fn plain(clip: bool, dropout: f64) -> Run {
    let device = device().autodiff();
    let (mut model, mut optimizer, rows) = (gpt(dropout, &device), optimizer(), Rows::ragged(ROWS));
    let mut losses = Vec::new();
    let mut place = (0, 0);
    for _ in 0..steps() {
        let (epoch, start) = place;
        let end = (start + GLOBAL).min(ROWS);
        let batch = rows.batch(epoch, start..end).unwrap();
        let pass = Pass::train(&device).drawing(Draws { seed: SEED, epoch, first: start as u64 });
        let items = batch.items() as f64;
        let loss = model.loss(batch, &pass).sum / items;
        let mut grads = GradientsParams::from_grads(loss.backward(), &model);
        if clip {
            clip_by_norm(&model, &mut grads, NORM);
        }
        model = optimizer.step(RATE, model, grads);
        losses.push(loss.into_scalar::<f64>());
        place = if end == ROWS { (epoch + 1, 0) } else { (epoch, end) };
    }
    Run { losses, parameters: parameters(&model) }
}

/// Clips by one norm over all parameters, computed in f64.
fn clip_by_norm<M: Module>(model: &M, grads: &mut GradientsParams, max: f64) {
    struct Each<'a, F>(&'a mut GradientsParams, F);
    impl<F: FnMut(ParamId, &[f64]) -> f64> ModuleVisitor for Each<'_, F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.0.remove::<D>(param.id) {
                let values: Vec<f64> = grad.clone().into_data().iter().collect();
                self.0.register(param.id, grad * (self.1)(param.id, &values));
            }
        }
    }
    let mut squares = 0.0;
    model.visit(&mut Each(grads, |_, values: &[f64]| {
        squares += values.iter().map(|x| x * x).sum::<f64>();
        1.0
    }));
    let factor = (max / (squares.sqrt() + 1e-6)).min(1.0);
    assert!(factor < 1.0, "the bound must have an effect");
    model.visit(&mut Each(grads, |_, _: &[f64]| factor));
}

fn trained(
    precision: Precision,
    micro_batches: usize,
    recompute: Option<Recompute>,
    clip: bool,
    dropout: f64,
) -> Run {
    let (sender, losses) = std::sync::mpsc::channel();
    let data = Data::new(Rows::ragged(ROWS)).micro_batch(GLOBAL / micro_batches);
    let trained = Trainer::new()
        .seed(SEED)
        .with(precision.amp())
        .with(recompute)
        .with(Accumulate(micro_batches))
        .with(clip.then(|| Clip::norm(NORM)))
        .steps(steps())
        .observe(move |step: &StepNumbers| sender.send(step.loss).unwrap())
        .fit(gpt(dropout, &device().autodiff()), optimizer(), Schedule::constant(RATE), data)
        .unwrap();
    assert_eq!(trained.report.skipped_steps, 0);
    Run { losses: losses.into_iter().collect(), parameters: parameters(&trained.model) }
}

/// Tests all rows of one precision and number of micro-batches.
fn follows(precision: Precision, micro_batches: usize) {
    if let Some(dtype) = [(Precision::Bf16, FloatDType::BF16), (Precision::F16, FloatDType::F16)]
        .into_iter()
        .find(|(asked, dtype)| *asked == precision && !device().supports_dtype(*dtype))
    {
        let refused = Trainer::new().with(precision.amp()).steps(1).fit(
            gpt(0.0, &device().autodiff()),
            optimizer(),
            Schedule::constant(RATE),
            Data::new(Rows::ragged(ROWS)),
        );
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("cannot compute in"), "{dtype:?}: {error}");
        return;
    }
    let on_cpu = is_cpu();
    for (clip, dropout) in [(false, 0.0), (true, 0.0), (false, 0.1), (true, 0.1)] {
        let expected = plain(clip, dropout);
        let row = |recompute: Option<Recompute>| {
            let name = format!(
                "{precision:?}, {micro_batches} micro-batches, {recompute:?}, clip {clip}, dropout {dropout}"
            );
            (name, trained(precision, micro_batches, recompute, clip, dropout))
        };
        let (name, without) = row(None);
        let (loss_tolerance, tolerance) = precision.tolerance();
        if precision == Precision::F32 && micro_batches == 1 && !clip && on_cpu {
            assert_eq!(without.losses, expected.losses, "{name}");
            assert!(without.parameters == expected.parameters, "{name}");
        }
        for (step, (found, expected)) in without.losses.iter().zip(&expected.losses).enumerate() {
            let apart = (found - expected).abs() / expected;
            assert!(apart < loss_tolerance, "{name}: at step {step} losses differ by {apart:e}");
        }
        let apart = difference(&without.parameters, &expected.parameters);
        assert!(apart < tolerance, "{name}: parameters differ by {apart:e}");
        for recompute in [Recompute::every_block(), Recompute::every(2), Recompute::elementwise()] {
            let (name, with) = row(Some(recompute));
            match on_cpu {
                true => {
                    assert_eq!(with.losses, without.losses, "{name}");
                    assert!(with.parameters == without.parameters, "{name}");
                }
                false => {
                    let apart = difference(&with.parameters, &without.parameters);
                    assert!(apart < 1e-5_f64.max(tolerance / 10.0), "{name}: parameters differ by {apart:e}");
                }
            }
        }
    }
}

#[test]
fn f32_in_one_batch() {
    follows(Precision::F32, 1);
}

#[test]
fn f32_accumulated() {
    follows(Precision::F32, 4);
}

#[test]
fn bf16_in_one_batch() {
    follows(Precision::Bf16, 1);
}

#[test]
fn bf16_accumulated() {
    follows(Precision::Bf16, 4);
}

#[test]
fn f16_in_one_batch() {
    follows(Precision::F16, 1);
}

#[test]
fn f16_accumulated() {
    follows(Precision::F16, 4);
}
