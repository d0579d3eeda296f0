//! AdamW with 8-bit moments.

use burn::module::Module;
use burn::optim::{LearningRate, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use firebrick_kernels::cast;
use firebrick_kernels::optim::{Rows, blocks};
use serde::{Deserialize, Serialize};

use super::{
    AdamW, Fused, Groups, GroupsError, HeldParam, ModelGroups, ModelOptimizer, OfBurn, OptimizerRecipe,
};
use crate::SettingError;

/// [`AdamW`] with moments of one byte per element instead of four
/// ([Dettmers et al., 2022](https://arxiv.org/abs/2110.02861)), like bitsandbytes.
///
/// A moment is stored as the nearest [dynamic 8-bit number](firebrick_kernels::optim::dynamic_map), in blocks of 256
/// that are each divided by their largest magnitude: 2 bytes and 1/32 per parameter instead of 8. An update reads the
/// moments as f32, computes AdamW, and rounds the new moments.
///
/// It differs from bitsandbytes in two ways. A block ends with its row, so a parameter whose rows are sharded among
/// ranks is updated bit for bit like the whole one, and you can resume a checkpoint on any number of ranks. And a
/// nonzero second moment is never rounded to zero, by which the next update would divide.
///
/// Vectors, parameters of fewer than 4096 elements and the factors of [`Lora`](crate::Lora) keep AdamW's moments in
/// f32.
///
/// The pass runs over host memory, in place on the CPU. On another device, each update moves the parameter and its
/// gradient to the host and back; with [`Offload`](crate::Offload) they are there already.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::optim::{AdamW8bit, Groups};
///
/// let model = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
/// let optimizer = AdamW8bit::new().weight_decay(0.01).init(&model, &Groups::new())?;
/// # let _ = optimizer;
/// # Ok::<(), firebrick_strategies::optim::GroupsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW8bit {
    /// Decay rates of the two moments. Default: `(0.9, 0.999)`.
    pub betas: (f32, f32),
    /// Added to the square root of the second moment. Default: 1e-8.
    pub epsilon: f32,
    /// Each update subtracts `lr · weight_decay · weight`. In groups, it applies
    /// to matrices, unless a group has its own. Default: 0.
    pub weight_decay: f32,
    /// Matrices with fewer elements keep f32 moments. Default: 4096.
    pub min_8bit_size: usize,
}

impl Default for AdamW8bit {
    fn default() -> Self {
        Self::new()
    }
}

impl AdamW8bit {
    /// Creates AdamW with 8-bit moments, β₁ = 0.9, β₂ = 0.999, ε = 1e-8, no weight decay, and f32 moments for matrices
    /// of fewer than 4096 elements.
    pub fn new() -> Self {
        Self { betas: (0.9, 0.999), epsilon: 1e-8, weight_decay: 0.0, min_8bit_size: 4096 }
    }

    /// Sets β₁ and β₂, the decay rates of the two moments.
    pub fn betas(self, beta_1: f32, beta_2: f32) -> Self {
        Self { betas: (beta_1, beta_2), ..self }
    }

    /// Sets ε, which is added to the square root of the second moment.
    pub fn epsilon(self, epsilon: f32) -> Self {
        Self { epsilon, ..self }
    }

    /// Sets λ: each update subtracts the learning rate times λ times the parameter.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// Sets the elements of the smallest matrix for which [`init`](Self::init) uses 8-bit moments: smaller matrices
    /// save little.
    pub fn min_8bit_size(self, elements: usize) -> Self {
        Self { min_8bit_size: elements, ..self }
    }

    /// Creates an optimizer for the whole model: this one for its large matrices, [`AdamW`] for all other parameters,
    /// both with the groups' settings.
    ///
    /// # Errors
    ///
    /// A setting is out of range, or the groups do not fit the model.
    pub fn init<M: Module>(self, model: &M, groups: &Groups) -> Result<ModelOptimizer, GroupsError> {
        groups.build(model, &self)
    }

    /// Returns the optimizer of small parameters.
    fn adamw(&self) -> AdamW {
        let Self { betas, epsilon, weight_decay, .. } = *self;
        AdamW { betas, epsilon, weight_decay }
    }

    /// Whether a parameter of this shape has 8-bit moments.
    fn is_large(&self, shape: &[usize]) -> bool {
        shape.len() >= 2 && shape.iter().product::<usize>() >= self.min_8bit_size
    }
}

impl OptimizerRecipe for AdamW8bit {
    fn check(&self) -> Result<(), SettingError> {
        self.adamw().check()
    }

    fn matrix_decay(&self) -> f32 {
        self.weight_decay
    }

