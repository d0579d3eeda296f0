//! The optimizer in a run file.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::Tensor;
use firebrick_strategies::optim::{AdamW, Lion, Sgd};
use serde::{Deserialize, Serialize};

/// The optimizer, one of [`firebrick_strategies::optim`]. Weights of matrices decay; vectors (biases
/// and the scales of norms) do not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019, arXiv:1711.05101).
    AdamW {
        /// Decay of the two moments. Default: `(0.9, 0.999)`.
        #[serde(default = "adamw_betas")]
        betas: (f32, f32),
        /// Added to the root of the second moment. Default: 1e-8.
        #[serde(default = "default_epsilon")]
        epsilon: f32,
        /// Times the learning rate is taken off each weight of a matrix at each update. Default: 0.
        #[serde(default)]
        weight_decay: f32,
    },
    /// The sign of a momentum (Chen et al., 2023, arXiv:2302.06675).
    Lion {
        /// The momentum's share in the update, and its decay. Default: `(0.9, 0.99)`.
        #[serde(default = "lion_betas")]
        betas: (f32, f32),
        /// Times the learning rate is taken off each weight of a matrix at each update. Default: 0.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Gradient descent, plain or with momentum (Sutskever et al., 2013).
    Sgd {
        /// Decay of the velocity. Default: 0, no velocity.
        #[serde(default)]
        momentum: f32,
        /// Whether the step looks ahead along the new velocity. Default: no.
        #[serde(default)]
        nesterov: bool,
        /// So many times each weight of a matrix is added to its gradient. Default: 0.
        #[serde(default)]
        weight_decay: f32,
        /// The share of a gradient that the velocity does not take up. Default: 0.
        #[serde(default)]
        dampening: f64,
    },
}

fn adamw_betas() -> (f32, f32) {
    (0.9, 0.999)
}

fn lion_betas() -> (f32, f32) {
    (0.9, 0.99)
}

fn default_epsilon() -> f32 {
    1e-8
}

impl OptimizerConfig {
    /// How many numbers it keeps of each parameter.
    pub(crate) fn states(&self) -> usize {
        match self {
            Self::AdamW { .. } => 2,
            Self::Lion { .. } => 1,
            Self::Sgd { momentum, .. } => usize::from(*momentum != 0.0),
        }
    }

    /// The optimizer for this model. Only its matrices decay.
    pub fn build<M: Module>(&self, model: &M) -> ModuleOptimizer {
        match *self {
            Self::AdamW { betas: (beta_1, beta_2), epsilon, weight_decay } => {
                let adamw = AdamW::new().betas(beta_1, beta_2).epsilon(epsilon);
                decaying(model, adamw, adamw.weight_decay(weight_decay))
            }
            Self::Lion { betas: (beta_1, beta_2), weight_decay } => {
                let lion = Lion::new().betas(beta_1, beta_2);
                decaying(model, lion, lion.weight_decay(weight_decay))
            }
            Self::Sgd { momentum, nesterov, weight_decay, dampening } => {
                let sgd = Sgd::new().momentum(momentum).nesterov(nesterov).dampening(dampening);
                decaying(model, sgd, sgd.weight_decay(weight_decay))
            }
        }
    }
}

/// One optimizer for vectors, and another for matrices.
fn decaying<M: Module>(model: &M, vectors: impl Optimizer, of_matrices: impl Optimizer) -> ModuleOptimizer {
    ModuleOptimizer::from(vectors).with_group(matrices(model), of_matrices, None)
}

/// The parameters of two or more axes, and the factors that [`Lora`](firebrick_strategies::Lora) will attach.
fn matrices<M: Module>(model: &M) -> ParamGroup {
    struct Matrices(Vec<ParamId>);
    impl ModuleVisitor for Matrices {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if D >= 2 {
                self.0.push(param.id);
            }
        }
    }
    let mut matrices = Matrices(Vec::new());
    model.visit(&mut matrices);
    ParamGroup::from_ids(matrices.0).fuse(&ParamGroup::from_predicate(".lora."))
}

