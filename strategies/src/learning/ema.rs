//! Exponential moving average of the weights.
//!
//! Polyak & Juditsky, *Acceleration of Stochastic Approximation by Averaging*, 1992; for neural networks, Tarvainen &
//! Valpola, *Mean teachers are better role models*, 2017 (arXiv:1703.01780).

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

use serde::{Deserialize, Serialize};

use crate::{
    Effects, ParamMap, SettingError, Setup, Stage, StageState, Stages, Strategy, StrategyError,
    StrategyRecipe, each_param, map_params, relift,
};

const NAME: &str = "Ema";

/// Averages the weights over the updates, in f32. Evaluation and the saved best model use the average.
///
/// With θ the master, s the average, initially θ₀, and t the index of the update, from 0:
///
/// ```text
/// s = d·s + (1 - d)·θ,   d = min(decay, (1 + t) / (10 + t))
/// ```
///
/// The average follows every update and ignores skipped steps. Training itself does not change. Evaluation reads the
/// average, published like the replica, so the lowest validation loss and `best.safetensors` are those of the average.
/// At the end of a run you have both, the master and the average.
///
/// The second term of d is the warmup. Without it, 13% of the average after 2000 updates at a decay of 0.999 would be
/// initial weights; [`without_warmup`](Self::without_warmup) turns it off. A decay of 0.999 averages over about the
/// last 1000 updates, 0 over the last one.
///
/// | held between steps, for Ψ trained parameters | |
/// |---|---|
/// | the average | 4Ψ |
/// | the average's own replica, during evaluation under `Amp::bf16()` | 2Ψ more |
///
/// Frozen parameters and running states are the master's own tensors and take no memory. If the master is sharded or on
/// the host, so is its average. No gradients pass through `Ema`, so you can write it anywhere in a composition.
///
/// The saved state holds the number of updates, for the warmup, but not the average. If you resume a run from a saved
/// state alone, the average starts again from the master.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Composition, Ema, Setup};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut ema = Ema::new(0.999).start(&mut Setup::new(&model, &device))?;
/// ema.updated(&model); // Before the first step: the average starts here.
/// let average = ema.averaged().unwrap();
/// assert_eq!(average.weight.val().into_data(), model.weight.val().into_data());
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ema {
    /// The share of the average that each update keeps.
    decay: f64,
    /// Whether the first updates keep a smaller share.
    #[serde(default = "yes")]
    warmup: bool,
}

fn yes() -> bool {
    true
}

impl Ema {
    /// Keeps the share `decay` of the average at each update, at least 0 and below 1, after a warmup.
    pub fn new(decay: f64) -> Self {
        Self { decay, warmup: true }
    }

    /// Uses the same decay from the first update on.
    pub fn without_warmup(self) -> Self {
        Self { warmup: false, ..self }
    }

    /// Returns the decay of the update that follows `updates` updates.
    fn decay_after(&self, updates: u64) -> f64 {
        let updates = updates as f64;
        if self.warmup { self.decay.min((1.0 + updates) / (10.0 + updates)) } else { self.decay }
    }
}

impl StrategyRecipe for Ema {
    fn effects(&self) -> Effects {
        Effects { averages: true, ..Effects::of(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        let possible = (0.0..1.0).contains(&self.decay);
        SettingError::require(possible, "decay", "at least 0 and below 1", self.decay)
    }
}

impl<M: Module + 'static> Strategy<M> for Ema {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let mut trained = HashSet::new();
        each_param(setup.model(), |param| {
            if param.learns() {
                trained.insert(param.id());
            }
        });
        Ok(Stages::of(Averaging { ema: self.clone(), updates: 0, trained, average: None }))
    }
}

/// The live state of [`Ema`].
#[derive(Debug)]
struct Averaging<M> {
    ema: Ema,
    /// Updates that the average has followed.
    updates: u64,
    /// The parameters that have an average of their own.
    trained: HashSet<ParamId>,
    /// In f32, of the master's shapes and on its devices.
    average: Option<M>,
}

