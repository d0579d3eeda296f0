//! Gradient accumulation: several micro-batches make one update.

use burn::module::Module;
use burn::tensor::FloatDType;

use crate::dtypes::require_dtype;
use serde::{Deserialize, Serialize};

use crate::effects::Sums;
use crate::{
    Effects, Float, Grads, Outcome, SettingError, Setup, Stage, Stages, Strategy, StrategyError,
    StrategyRecipe,
};

/// Sums the gradients of the `n` micro-batches of an optimizer step in f32, and passes the sum on with the last one.
///
/// The trainer divides each micro-batch's loss by the supervised items of the whole global batch, which it knows before
/// the first forward pass. The sum is therefore the gradient of one batch of all samples, even if the micro-batches
/// differ in length. The last step of an epoch may have fewer micro-batches; their losses are divided by its own number of items.
///
/// Holds 4Ψ bytes for Ψ parameters between the micro-batches of a step, and nothing between steps.
///
/// If micro-batches are cut by tokens on several ranks, the ranks' parts of a global batch differ in length, so a step
/// may have more than `n` micro-batches. All of them are summed. Several ranks with micro-batches cut by tokens need at
/// least `Accumulate(1)`.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Accumulate, Composition, Setup};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut setup = Setup::new(&model, &device);
/// Accumulate(16).start(&mut setup)?;
/// assert_eq!(setup.order().micro_batches(), 16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Accumulate(
    /// Micro-batches per optimizer step, at least 1.
    pub usize,
);

impl Accumulate {
    /// Holds and returns the sum in this dtype instead of f32.
    ///
    /// `Accumulate(16).held_in(FloatDType::BF16)` holds 2Ψ bytes. Each addition is still computed in f32, but its
    /// result is rounded: a bf16 sum loses any term below 2^-9 of it, so many small micro-batches contribute less than
    /// they should.
    pub fn held_in(self, dtype: FloatDType) -> AccumulateIn {
        AccumulateIn { micro_batches: self.0, dtype }
    }
}

/// [`Accumulate`], with the sum in another dtype: see [`Accumulate::held_in`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "(usize, Float)", into = "(usize, Float)")]
pub struct AccumulateIn {
    micro_batches: usize,
    dtype: FloatDType,
}

/// Far above any use, so that a mistyped number is reported instead of tried.
const MOST: usize = 1_000_000_000;

/// The live state of [`Accumulate`]: the sum of the step so far.
#[derive(Debug)]
struct Accumulating {
    sum: Option<Grads>,
    /// The sum's size in bytes.
    held: usize,
    dtype: FloatDType,
}

impl From<(usize, Float)> for AccumulateIn {
    fn from((micro_batches, dtype): (usize, Float)) -> Self {
        Accumulate(micro_batches).held_in(dtype.into())
    }
}

impl From<AccumulateIn> for (usize, Float) {
    fn from(AccumulateIn { micro_batches, dtype }: AccumulateIn) -> Self {
        (micro_batches, dtype.into())
    }
}

impl StrategyRecipe for Accumulate {
    fn effects(&self) -> Effects {
        self.clone().held_in(FloatDType::F32).effects()
    }

    fn check(&self) -> Result<(), SettingError> {
        self.clone().held_in(FloatDType::F32).check()
    }
}

impl<M: Module> Strategy<M> for Accumulate {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        self.clone().held_in(FloatDType::F32).stages(setup)
    }
}

impl StrategyRecipe for AccumulateIn {
    fn effects(&self) -> Effects {
        let Self { micro_batches, dtype } = *self;
        Effects { sums: Some(Sums { micro_batches, dtype }), ..Effects::none("Accumulate") }
    }

    fn check(&self) -> Result<(), SettingError> {
        let possible = (1..=MOST).contains(&self.micro_batches);
        SettingError::require(possible, "", "at least 1 and at most a billion", self.micro_batches)
    }
}

impl<M: Module> Strategy<M> for AccumulateIn {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        require_dtype("Accumulate", setup.device(), self.dtype)?;
        Ok(Stages::of(Accumulating { sum: None, held: 0, dtype: self.dtype }))
    }
}

