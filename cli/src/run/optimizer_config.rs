//! The optimizer in a run file.

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use firebrick_strategies::optim::{Adafactor, AdamW, AdamW8bit, Groups, GroupsError, Lamb, Lion, Sgd};
use serde::{Deserialize, Serialize};

/// The optimizer, one of [`firebrick_strategies::optim`]. Weight decay applies to matrices only; vectors (biases and
/// the scales of norms) decay only if a [group](super::ParamGroupConfig) says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum OptimizerConfig {
    /// Adam with decoupled weight decay (Loshchilov & Hutter, 2019, arXiv:1711.05101).
    AdamW {
        /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
        #[serde(default = "adamw_betas")]
        betas: (f32, f32),
        /// Added to the square root of the second moment. Default: 1e-8.
        #[serde(default = "default_epsilon")]
        epsilon: f32,
        /// Each update subtracts `lr · weight_decay · weight` from the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
    },
    /// AdamW with 8-bit block-wise quantized moments (Dettmers et al., 2022, arXiv:2110.02861): 2 bytes per parameter
    /// instead of 8. Vectors and small matrices keep f32 moments.
    AdamW8bit {
        /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
        #[serde(default = "adamw_betas")]
        betas: (f32, f32),
        /// Added to the square root of the second moment. Default: 1e-8.
        #[serde(default = "default_epsilon")]
        epsilon: f32,
        /// Each update subtracts `lr · weight_decay · weight` from the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
        /// Matrices with fewer elements keep f32 moments. Default: 4096.
        #[serde(default = "min_8bit_size")]
        min_8bit_size: usize,
    },
    /// Updates by the sign of a momentum (Chen et al., 2023, arXiv:2302.06675).
    Lion {
        /// The weight of the momentum in the update, and the decay rate of the momentum. Default: `(0.9, 0.99)`.
        #[serde(default = "lion_betas")]
        betas: (f32, f32),
        /// Each update subtracts `lr · weight_decay · weight` from the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
    },
    /// Gradient descent, plain or with momentum (Sutskever et al., 2013).
    Sgd {
        /// Decay rate of the velocity. Default: 0, without a velocity.
        #[serde(default)]
        momentum: f32,
        /// Whether to use Nesterov momentum, which steps along the new velocity. Default: no.
        #[serde(default)]
        nesterov: bool,
        /// Adds `weight_decay · weight` to the gradients of the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
        /// The share of a gradient that the velocity omits. Default: 0.
        #[serde(default)]
        dampening: f64,
    },
    /// Factors the second moment of a matrix into a row and a column (Shazeer & Stern, 2018, arXiv:1804.04235), as
    /// Transformers implements it. The defaults are those of Hugging Face's Trainer: the learning rate is the
    /// schedule's, without relative scaling.
    Adafactor {
        /// Added to squared gradients, and the smallest root mean square of a parameter for `scale_parameter`. Default:
        /// `(1e-30, 1e-3)`.
        #[serde(default = "adafactor_epsilons")]
        epsilons: (f32, f32),
        /// The largest root mean square of an update. Default: 1.
        #[serde(default = "one")]
        clip_threshold: f32,
        /// The weight of a new squared gradient at update `t` is `t` to this power. Default: -0.8.
        #[serde(default = "adafactor_decay_rate")]
        decay_rate: f64,
        /// Decay rate of a first moment. Default: no first moment.
        #[serde(default)]
        beta1: Option<f32>,
        /// Each update subtracts `step size · weight_decay · weight` from the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
        /// Whether to multiply the step size by the root mean square of the parameter. Default: no.
        #[serde(default)]
        scale_parameter: bool,
        /// Whether to use Adafactor's own rate, `min(0.01, 1/√t)`, times the schedule's, which should be 1. Default:
        /// no.
        #[serde(default)]
        relative_step: bool,
        /// Whether that rate is `min(1e-6 t, 1/√t)` instead. Default: no.
        #[serde(default)]
        warmup_init: bool,
    },
    /// Adam with a layer-wise trust ratio, the norm of a parameter over the norm of its update (You et al., 2020,
    /// arXiv:1904.00962), as in DeepSpeed's `FusedLamb`.
    Lamb {
        /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
        #[serde(default = "adamw_betas")]
        betas: (f32, f32),
        /// Added to the square root of the second moment. Default: 1e-8.
        #[serde(default = "default_epsilon")]
        epsilon: f32,
        /// Adds `weight_decay · weight` to the updates of the matrices. Default: 0.
        #[serde(default)]
        weight_decay: f32,
        /// The largest trust ratio. Default: 10.
        #[serde(default = "lamb_max_coeff")]
        max_coeff: f32,
        /// The smallest trust ratio. Default: 0.01.
        #[serde(default = "lamb_min_coeff")]
        min_coeff: f32,
        /// Whether to correct the moments for their start at 0. Default: yes.
        #[serde(default = "super::yes")]
        bias_correction: bool,
    },
}

