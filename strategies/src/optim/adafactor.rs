//! Adafactor: the second moment of a matrix, factored into a row and a column.

use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::cast;
use serde::{Deserialize, Serialize};

use super::{HeldParam, ModelGroups, ModelOptimizer, OfBurn, OptimizerRecipe, ranges};
use crate::SettingError;

/// Adafactor ([Shazeer and Stern, 2018](https://arxiv.org/abs/1804.04235)), as in Transformers.
///
/// With the gradient g of the parameter θ at update t and the learning rate η:
///
/// ```text
/// β₂ ← 1 - t^d                          d is the decay rate, -0.8
/// r ← β₂r + (1 - β₂) mean of (g² + ε₁) over columns, c the same over rows
/// u ← g / √(r cᵀ / mean of r)           for a vector g / √v, with v ← β₂v + (1 - β₂)(g² + ε₁)
/// u ← u / max(1, RMS(u) / threshold)
/// α ← ηρ max(ε₂, RMS(θ))                ρ only with relative_step, the last factor only with scale_parameter
/// m ← β₁m + (1 - β₁)αu                  with a first moment; otherwise m is αu
/// θ ← (1 - αλ)θ - m
/// ```
///
/// For a matrix of n by m it stores n + m numbers, where AdamW's moments take 2nm. With more than two axes, the last
/// two form the matrix, and each index of the other axes has its own. It uses tensor operations on every backend, in
/// f32 whatever the parameter's dtype.
///
/// With [`relative_step`](Self::relative_step) it has its own schedule, ρ = min(0.01, 1/√t), which is multiplied by the
/// learning rate: a constant rate of 1 gives the behaviour of Transformers.
///
/// An update of an element depends on its row, its column and the whole parameter, so Adafactor cannot update shards,
/// and `Zero` rejects it in stages 1 to 3.
///
/// ```
/// use firebrick_strategies::optim::Adafactor;
///
/// // With the learning rate of a trainer, and like the paper, with a learning rate of 1.
/// let optimizer = Adafactor::new().init()?;
/// let paper = Adafactor::new().relative_step(true).scale_parameter(true).init()?;
/// # let _ = (optimizer, paper);
/// # Ok::<(), firebrick_strategies::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adafactor {
    /// Added to squared gradients, and the smallest root mean square of a parameter for `scale_parameter`. Default:
    /// `(1e-30, 1e-3)`.
    pub epsilons: (f32, f32),
    /// The largest root mean square of an update. Default: 1.
    pub clip_threshold: f32,
    /// The weight of a new squared gradient at update `t` is `t` to this power. Default: -0.8.
    pub decay_rate: f64,
    /// Decay rate of a first moment. Default: no first moment.
    pub beta1: Option<f32>,
    /// Each update subtracts `step size · weight_decay · weight`. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
    /// Whether to multiply the step size by the root mean square of the parameter. Default: no.
    pub scale_parameter: bool,
    /// Whether to use Adafactor's own rate, `min(0.01, 1/√t)`, times the schedule's, which should be 1. Default: no.
    pub relative_step: bool,
    /// Whether that rate is `min(1e-6 t, 1/√t)` instead. Default: no.
    pub warmup_init: bool,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self::new()
    }
}

impl Adafactor {
    /// Creates Adafactor with ε₁ = 1e-30, ε₂ = 1e-3, a threshold of 1, a decay rate of -0.8, no first moment, no weight
    /// decay, and the given learning rate.
    pub fn new() -> Self {
        Self {
            epsilons: (1e-30, 1e-3),
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta1: None,
            weight_decay: 0.0,
            scale_parameter: false,
            relative_step: false,
            warmup_init: false,
        }
    }

    /// Sets ε₁, which is added to squared gradients, and ε₂, the lower bound of a parameter's RMS.
    pub fn epsilons(self, of_squares: f32, of_parameters: f32) -> Self {
        Self { epsilons: (of_squares, of_parameters), ..self }
    }

    /// Sets the largest root mean square of an update, before the learning rate.
    pub fn clip_threshold(self, clip_threshold: f32) -> Self {
        Self { clip_threshold, ..self }
    }