impl<M: Module> Stage<M> for Averaging<M> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn save(&self, state: StageState) -> StageState {
        state.with("updates", self.updates as f64)
    }

    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        self.updates = saved.get("updates")? as u64;
        Ok(())
    }

    fn averages(&self) -> bool {
        true
    }

    fn updated(&mut self, master: &M) {
        let trained = &self.trained;
        let Some(average) = self.average.take() else {
            self.average = Some(map_params(master.clone(), &mut CopyTrained(trained)));
            return;
        };
        let kept = self.ema.decay_after(self.updates);
        let mut averages = Averages { values: HashMap::new(), trained };
        average.visit(&mut averages);
        drop(average);
        self.average = Some(map_params(master.clone(), &mut Follow { averages, kept }));
        self.updates += 1;
    }

    fn averaged(&self) -> Option<M> {
        self.average.clone()
    }

    fn resume_average(&mut self, averaged: M) {
        self.average = Some(map_params(averaged, &mut CopyTrained(&self.trained)));
    }
}

/// Copies the trained parameters in f32: an optimizer updates the master's tensors in place only if nothing shares
/// them.
struct CopyTrained<'a>(&'a HashSet<ParamId>);

impl ParamMap for CopyTrained<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        match self.0.contains(&id) {
            true => relift(value.clone().inner().cast(FloatDType::F32) * 1.0, &value),
            false => value,
        }
    }

    fn wakes(&self, id: ParamId) -> bool {
        self.0.contains(&id)
    }
}

/// The averaged tensors by parameter id.
struct Averages<'a> {
    values: HashMap<ParamId, Box<dyn Any>>,
    trained: &'a HashSet<ParamId>,
}

impl ModuleVisitor for Averages<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.trained.contains(&param.id) {
            self.values.entry(param.id).or_insert_with(|| Box::new(param.base()));
        }
    }
}

/// Updates the average in place: nothing else holds its tensors. A parameter that is not trained is the master's, with or
/// without a value.
struct Follow<'a> {
    averages: Averages<'a>,
    kept: f64,
}