fn adamw_betas() -> (f32, f32) {
    (0.9, 0.999)
}

fn min_8bit_size() -> usize {
    4096
}

fn lion_betas() -> (f32, f32) {
    (0.9, 0.99)
}

fn default_epsilon() -> f32 {
    1e-8
}

fn adafactor_epsilons() -> (f32, f32) {
    (1e-30, 1e-3)
}

fn adafactor_decay_rate() -> f64 {
    -0.8
}

fn one() -> f32 {
    1.0
}

fn lamb_max_coeff() -> f32 {
    10.0
}

fn lamb_min_coeff() -> f32 {
    0.01
}

impl OptimizerConfig {
    /// Returns the smallest number of f32 values that the optimizer keeps per parameter.
    pub(crate) fn states(&self) -> f64 {
        match self {
            Self::AdamW { .. } | Self::Lamb { .. } => 2.0,
            Self::Lion { .. } => 1.0,
            Self::AdamW8bit { .. } => 0.5,
            Self::Sgd { momentum, .. } => f64::from(*momentum != 0.0),
            Self::Adafactor { beta1, .. } => f64::from(beta1.is_some()),
        }
    }

    /// Returns the bytes of optimizer state for a parameter of this shape, of which `elements` elements of `size` bytes
    /// each are updated here. A LoRA factor is attached after the optimizer was created, so its moments are never
    /// 8-bit.
    pub(crate) fn state_bytes(&self, shape: &[usize], elements: u64, size: u64, is_factor: bool) -> u64 {
        let whole: u64 = shape.iter().map(|size| *size as u64).product();
        match *self {
            Self::AdamW8bit { min_8bit_size, .. }
                if shape.len() >= 2 && whole >= min_8bit_size as u64 && !is_factor =>
            {
                let row = whole / (shape[0] as u64).max(1);
                AdamW8bit::state_bytes(elements / row.max(1), row)
            }
            Self::AdamW { .. } | Self::AdamW8bit { .. } => 2 * elements * size,
            Self::Lamb { .. } => 2 * elements * 4,
            Self::Lion { .. } => elements * size,
            Self::Sgd { momentum, .. } => {
                if momentum == 0.0 {
                    0
                } else {
                    elements * size
                }
            }
            Self::Adafactor { beta1, .. } => {
                let squares = match *shape {
                    [.., rows, columns] => whole / ((rows * columns) as u64).max(1) * (rows + columns) as u64,
                    _ => elements,
                };
                4 * (squares + if beta1.is_some() { elements } else { 0 })
            }
        }
    }