impl<M: Module> Stage<M> for Accumulating {
    fn name(&self) -> &'static str {
        "Accumulate"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if let Some(sum) = self.sum.take() {
            grads.add(master, sum, self.dtype);
        }
        match grads.closes() {
            true => {
                self.held = 0;
                Ok(Outcome::Apply(grads))
            }
            false => {
                let sum = grads.in_dtype(master, self.dtype);
                self.held = sum.bytes(master);
                self.sum = Some(sum);
                Ok(Outcome::Hold)
            }
        }
    }

    fn held_bytes(&self) -> usize {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{DType, Device, FloatDType, Tensor};

    use super::*;
    use crate::{Clip, Composed, Composition, SkipReason, testing};

    fn model() -> (Linear, Device) {
        let device = testing::device().autodiff();
        (LinearConfig::new(4, 3).with_bias(false).init(&device), device)
    }

    fn constant(model: &Linear, value: f64, dtype: FloatDType, closes: bool) -> Grads {
        let mut params = GradientsParams::new();
        let grad = Tensor::<2>::full([4, 3], value, &testing::device()).cast(dtype);
        params.register(model.weight.id, grad);
        Grads::new(params, closes)
    }

    fn accumulating(dtype: FloatDType) -> Accumulating {
        Accumulating { sum: None, held: 0, dtype }
    }

    fn held(stage: &Accumulating) -> usize {
        Stage::<Linear>::held_bytes(stage)
    }

    #[test]
    fn a_step_is_held_and_then_summed() {
        let (model, _) = model();
        let mut stage = accumulating(FloatDType::F32);
        for closes in [false, false] {
            let grads = constant(&model, 1.0, FloatDType::F32, closes);
            assert!(matches!(stage.collect(&model, grads), Ok(Outcome::Hold)));
            assert_eq!(held(&stage), 4 * 12);
        }
        let last = constant(&model, 1.5, FloatDType::F32, true);
        let Ok(Outcome::Apply(grads)) = stage.collect(&model, last) else { panic!("the step ends") };
        let sum = grads.into_params().get::<2>(model.weight.id).unwrap();
        assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [3.5; 12]);
        assert!(stage.sum.is_none());
        assert_eq!(held(&stage), 0);
    }

    #[test]
    fn small_gradients_in_bf16_are_not_lost_in_the_sum() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _) = model();
        let mut stage = accumulating(FloatDType::F32);
        let mut outcome = Outcome::Hold;
        // 1 + 256 * 2^-9 is 1.5, but in bf16 1 + 2^-9 is 1.
        for i in 0..257 {
            let value = if i == 0 { 1.0 } else { 1.0 / 512.0 };
            let grads = constant(&model, value, FloatDType::BF16, i == 256);
            outcome = stage.collect(&model, grads).unwrap();
        }
        let Outcome::Apply(grads) = outcome else { panic!("the step ends") };
        let sum = grads.into_params().get::<2>(model.weight.id).unwrap();
        assert_eq!(sum.dtype(), DType::F32);
        assert_eq!(sum.into_data().try_to_vec::<f32>().unwrap(), [1.5; 12]);
    }

    #[test]
    fn a_sum_that_is_held_in_bf16_takes_half_and_loses_what_is_small() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _) = model();
        let mut stage = accumulating(FloatDType::BF16);
        for (value, closes) in [(1.0, false), (1.0 / 512.0, false)] {
            let grads = constant(&model, value, FloatDType::F32, closes);
            assert!(matches!(stage.collect(&model, grads), Ok(Outcome::Hold)));
            assert_eq!(held(&stage), 2 * 12);
        }
        let last = constant(&model, 0.5, FloatDType::F32, true);
        let Ok(Outcome::Apply(grads)) = stage.collect(&model, last) else { panic!("the step ends") };
        let update = grads.for_update(&model, &HashSet::new()).get::<2>(model.weight.id).unwrap();
        assert_eq!(update.dtype(), DType::F32, "the optimizer is given the parameter's dtype");
        assert_eq!(update.into_data().try_to_vec::<f32>().unwrap(), [1.5; 12]);
    }

    #[test]
    fn one_skipped_micro_batch_skips_the_step_and_no_later_one() {
        let (model, _) = model();
        let mut stage = accumulating(FloatDType::F32);
        let skipped = Grads::skipped(SkipReason::NonFinite, false);
        assert!(matches!(stage.collect(&model, skipped), Ok(Outcome::Hold)));
        for expected in [Some(SkipReason::NonFinite), None] {
            let last = constant(&model, 1.0, FloatDType::F32, true);
            let Ok(Outcome::Apply(grads)) = stage.collect(&model, last) else { panic!("the step ends") };
            assert_eq!(grads.skip(), expected.as_ref());
        }
    }

    #[test]
    fn impossible_settings_and_orders_are_refused() {
        if !testing::has_bf16() {
            return;
        }
        let (model, device) = model();
        let start = |error: Option<StrategyError>| error.unwrap().to_string();
        let mut setup = Setup::new(&model, &device);
        let zero = start(Accumulate(0).start(&mut setup).err());
        assert!(zero.contains("at least 1 and at most a billion, found 0"), "{zero}");
        let dtype = Accumulate(2).held_in(FloatDType::Flex32);
        let dtype = start(dtype.start(&mut Setup::new(&model, &device)).err());
        assert!(dtype.contains("it can in f64, f32, bf16, f16"), "{dtype}");
        let twice = Composed::new().with(Accumulate(2)).with(Accumulate(2).held_in(FloatDType::BF16));
        let twice = start(twice.start(&mut Setup::new(&model, &device)).err());
        assert!(twice.contains("twice"), "{twice}");
        let clipped = Composed::new().with(Clip::value(1.0)).with(Accumulate(2));
        let stages = clipped.start(&mut Setup::new(&model, &device)).unwrap();
        assert_eq!(format!("{stages:?}"), r#"["Accumulate", "Clip"]"#);
    }
}