    /// Sets d, below 0: at update t, the new square has the weight t^d.
    pub fn decay_rate(self, decay_rate: f64) -> Self {
        Self { decay_rate, ..self }
    }

    /// Keeps a first moment of the updates, with decay rate β₁. It takes one number per parameter.
    pub fn beta_1(self, beta_1: f32) -> Self {
        Self { beta1: Some(beta_1), ..self }
    }

    /// Sets λ: each update subtracts the step size α times λ times the parameter.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// Sets whether the step is relative to the root mean square of the parameter.
    pub fn scale_parameter(self, scale_parameter: bool) -> Self {
        Self { scale_parameter, ..self }
    }

    /// Sets whether to multiply the learning rate by ρ = min(0.01, 1/√t).
    pub fn relative_step(self, relative_step: bool) -> Self {
        Self { relative_step, ..self }
    }

    /// Sets whether ρ is min(t · 1e-6, 1/√t) instead. It has no effect without a relative step.
    pub fn warmup_init(self, warmup_init: bool) -> Self {
        Self { warmup_init, ..self }
    }

    /// Creates an optimizer for a whole model. [Groups](super::Groups) give parameters settings of their own.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn init(self) -> Result<ModelOptimizer, SettingError> {
        self.check()?;
        Ok(ModelOptimizer::of_all(OfBurn(self)))
    }

    /// Returns ηρ.
    fn rate(&self, rate: LearningRate, time: usize) -> f64 {
        let time = time as f64;
        let least = if self.warmup_init { 1e-6 * time } else { 1e-2 };
        if self.relative_step { rate * least.min(time.sqrt().recip()) } else { rate }
    }
}

/// The state of [`Adafactor`] for one parameter, in f32.
#[derive(Clone, Debug)]
pub struct AdafactorState<const D: usize> {
    /// Updates so far.
    pub time: usize,
    /// The decaying mean of squares: of each row, `[.., rows, 1]`, or of each element of a vector.
    pub squares: Tensor<D>,
    /// The decaying mean of squares of each column, `[.., 1, columns]`. Vectors have none.
    pub columns: Option<Tensor<D>>,
    /// The first moment, if there is one.
    pub first: Option<Tensor<D>>,
}

/// The names of the state's fields in a record.
const TIME: &str = "time";
const SQUARES: &str = "squares";
const COLUMNS: &str = "columns";
const FIRST: &str = "first";

impl<const D: usize> RecordState for AdafactorState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, TIME, self.time.into());
        let tensors =
            [(SQUARES, Some(&self.squares)), (COLUMNS, self.columns.as_ref()), (FIRST, self.first.as_ref())];
        for (name, tensor) in tensors {
            if let Some(tensor) = tensor {
                out.push_tensor(prefix, name, tensor.to_data());
            }
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let time = usize::try_from(src.take_scalar(prefix, TIME)?).ok()?;
        let mut tensor = |name| Some(Tensor::from_data(src.take_tensor(prefix, name)?, device));
        Some(Self { time, squares: tensor(SQUARES)?, columns: tensor(COLUMNS), first: tensor(FIRST) })
    }
}

impl OptimizerRecipe for Adafactor {
    fn check(&self) -> Result<(), SettingError> {
        const ABOVE: &str = "finite and above 0";
        let above = |value: f32| value > 0.0 && value.is_finite();
        let (of_squares, of_parameters) = self.epsilons;
        let found = format!("({of_squares:e}, {of_parameters:e})");
        SettingError::require(above(of_squares) && above(of_parameters), "epsilons", ABOVE, found)?;
        SettingError::require(above(self.clip_threshold), "clip_threshold", ABOVE, self.clip_threshold)?;
        let possible = self.decay_rate < 0.0 && self.decay_rate.is_finite();
        SettingError::require(possible, "decay_rate", "finite and below 0", self.decay_rate)?;
        ranges::share("beta1", self.beta1.unwrap_or(0.0))?;
        ranges::weight_decay(self.weight_decay)?;
        let possible = self.relative_step || !self.warmup_init;
        SettingError::require(possible, "warmup_init", "false where `relative_step` is", self.warmup_init)
    }

