//! A program that adds an optimizer of its own to `firebrick`.

use std::fs;

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};
use firebrick_cli::Run;
use firebrick_strategies::SettingError;
use firebrick_strategies::optim::{BoxedOptimizer, HeldParam, ModelGroups, OptimizerRecipe};
use serde::{Deserialize, Serialize};

use crate::own_program;
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

    fn build(&self, groups: &ModelGroups) -> ModuleOptimizer {
        groups.build(|weight_decay| Self { weight_decay, ..self.clone() })
    }
}

#[test]
fn a_program_trains_with_an_optimizer_of_its_own() {
    let run = RUN.replace("AdamW(weight_decay: 0.1)", "SignSgd(weight_decay: 0.1)");
    let folder = folder_of(&run, 40);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let data = format!("data.path={:?}", path("text.txt"));
    let output = format!("output={:?}", path("out"));
    let train = |scale: &str| {
        own_program::run(&["train", &path("run.ron"), "--plain"], &[&data, &output, "steps=4", scale])
    };
    assert!(train("optimizer.scale=1.0"));
    assert!(!train("optimizer.scale=0.0"));

    // The run file in the output folder names it, and so do the errors.
    let saved = fs::read_to_string(folder.path().join("out/run.ron")).unwrap();
    let parse = |sets: &[&str]| Run::parse("run.ron", &saved, sets).map_err(|error| error.to_string());
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