    /// Two codes for each element and two f32 for each block of a row, or AdamW's moments.
    fn state_bytes(&self, param: &HeldParam<'_>) -> u64 {
        if param.is_factor || !self.is_large(param.shape) {
            return self.adamw().state_bytes(param);
        }
        let (_, row) = rows_of(param.shape);
        let rows = param.elements / row.max(1) as u64;
        2 * rows * (row + 4 * blocks(row)) as u64
    }

    /// The size decides which parameters have 8-bit moments.
    fn fixed_settings(&self) -> &'static [&'static str] {
        &["min_8bit_size"]
    }

    fn build(&self, groups: &ModelGroups) -> ModelOptimizer {
        groups.split(
            |shape| self.is_large(shape),
            |weight_decay| OfBurn(Self { weight_decay, ..*self }),
            |weight_decay| Fused(AdamW { weight_decay, ..self.adamw() }),
        )
    }
}

/// The state of [`AdamW8bit`] for one parameter, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW8bitState<const D: usize> {
    time: usize,
    shape: [usize; D],
    /// The codes of both moments, each with the shape of the parameter.
    codes: [Vec<u8>; 2],
    /// The largest magnitude of each block, `[rows, blocks of a row]`.
    largest: [Vec<f32>; 2],
}

/// Returns the rows of a parameter, and the elements of a row.
fn rows_of(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [rows, row @ ..] => (*rows, row.iter().product()),
    }
}

/// The names of the state's fields in a record.
const TIME: &str = "time";
const CODES: [&str; 2] = ["codes_1", "codes_2"];
const LARGEST: [&str; 2] = ["largest_1", "largest_2"];

impl<const D: usize> AdamW8bitState<D> {
    /// Creates the state before the first update.
    fn none(shape: [usize; D]) -> Self {
        let (rows, row) = rows_of(&shape);
        let (codes, largest) = (vec![0; rows * row], vec![0.0; rows * blocks(row)]);
        Self { time: 0, shape, codes: [codes.clone(), codes], largest: [largest.clone(), largest] }
    }
}

impl<const D: usize> RecordState for AdamW8bitState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        let (rows, row) = rows_of(&self.shape);
        out.push_scalar(prefix, TIME, self.time.into());
        for moment in 0..2 {
            out.push_tensor(prefix, CODES[moment], TensorData::new(self.codes[moment].clone(), self.shape));
            let largest = TensorData::new(self.largest[moment].clone(), [rows, blocks(row)]);
            out.push_tensor(prefix, LARGEST[moment], largest);
        }
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, _: &Device) -> Option<Self> {
        let time = usize::try_from(src.take_scalar(prefix, TIME)?).ok()?;
        let first = src.take_tensor(prefix, CODES[0])?;
        let shape: [usize; D] = first.shape().to_vec().try_into().ok()?;
        let codes = |data: TensorData| data.try_into_vec::<u8>().ok();
        let codes = [codes(first)?, codes(src.take_tensor(prefix, CODES[1])?)?];
        let mut largest = |name| src.take_tensor(prefix, name)?.try_into_vec::<f32>().ok();
        let largest = [largest(LARGEST[0])?, largest(LARGEST[1])?];
        let (rows, row) = rows_of(&shape);
        let fits = codes.iter().all(|codes| codes.len() == rows * row)
            && largest.iter().all(|largest| largest.len() == rows * blocks(row));
        fits.then_some(Self { time, shape, codes, largest })
    }
}

impl Optimizer for AdamW8bit {
    type State<const D: usize> = AdamW8bitState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<AdamW8bitState<D>>,
    ) -> (Tensor<D>, Option<AdamW8bitState<D>>) {
        let (shape, dtype, device) = (param.dims(), param.dtype(), param.device());
        let mut state =
            state.filter(|state| state.shape == shape).unwrap_or_else(|| AdamW8bitState::none(shape));
        state.time += 1;
        let [mut param, grad] = [param, grad].map(|tensor| cast(tensor, FloatDType::F32).into_data());
        let rows = Rows {
            row: rows_of(&shape).1,
            param: param.as_mut_slice().expect("it is in f32"),
            grad: grad.as_slice().expect("it is in f32"),
            codes: state.codes.each_mut().map(Vec::as_mut_slice),
            largest: state.largest.each_mut().map(Vec::as_mut_slice),
        };
        self.adamw().rule(rate, state.time).update_rows(rows, state.time == 1);
        let param = Tensor::from_data(param, (&device, DType::F32));
        (cast(param, FloatDType::from(dtype)), Some(state))
    }

    fn to_device<const D: usize>(state: AdamW8bitState<D>, _: &Device) -> AdamW8bitState<D> {
        state
    }
}

#[cfg(test)]
#[path = "tests/adamw_8bit.rs"]
mod tests;
