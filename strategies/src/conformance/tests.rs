use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::module::{Module, ParamId};
use burn::tensor::{FloatDType, Tensor};

use super::*;
use crate::effects::{Reduces, Sums};
use crate::{
    Amp, Clip, Composed, Composition, Effects, Ema, Freeze, GradMap, Grads, Lora, LossScale, Offload,
    Outcome, ParamMap, Recompute, SkipReason, Stage, StageState, Stages, Strategy, StrategyRecipe, Zero,
    map_params, testing,
};

fn device() -> Device {
    testing::device().autodiff()
}

fn boxed(strategy: impl Composition<Probe>) -> Composed<Probe> {
    Composed::new().with(strategy)
}

#[test]
fn built_in_strategies_obey_all_laws() {
    let zero = |stage| Zero::stage(stage).replicate_below(1);
    let in_f32 = [
        boxed(Composed::new()),
        boxed(Accumulate(4)),
        boxed(Clip::norm(0.01)),
        boxed(Clip::value(0.01)),
        boxed(Recompute::every_block()),
        boxed(Recompute::elementwise()),
        boxed(Offload::optimizer()),
        boxed(Offload::parameters()),
        boxed(Ema::new(0.9)),
        boxed(Freeze::paths(["head"])),
        boxed(Lora::rank(2).alpha(4.0).on(["blocks.*.weight"])),
        boxed(Lora::rank(2).alpha(4.0).dropout(0.25).on(["blocks.*.weight"])),
        boxed(Lora::rank(2).alpha(4.0).dora().on(["blocks.*.weight"])),
        boxed(Composed::new().with(Accumulate(4)).with(Clip::norm(0.1))),
    ];
    for strategy in in_f32.into_iter().chain((0..=3).map(|stage| boxed(zero(stage)))) {
        assert_eq!(check(&strategy, &device(), 1e-4), Ok(()), "{strategy:?}");
        assert_eq!(check_on_ranks(&strategy, &device(), 3, 1e-4), Ok(()), "{strategy:?}");
    }
    let scaled = Amp::f16().scaled_by(LossScale::dynamic(1024.0).interval(2));
    let half = [Amp::bf16(), scaled, Amp::pure_bf16()];
    for strategy in half.into_iter().filter(|_| testing::has_bf16()) {
        assert_eq!(check(&strategy, &device(), 5e-2), Ok(()), "{strategy:?}");
        // A master in bf16 rounds each of its updates.
        assert_eq!(check_on_ranks(&strategy, &device(), 2, 1e-1), Ok(()), "{strategy:?}");
    }
    for strategy in [boxed(Amp::f32()), boxed(Accumulate(1)), boxed(Clip::norm(1e30)), boxed(Ema::new(0.9))] {
        assert_eq!(check_identity(&strategy, &device()), Ok(()), "{strategy:?}");
    }
}

/// Breaks one law.
#[derive(Clone, Debug)]
struct Breaks {
    law: Law,
    /// Shared by clones.
    starts: Arc<AtomicUsize>,
}

/// Its live state.
struct Broken {
    law: Law,
    /// By how much the gradients are multiplied.
    factor: f64,
}

impl StrategyRecipe for Breaks {
    fn effects(&self) -> Effects {
        let sums = Sums { micro_batches: 2, dtype: FloatDType::F32 };
        Effects { sums: (self.law == Law::Accumulate).then_some(sums), ..Effects::of("Breaks") }
    }
}

impl<M: Module> Strategy<M> for Breaks {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let started = self.starts.fetch_add(1, Relaxed) as f64;
        let factor = if self.law == Law::Recipe { 1.0 + started } else { 1.0 };
        Ok(Stages::of(Broken { law: self.law, factor }))
    }
}

impl<M: Module> Stage<M> for Broken {
    fn name(&self) -> &'static str {
        "Breaks"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        match self.law {
            // Drops all gradients but those of the last micro-batch.
            Law::Accumulate if !grads.closes() => return Ok(Outcome::Hold),
            Law::Restore if grads.skip() == Some(&SkipReason::NonFinite) => {}
            Law::Restore => self.factor *= 1.1,
            Law::Identity => self.factor = 2.0,
            _ => {}
        }
        grads.bound(master, &mut Times(self.factor))?;
        Ok(Outcome::Apply(grads))
    }

    fn save(&self, state: StageState) -> StageState {
        state.with("factor", self.factor)
    }

    fn alias_master(&mut self, master: M, _: &M) -> M {
        if self.law == Law::Alias { map_params(master, &mut Times(1.001)) } else { master }
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(if self.law == Law::Gather { map_params(model, &mut Times(2.0)) } else { model })
    }
}

struct Times(f64);

impl GradMap for Times {
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        grad * self.0
    }
}

impl ParamMap for Times {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        crate::relift(value.clone().inner() * self.0, &value)
    }
}

#[test]
fn a_broken_law_is_named_with_the_parameter() {
    for law in [Law::Recipe, Law::Gather, Law::Alias, Law::Restore, Law::Accumulate, Law::Identity] {
        let breaks = Breaks { law, starts: Arc::default() };
        let result = match law {
            Law::Identity => check_identity(&breaks, &device()),
            _ => check(&breaks, &device(), 1e-4),
        };
        let Err(ConformanceError::Parameter { law: found, parameter, .. }) = &result else {
            panic!("{law:?}: {result:?}")
        };
        assert_eq!((*found, parameter.as_str()), (law, "blocks.0.weight"));
    }
}

/// Sums nothing over the ranks, although it says so.
#[derive(Clone, Debug)]
struct Alone;

impl StrategyRecipe for Alone {
    fn effects(&self) -> Effects {
        let reduces =
            Reduces { stage: 0, each_micro_batch: false, replicate_below: 1, sum_in: None, within: None };
        Effects { reduces: Some(reduces), ..Effects::none("Alone") }
    }
}

impl<M: Module> Strategy<M> for Alone {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::none())
    }
}

#[test]
fn ranks_that_train_alone_are_found() {
    let error = check_on_ranks(&Alone, &device(), 2, 1e-4).unwrap_err();
    assert!(matches!(error, ConformanceError::Parameter { law: Law::Ranks, .. }), "{error}");
}
