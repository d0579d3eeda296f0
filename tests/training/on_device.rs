//! A GPT trained on the device of the tests, beside the same run on the CPU: each loss, the norm of each update's
//! gradients, and the parameters and their average at the end.
//!
//! | precision | tolerance |
//! |---|---|
//! | f32 | 1e-5; 1e-4 if CUDA may round the operands of products to TF32 |
//! | bf16, f16 | 2e-3, and twice as far as rounding takes the CPU's run from its run in f32 |
//! | fp8 | the same, and four times as far: where bf16 differs in its last bit, a number in 8 bits may differ by a step |
//!
//! On the CPU, both runs are equal to the bit.

use std::sync::mpsc::channel;

use crate::support::many::{accumulate, furthest, optimizer};
use crate::support::{Rows, device, difference, gpt, is_cpu, parameters};
use burn::tensor::{Device, FloatDType};
use firebrick::{Amp, Clip, Data, Ema, LossScale, Recompute, Schedule, StepNumbers, Trainer, World, Zero};

/// Past the ends of two epochs of 21 rows, each with a last global batch of 5 rows.
const STEPS: u64 = 20;
const ROWS: usize = 21;
const GLOBAL: usize = 8;

/// What changes how a step is computed.
#[derive(Clone, Debug)]
struct Case {
    amp: Option<Amp>,
    recompute: bool,
    micro_batches: usize,
    clip: bool,
    ema: bool,
    /// The stage of `Zero`, on two ranks.
    stage: Option<u8>,
}

/// The results of a run.
#[derive(PartialEq)]
struct Found {
    losses: Vec<f64>,
    norms: Vec<f64>,
    parameters: Vec<f32>,
    averaged: Option<Vec<f32>>,
}

impl Case {
    const PLAIN: Self =
        Self { amp: None, recompute: false, micro_batches: 1, clip: false, ema: false, stage: None };

    fn train(&self, device: &Device) -> Found {
        let ranks = if self.stage.is_some() { 2 } else { 1 };
        let data = Data::new(Rows::ragged(ROWS)).micro_batch(GLOBAL / ranks / self.micro_batches);
        let (sender, steps) = channel();
        let trained = Trainer::new()
            .over(World::threads(ranks))
            .seed(11)
            .with(self.recompute.then(Recompute::every_block))
            .with(self.stage.map(|stage| Zero::stage(stage).replicate_below(20)))
            .with(self.amp.clone())
            .with(accumulate(self.micro_batches))
            .with(self.clip.then(|| Clip::norm(0.3)))
            .with(self.ema.then(|| Ema::new(0.9)))
            .steps(STEPS)
            .observe(move |step: &StepNumbers| sender.send(step.clone()).unwrap())
            .fit(gpt(0.1, &device.clone().autodiff()), optimizer(), Schedule::constant(4e-3), data)
            .unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let steps: Vec<_> = steps.into_iter().collect();
        Found {
            losses: steps.iter().map(|step| step.loss).collect(),
            norms: steps.iter().map(|step| step.gradient_norm).collect(),
            parameters: parameters(&trained.model),
            averaged: trained.averaged.as_ref().map(parameters),
        }
    }

    /// Returns how far rounding alone takes a run on the CPU from its run in f32. Norms of few and small gradients differ most.
    ///
    /// Where a step is sensitive, one way to round may hit it and another miss it, so two ways count: with each global
    /// batch as it is, and as two micro-batches.
    fn rounding(&self) -> [f64; 4] {
        let [whole, halves] = [1, 2].map(|micro_batches| {
            let rounded = Self { micro_batches, ..self.clone() };
            let in_f32 = Self { amp: None, ..rounded.clone() };
            rounded.train(&Device::flex()).apart(&in_f32.train(&Device::flex()))
        });
        std::array::from_fn(|at| whole[at].max(halves[at]))
    }

    /// Asserts that a run on the device follows the one on the CPU.
    fn check(&self, tolerance: f64) {
        let [found, expected] = [device(), Device::flex()].map(|device| self.train(&device));
        assert_eq!(expected.losses.len() as u64, STEPS);
        assert!(expected.losses[STEPS as usize - 1] < expected.losses[0], "{self:?} learns");
        if is_cpu() {
            assert!(found == expected, "{self:?}");
            return;
        }
        let rounding = if self.amp.is_some() { self.rounding() } else { [0.0; 4] };
        let apart = found.apart(&expected);
        let listed = |of: [f64; 4]| of.map(|x| format!("{x:.1e}")).join(", ");
        let differences = format!(
            "losses, norms, parameters and averages differ by {}; by rounding alone by {}: {self:?}",
            listed(apart),
            listed(rounding)
        );
        println!("{differences}");
        let factor = if self.amp == Some(Amp::fp8()) { 4.0 } else { 2.0 };
        let near = |(apart, rounding): (&f64, &f64)| *apart <= tolerance + factor * rounding;
        assert!(apart.iter().zip(&rounding).all(near), "{differences}");
    }
}