    fn check_rate(&self, peak: f64) -> Result<(), SettingError> {
        let expected = "1 where `relative_step` is true: it multiplies the optimizer's own rate";
        SettingError::require(!self.relative_step || peak == 1.0, "lr", expected, peak)
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// In f32: a row and a column of squares of each matrix, a square of each element of a vector, and the first moment
    /// if there is one.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        let squares = match *param.shape {
            [ref others @ .., rows, columns] => {
                others.iter().product::<usize>() as u64 * (rows + columns) as u64
            }
            _ => param.elements,
        };
        4 * (squares + if self.beta1.is_some() { param.elements } else { 0 })
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.build(|weight_decay| Self { weight_decay, ..*self })
    }
}

impl Optimizer for Adafactor {
    type State<const D: usize> = AdafactorState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdafactorState<D>>,
    ) -> (Tensor<D>, Option<AdafactorState<D>>) {
        let dtype = param.dtype();
        let [param, grad] = [param, grad].map(|tensor| cast(tensor, FloatDType::F32));
        let (time, before) = match state {
            None => (1, None),
            Some(AdafactorState { time, squares, columns, first }) => {
                (time + 1, Some((squares, columns, first)))
            }
        };
        let (squares_before, columns_before, first_before) =
            before.map_or((None, None, None), |(squares, columns, first)| (Some(squares), columns, first));
        // 1 at the first update.
        let new = (time as f64).powf(self.decay_rate);
        let mean = |before: Option<Tensor<D>>, now: Tensor<D>| match before {
            None => now,
            Some(before) => before.mul_scalar(1.0 - new).add(now.mul_scalar(new)),
        };
        let square = grad.clone().square().add_scalar(self.epsilons.0);
        let (squares, columns) = if D >= 2 {
            let rows = mean(squares_before, square.clone().mean_dim(D - 1));
            (rows, Some(mean(columns_before, square.mean_dim(D - 2))))
        } else {
            (mean(squares_before, square), None)
        };
        let update = match &columns {
            // The product of two small moments may underflow f32; each factor alone does not.
            Some(columns) => {
                let rows = squares.clone().div(squares.clone().mean_dim(D - 2)).sqrt();
                grad.div(rows).div(columns.clone().sqrt())
            }
            None => grad.div(squares.clone().sqrt()),
        };
        let too_large = rms(update.clone()).div_scalar(self.clip_threshold).clamp_min(1.0);
        let mut size = too_large.recip().mul_scalar(self.rate(rate, time));
        // α, to which the decay applies without the bound on the update.
        let mut decayed = size.ones_like().mul_scalar(self.rate(rate, time));
        if self.scale_parameter {
            let of_param = rms(param.clone()).clamp_min(self.epsilons.1);
            (size, decayed) = (size * of_param.clone(), decayed * of_param);
        }
        let update = update.mul(size.reshape([1; D]));
        let (update, first) = match self.beta1 {
            None => (update, None),
            Some(beta_1) => {
                let update = update.mul_scalar(1.0 - beta_1);
                let first = match first_before {
                    None => update,
                    Some(before) => before.mul_scalar(beta_1).add(update),
                };
                (first.clone(), Some(first))
            }
        };
        let param = match self.weight_decay {
            0.0 => param,
            weight_decay => {
                let taken = param.clone().mul(decayed.mul_scalar(weight_decay).reshape([1; D]));
                param - taken
            }
        };
        let param = cast(param - update, FloatDType::from(dtype));
        (param, Some(AdafactorState { time, squares, columns, first }))
    }

    fn to_device<const D: usize>(state: AdafactorState<D>, device: &Device) -> AdafactorState<D> {
        let AdafactorState { time, squares, columns, first } = state;
        let moved = |tensor: Option<Tensor<D>>| tensor.map(|tensor| tensor.to_device(device));
        let squares = squares.to_device(device);
        AdafactorState { time, squares, columns: moved(columns), first: moved(first) }
    }
}

/// Returns the root mean square, `[1]`.
fn rms<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    tensor.square().mean().sqrt()
}
