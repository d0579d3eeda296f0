//! A program that adds an optimizer and a strategy of its own to `firebrick`.

use std::fs;

use burn::module::Module;
use burn::optim::{LearningRate, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_cli::RunStrategy;
use firebrick_strategies::optim::{BoxedOptimizer, HeldParam, ModelGroups, ModelOptimizer, OptimizerRecipe};
use firebrick_strategies::{
    Effects, Grads, Outcome, SettingError, Setup, SkipReason, Stage, Stages, Strategy, StrategyError,
    StrategyRecipe,
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::own_program::{self, program};
use crate::small_run::{RUN, folder_of};

/// Updates by the sign of the gradient.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SignSgd {
    weight_decay: f32,
    scale: f64,
}

impl Default for SignSgd {
    fn default() -> Self {
        Self { weight_decay: 0.0, scale: 1.0 }
    }
}

impl Optimizer for SignSgd {
    type State<const D: usize> = ();

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        _: Option<()>,
    ) -> (Tensor<D>, Option<()>) {
        let kept = param.mul_scalar(1.0 - rate * f64::from(self.weight_decay));
        (kept - grad.sign().mul_scalar(rate * self.scale), None)
    }

    fn to_device<const D: usize>(_: (), _: &Device) {}
}

impl OptimizerRecipe for SignSgd {
    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.scale > 0.0, "scale", "above 0", self.scale)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    fn state_bytes(&self, _: &HeldParam<'_>) -> u64 {
        0
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.build(|weight_decay| Self { weight_decay, ..self.clone() })
    }
}

/// Skips an update whose gradient norm exceeds `bound`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SkipAbove {
    bound: f64,
}

impl StrategyRecipe for SkipAbove {
    fn effects(&self) -> Effects {
        Effects::of("SkipAbove")
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.bound > 0.0, "bound", "above 0", self.bound)
    }
}

impl<M: Module> Strategy<M> for SkipAbove {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(self.clone()))
    }
}

impl<M: Module> Stage<M> for SkipAbove {
    fn name(&self) -> &'static str {
        "SkipAbove"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        let norm = grads.norm(master)?.into_scalar::<f64>();
        match norm > self.bound {
            true => Ok(Outcome::Skip(SkipReason::Other(format!("a norm of {norm}")))),
            false => Ok(Outcome::Apply(grads)),
        }
    }
}

/// Runs `firebrick train` on the folder's run file.
fn succeeds(folder: &TempDir, sets: &[&str]) -> bool {
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (data, output) = (format!("data.path={:?}", path("text.txt")), format!("output={:?}", path("out")));
    let sets = [&[data.as_str(), output.as_str()], sets].concat();
    own_program::run(&["train", &path("run.ron"), "--plain"], &sets)
}

#[test]
fn a_program_trains_with_a_strategy_of_its_own() {
    let folder = folder_of(RUN, 40);
    let updates = || {
        let report = fs::read_to_string(folder.path().join("out/report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        (report["steps"].as_u64(), report["skipped_steps"].as_u64())
    };
    assert!(succeeds(&folder, &["steps=4", "strategies=[SkipAbove(bound: 1e6)]", "batch.accumulate=2"]));
    assert_eq!(updates(), (Some(4), Some(0)));
    // `batch.accumulate` completes the gradients before it.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    let run = program().parse("run.ron", &saved, &[] as &[&str]).unwrap();
    let names: Vec<_> = run.composed().iter().map(RunStrategy::name).collect();
    assert_eq!(names, ["Accumulate", "SkipAbove"]);
    let parse = |sets: &[&str]| program().parse("run.ron", &saved, sets).map_err(|error| error.to_string());
    for (set, expected) in [
        ("strategies.0.bound=-1.0", "`strategies.0.bound` must be above 0, found -1"),
        ("strategies.0.bonud=1.0", "unknown name `bonud` (did you mean `bound`?)"),
        ("strategies=[SkipAvobe(bound: 1)]", "did you mean `SkipAbove`?"),
    ] {
        let error = parse(&[set]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(!succeeds(&folder, &["steps=4", "strategies=[SkipAbove(bound: 1), Accumulate(2)]"]), "the order");
}

#[test]
fn a_program_trains_with_an_optimizer_of_its_own() {
    let run = RUN.replace("AdamW(weight_decay: 0.1)", "SignSgd(weight_decay: 0.1)");
    let folder = folder_of(&run, 40);
    assert!(succeeds(&folder, &["steps=4"]));
    assert!(!succeeds(&folder, &["steps=4", "optimizer.scale=0.0"]));

    // The run file in the output folder names it, and so do the errors.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    let parse = |sets: &[&str]| program().parse("run.ron", &saved, sets).map_err(|error| error.to_string());
    let expected = BoxedOptimizer::new("SignSgd", SignSgd { weight_decay: 0.1, scale: 1.0 });
    assert_eq!(parse(&[]).unwrap().optimizer, expected);
    for (set, expected) in [
        ("optimizer=SignSdg()", "unknown name `SignSdg` (did you mean `SignSgd`?); expected one of AdamW, "),
        (
            "optimizer.scael=2.0",
            "unknown name `scael` (did you mean `scale`?); expected one of weight_decay, scale",
        ),
        ("optimizer.scale=-1.0", "`optimizer.scale` must be above 0, found -1"),
    ] {
        let said = parse(&[set]).unwrap_err();
        assert!(said.contains(expected), "{said}");
    }
}