impl Found {
    /// Returns how far losses, norms, parameters and averages are from another run's: relative to each number, or to the
    /// largest parameter.
    fn apart(&self, other: &Self) -> [f64; 4] {
        let averages = match (&self.averaged, &other.averaged) {
            (Some(own), Some(other)) => difference(own, other),
            (own, other) => {
                assert_eq!(own.is_some(), other.is_some());
                0.0
            }
        };
        [
            furthest(&self.losses, &other.losses),
            furthest(&self.norms, &other.norms),
            difference(&self.parameters, &other.parameters),
            averages,
        ]
    }
}

/// Runs on one rank: each strategy alone, and all together.
fn on_one_rank(amp: Option<Amp>, tolerance: f64) {
    let plain = Case { amp, ..Case::PLAIN };
    let all = Case { recompute: true, micro_batches: 2, clip: true, ema: true, ..plain.clone() };
    let cases = [
        Case { recompute: true, ..plain.clone() },
        Case { micro_batches: 2, ..plain.clone() },
        Case { clip: true, ..plain.clone() },
        Case { ema: true, ..plain.clone() },
        plain,
        all,
    ];
    cases.iter().for_each(|case| case.check(tolerance));
}

/// Runs on two ranks: each stage alone, and with all other strategies.
fn on_two_ranks(amp: Option<Amp>, tolerance: f64) {
    for stage in 1..=3 {
        let alone = Case { amp: amp.clone(), stage: Some(stage), ..Case::PLAIN };
        let all = Case { recompute: stage < 3, micro_batches: 2, clip: true, ema: true, ..alone.clone() };
        alone.check(tolerance);
        all.check(tolerance);
    }
}

/// CUDA's tuning may take kernels that round the operands of f32 products to TF32. The variable, which NVIDIA's libraries
/// read too, says that nothing does.
fn in_f32() -> f64 {
    let is_cuda = std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cuda"));
    let tf32 = std::env::var("NVIDIA_TF32_OVERRIDE").map_or(true, |value| value != "0");
    if is_cuda && tf32 { 1e-4 } else { 1e-5 }
}

const IN_HALF: f64 = 2e-3;

/// Mixed precision, if the device computes in it.
fn half(dtype: FloatDType) -> Option<Amp> {
    device().supports_dtype(dtype).then(|| match dtype {
        FloatDType::BF16 => Amp::bf16(),
        // A scale that no step overflows: the devices need not agree on the first ones.
        _ => Amp::f16().scaled_by(LossScale::constant(64.0)),
    })
}

#[test]
fn in_f32_on_one_rank() {
    on_one_rank(None, in_f32());
}

#[test]
fn in_f32_on_two_ranks() {
    on_two_ranks(None, in_f32());
}

#[test]
fn in_bf16_on_one_rank() {
    if let Some(amp) = half(FloatDType::BF16) {
        on_one_rank(Some(amp), IN_HALF);
    }
}

#[test]
fn in_bf16_on_two_ranks() {
    if let Some(amp) = half(FloatDType::BF16) {
        on_two_ranks(Some(amp), IN_HALF);
    }
}

#[test]
fn in_fp8_on_one_rank() {
    if half(FloatDType::BF16).is_some() {
        on_one_rank(Some(Amp::fp8()), IN_HALF);
    }
}

#[test]
fn in_fp8_on_two_ranks() {
    if half(FloatDType::BF16).is_some() {
        on_two_ranks(Some(Amp::fp8()), IN_HALF);
    }
}

#[test]
fn in_f16_on_one_rank() {
    if let Some(amp) = half(FloatDType::F16) {
        on_one_rank(Some(amp), IN_HALF);
    }
}

#[test]
fn in_f16_on_two_ranks() {
    if let Some(amp) = half(FloatDType::F16) {
        on_two_ranks(Some(amp), IN_HALF);
    }
}