    /// Builds the optimizer for a model whose parameters are treated as the groups say. Without a group, weight decay
    /// applies to the matrices.
    ///
    /// # Errors
    ///
    /// A group does not fit the model.
    pub fn build<M: Module>(&self, model: &M, groups: &Groups) -> Result<ModuleOptimizer, GroupsError> {
        match *self {
            Self::AdamW { betas: (beta_1, beta_2), epsilon, weight_decay } => {
                let adamw = AdamW::new().betas(beta_1, beta_2).epsilon(epsilon);
                groups.clone().weight_decay(weight_decay).init(model, adamw, AdamW::weight_decay)
            }
            Self::AdamW8bit { betas: (beta_1, beta_2), epsilon, weight_decay, min_8bit_size } => {
                let adamw = AdamW8bit::new().betas(beta_1, beta_2).epsilon(epsilon);
                let adamw = adamw.min_8bit_size(min_8bit_size);
                adamw.init(model, &groups.clone().weight_decay(weight_decay))
            }
            Self::Lion { betas: (beta_1, beta_2), weight_decay } => {
                let lion = Lion::new().betas(beta_1, beta_2);
                groups.clone().weight_decay(weight_decay).init(model, lion, Lion::weight_decay)
            }
            Self::Sgd { momentum, nesterov, weight_decay, dampening } => {
                let sgd = Sgd::new().momentum(momentum).nesterov(nesterov).dampening(dampening);
                groups.clone().weight_decay(weight_decay).init(model, sgd, Sgd::weight_decay)
            }
            Self::Adafactor {
                epsilons: (of_squares, of_parameters),
                clip_threshold,
                decay_rate,
                beta1,
                weight_decay,
                scale_parameter,
                relative_step,
                warmup_init,
            } => {
                let adafactor = Adafactor::new()
                    .epsilons(of_squares, of_parameters)
                    .clip_threshold(clip_threshold)
                    .decay_rate(decay_rate)
                    .scale_parameter(scale_parameter)
                    .relative_step(relative_step)
                    .warmup_init(warmup_init);
                let adafactor = beta1.map_or(adafactor, |beta_1| adafactor.beta_1(beta_1));
                groups.clone().weight_decay(weight_decay).init(model, adafactor, Adafactor::weight_decay)
            }
            Self::Lamb {
                betas: (beta_1, beta_2),
                epsilon,
                weight_decay,
                max_coeff,
                min_coeff,
                bias_correction,
            } => {
                let lamb = Lamb::new().betas(beta_1, beta_2).epsilon(epsilon);
                let lamb = lamb.coefficients(min_coeff, max_coeff).bias_correction(bias_correction);
                groups.clone().weight_decay(weight_decay).init(model, lamb, Lamb::weight_decay)
            }
        }
    }
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
        for given in [
            "Adafactor()",
            "Adafactor(beta1: 0.9, decay_rate: -0.5, epsilons: (1e-10, 1e-2), scale_parameter: true)",
            "Lamb(max_coeff: 5.0, bias_correction: false)",
            "AdamW8bit(betas: (0.9, 0.95), weight_decay: 0.1, min_8bit_size: 64)",
        ] {
            let parsed = run(given).unwrap();
            assert_eq!(Run::parse("saved", &parsed.to_ron(), &[] as &[&str]).unwrap(), parsed, "{given}");
        }
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
            ("Adafactor(epsilons: (0.0, 1e-3))", "`optimizer.epsilons` must be finite and above 0"),
            ("Adafactor(clip_threshold: 0.0)", "`optimizer.clip_threshold` must be finite and above 0"),
            ("Adafactor(decay_rate: 0.8)", "`optimizer.decay_rate` must be finite and below 0"),
            ("Adafactor(beta1: 1.0)", "`optimizer.beta1` must be at least 0 and below 1"),
            ("Adafactor(weight_decay: -1.0)", "`optimizer.weight_decay` must be at least 0"),
            (
                "Adafactor(warmup_init: true)",
                "`optimizer.warmup_init` must be false where `optimizer.relative_step` is",
            ),
            (
                "Adafactor(relative_step: true)",
                "`schedule.lr` must be 1 where `optimizer.relative_step` is true",
            ),
            ("Adafactor(epsilon: 1e-8)", "did you mean `epsilons`?"),
            ("AdamW8bit(betas: (-0.1, 0.9))", "`optimizer.betas` must be at least 0 and below 1"),
            ("AdamW8bit(epsilon: 0.0)", "`optimizer.epsilon` must be finite, above 0"),
            ("AdamW8bit(weight_decay: -0.1)", "`optimizer.weight_decay` must be at least 0"),
            ("Lamb(betas: (0.9, 1.0))", "`optimizer.betas` must be at least 0 and below 1"),
            ("Lamb(epsilon: -1.0)", "`optimizer.epsilon` must be finite, above 0"),
            ("Lamb(weight_decay: inf)", "`optimizer.weight_decay` must be at least 0"),
            (
                "Lamb(max_coeff: inf)",
                "`optimizer.max_coeff` must be finite and at least `optimizer.min_coeff`",
            ),
            (
                "Lamb(min_coeff: 20.0)",
                "`optimizer.max_coeff` must be finite and at least `optimizer.min_coeff`",
            ),
            ("Lamb(min_coeff: -1.0)", "`optimizer.min_coeff` must be at least 0"),
        ] {
            let said = run(optimizer).unwrap_err();
            assert!(said.contains(expected), "{optimizer}: {said}");
        }
    }

    /// Without a gradient, only weight decay changes a weight.
    #[test]
    fn matrices_alone_decay() {
        let decays = [
            "AdamW(weight_decay: 0.5)",
            "Lion(weight_decay: 0.5)",
            "Sgd(weight_decay: 0.5)",
            "Adafactor(weight_decay: 0.5)",
            "AdamW8bit(weight_decay: 0.5, min_8bit_size: 1)",
        ];
        for optimizer in decays {
            let mut model = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
            model.bias =
                model.bias.map(|bias| bias.map(|bias| (bias.inner() + 1.0).autodiff().require_grad()));
            let before = model.clone();
            let grads = (model.weight.val().sum() + model.bias.as_ref().unwrap().val().sum()) * 0.0;
            let grads = GradientsParams::from_grads(grads.backward(), &model);
            let mut built = run(optimizer).unwrap().optimizer.build(&model, &Groups::new()).unwrap();
            let model = built.step(0.1, model, grads);
            let change = model.weight.val() - before.weight.val() * 0.95;
            assert!(change.abs().max().into_scalar::<f32>() < 1e-7, "{optimizer}");
            let [bias, old] = [model, before].map(|model| model.bias.unwrap().val().into_data());
            assert_eq!(bias, old, "{optimizer}");
        }
    }
}