impl ParamMap for Follow<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, master: Tensor<D>) -> Tensor<D> {
        let average = self.averages.values.remove(&id).and_then(|value| value.downcast::<Tensor<D>>().ok());
        let Some(average) = average else { return master };
        // A step towards the master, so that the average of a constant weight is bit-identical to the weight.
        let average = average.inner();
        let away = master.clone().inner().cast(FloatDType::F32) - average.clone();
        relift(average + away * (1.0 - self.kept), &master)
    }

    fn wakes(&self, id: ParamId) -> bool {
        self.averages.trained.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{DType, Device};

    use super::*;
    use crate::{Amp, Composed, Composition, SavedStates, testing};

    fn linear(value: f64, device: &Device) -> Linear {
        with(LinearConfig::new(3, 2).init(device), value)
    }

    /// Sets all parameters to `value`.
    fn with<M: Module>(model: M, value: f64) -> M {
        struct Set(f64);
        impl ParamMap for Set {
            fn map<const D: usize>(&mut self, _: ParamId, like: Tensor<D>) -> Tensor<D> {
                relift(like.clone().inner().zeros_like() + self.0, &like)
            }
        }
        map_params(model, &mut Set(value))
    }

    fn start<M: Module + 'static>(ema: Ema, model: &M) -> Stages<M> {
        let device = model.devices()[0].clone();
        let mut stage = ema.start(&mut Setup::new(model, &device)).unwrap();
        stage.updated(model);
        stage
    }

    fn weights(linear: &Linear) -> Vec<f32> {
        linear.weight.val().into_data().try_to_vec().unwrap()
    }

    #[test]
    fn the_average_follows_the_equation() {
        let device = testing::device().autodiff();
        for (ema, warmup) in [(Ema::new(0.5), true), (Ema::new(0.5).without_warmup(), false)] {
            let mut model = linear(1.0, &device);
            let mut stage = start(ema, &model);
            let mut expected = 1.0;
            for t in 0..30 {
                let value = (t as f64 * 0.7).sin();
                model = with(model, value);
                stage.updated(&model);
                let d = if warmup { f64::min(0.5, (1 + t) as f64 / (10 + t) as f64) } else { 0.5 };
                expected = d * expected + (1.0 - d) * value;
                let average = stage.averaged().unwrap();
                let found = weights(&average)[5];
                assert!((f64::from(found) - expected).abs() < 1e-6, "{warmup} {t}: {found} {expected}");
                assert!(average.weight.is_require_grad(), "as the master is, so that it is published");
            }
        }
    }

    #[test]
    fn a_weight_that_stays_is_its_average_to_the_bit() {
        let model = linear(0.1, &testing::device().autodiff());
        let mut stage = start(Ema::new(0.9), &model);
        (0..50).for_each(|_| stage.updated(&model));
        assert_eq!(weights(&stage.averaged().unwrap()), weights(&model));
    }

    #[test]
    fn a_master_in_bf16_is_averaged_in_f32() {
        if !testing::has_bf16() {
            return;
        }
        let device = testing::device().autodiff();
        let model = linear(1.0, &device);
        let composed = Composed::new().with(Amp::pure_bf16()).with(Ema::new(0.999).without_warmup());
        let mut stage = composed.start(&mut Setup::new(&model, &device)).unwrap();
        let mut master = stage.init_master(model).unwrap();
        stage.updated(&master);
        master = with(master, 2.0);
        assert_eq!(master.weight.val().dtype(), DType::BF16);
        stage.updated(&master);
        let average = stage.averaged().unwrap();
        assert_eq!(average.weight.val().dtype(), DType::F32);
        assert!((weights(&average)[0] - 1.001).abs() < 1e-6, "in bf16 it would be 1 for ever");
        assert_eq!(stage.publish(average).unwrap().weight.val().dtype(), DType::BF16);
    }

    #[test]
    fn a_tied_parameter_has_one_average() {
        let one = linear(1.0, &testing::device().autodiff());
        let model = vec![one.clone(), one];
        let mut stage = start(Ema::new(0.5).without_warmup(), &model);
        stage.updated(&with(model, 2.0));
        let average = stage.averaged().unwrap();
        assert_eq!(average.iter().map(weights).collect::<Vec<_>>(), [[1.5; 6], [1.5; 6]]);
    }

    #[test]
    fn a_frozen_parameter_is_the_masters_own() {
        let device = testing::device().autodiff();
        let trained = linear(1.0, &device);
        let frozen = linear(1.0, &device).no_grad();
        let mut model = vec![trained, frozen];
        let mut stage = start(Ema::new(0.5).without_warmup(), &model);
        model[0] = with(model[0].clone(), 2.0);
        stage.updated(&model);
        let average = stage.averaged().unwrap();
        assert_eq!(weights(&average[0]), [1.5; 6]);
        assert!(!average[1].weight.is_require_grad());
        // The average follows a frozen parameter that something else changes.
        model[1] = with(model[1].clone(), 3.0);
        stage.updated(&model);
        assert_eq!(weights(&stage.averaged().unwrap()[1]), [3.0; 6]);
    }

    #[test]
    fn the_count_of_updates_is_restored_and_the_average_starts_from_the_master() {
        let model = linear(1.0, &testing::device().autodiff());
        let mut stage = start(Ema::new(0.999), &model);
        (0..20).for_each(|_| stage.updated(&model));
        let states = stage.save();
        let resumed = with(model, 2.0);
        let mut stage = start(Ema::new(0.999), &resumed);
        stage.restore(&mut SavedStates::new(states)).unwrap();
        stage.updated(&with(resumed, 3.0));
        // 2 and 3, at (1 + 20) / (10 + 20).
        assert!((weights(&stage.averaged().unwrap())[0] - 2.3).abs() < 1e-6);
    }

    #[test]
    fn impossible_decays_and_two_averages_are_refused() {
        let device = testing::device().autodiff();
        let model = linear(1.0, &device);
        for decay in [1.0, -0.1, f64::NAN] {
            let error = Ema::new(decay).start(&mut Setup::new(&model, &device)).unwrap_err();
            assert!(error.to_string().contains("at least 0 and below 1"), "{error}");
        }
        let twice = Composed::new().with(Ema::new(0.9)).with(Ema::new(0.99));
        let error = twice.start(&mut Setup::new(&model, &device)).err();
        assert_eq!(error, Some(StrategyError::Twice("Ema")));
    }
}