#[cfg(test)]
mod tests {
    use burn::nn::LinearConfig;
    use burn::optim::GradientsParams;
    use burn::tensor::Device;

    use super::*;
    use crate::Run;

    fn run(optimizer: &str) -> Result<Run, String> {
        let text = format!(
            r#"(
                data: (path: "input.txt", tokenizer: Characters, block: 8),
                model: Gpt(layers: 1, heads: 1, width: 8),
                optimizer: {optimizer},
                schedule: Constant(lr: 1e-3),
                batch: (micro: 1),
                steps: 10,
                output: "out",
            )"#
        );
        Run::parse("run.ron", &text, &[] as &[&str]).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_left_out_has_the_papers_values() {
        let adamw = OptimizerConfig::AdamW { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0 };
        assert_eq!(run("AdamW()").unwrap().optimizer, adamw);
        let lion = OptimizerConfig::Lion { betas: (0.9, 0.99), weight_decay: 0.5 };
        assert_eq!(run("Lion(weight_decay: 0.5)").unwrap().optimizer, lion);
        let sgd = OptimizerConfig::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0, dampening: 0.0 };
        let parsed = run("Sgd(momentum: 0.9, nesterov: true)").unwrap();
        assert_eq!(parsed.optimizer, sgd);
        assert_eq!(Run::parse("saved", &parsed.to_ron(), &[] as &[&str]).unwrap(), parsed);
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        for (optimizer, expected) in [
            ("AdamW(betas: (1.0, 0.9))", "`optimizer.betas` must be at least 0 and below 1"),
            ("AdamW(epsilon: 0.0)", "`optimizer.epsilon` must be finite, above 0"),
            ("AdamW(weight_decay: -0.1)", "`optimizer.weight_decay` must be at least 0"),
            ("AdamW(momentum: 0.9)", "unknown name `momentum`"),
            ("Adam()", "did you mean `AdamW`?"),
            ("Lion(betas: (0.9, -0.1))", "`optimizer.betas` must be at least 0 and below 1"),
            ("Lion(weight_decay: inf)", "`optimizer.weight_decay` must be at least 0"),
            ("Lion(epsilon: 1e-8)", "unknown name `epsilon`"),
            ("Sgd(momentum: 1.0)", "`optimizer.momentum` must be at least 0 and below 1"),
            ("Sgd(momentum: 0.9, dampening: 1.5)", "`optimizer.dampening` must be at least 0 and at most 1"),
            ("Sgd(dampening: 0.5)", "`optimizer.dampening` must be 0 where `optimizer.momentum` is"),
            ("Sgd(nesterov: true)", "`optimizer.nesterov` must be false where `optimizer.momentum` is 0"),
            ("Sgd(weight_decay: NaN)", "`optimizer.weight_decay` must be at least 0"),
        ] {
            let said = run(optimizer).unwrap_err();
            assert!(said.contains(expected), "{optimizer}: {said}");
        }
    }

    /// Without a gradient only the decay moves a weight.
    #[test]
    fn matrices_alone_decay() {
        let decays = ["AdamW(weight_decay: 0.5)", "Lion(weight_decay: 0.5)", "Sgd(weight_decay: 0.5)"];
        for optimizer in decays {
            let mut model = LinearConfig::new(2, 2).init(&Device::default().autodiff());
            model.bias =
                model.bias.map(|bias| bias.map(|bias| (bias.inner() + 1.0).autodiff().require_grad()));
            let before = model.clone();
            let grads = (model.weight.val().sum() + model.bias.as_ref().unwrap().val().sum()) * 0.0;
            let grads = GradientsParams::from_grads(grads.backward(), &model);
            let model = run(optimizer).unwrap().optimizer.build(&model).step(0.1, model, grads);
            let change = model.weight.val() - before.weight.val() * 0.95;
            assert!(change.abs().max().into_scalar::<f32>() < 1e-7, "{optimizer}");
            let [bias, old] = [model, before].map(|model| model.bias.unwrap().val().into_data());
            assert_eq!(bias, old, "{optimizer}");
        }
    }
}
