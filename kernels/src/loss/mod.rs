//! The cross-entropy loss, and the output layer of a language model together with it.
//!
//! The logits of a language model are its largest tensor: with a vocabulary of 50,257, those of 8 rows of 256 tokens take
//! 412 MB in f32, and Burn keeps several tensors of that size for the backward pass. [`head_loss`] computes them in
//! chunks of rows, and turns each chunk into the gradients of the hidden state and of the head before the next, as
//! Liger (Hsu et al., 2024, arXiv:2410.10989) does.
//!
//! ```text
//! ops.rs        the losses as operations of a backend, and their gradients, once for every backend
//! head.rs       the loss and its gradients, of all rows or of each, chunk by chunk
//! rows.rs       rows of logits, with Burn's operations for backends and dtypes without kernels
//! flex.rs       rows on all cores, each of which the compiler turns into vectors
//! cube.rs       losses of rows on a device
//! cube_rows.rs  rows on a device, one cube for each
//! ```

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod cube_rows;
#[cfg(test)]
mod each_tests;
mod flex;
mod head;
mod ops;
mod rows;
#[cfg(test)]
mod tests;

use burn::backend::{Dispatch, DispatchTensor};
use burn::tensor::{FloatDType, Int, Tensor, TensorData};

pub use ops::LossOps;
pub use rows::LossRows;

use crate::device::is_flex;
use crate::half::cast;
use crate::product::linear;
use crate::zero_results::are_zero;
pub use head::{rows_of_logits, with_share_of_classes};

use head::Form;

/// The label of a row without a loss, as in PyTorch and transformers.
pub const IGNORED: i32 = -100;

/// Returns the negative log-likelihood of the labels, summed over the rows: `[1]`, in f32.
///
/// `logits` is `[rows, classes]` in any float dtype. A row with the label -100 adds exactly 0 to the sum and to every
/// gradient. With a share `smoothing` = ε of smoothed labels (Szegedy et al., 2016, arXiv:1512.00567) and classes of
/// probabilities p, the loss of a row with label y is that of `torch.nn.functional.cross_entropy`:
///
/// ```text
/// (1 - ε) · -ln p(y)  +  ε/C · Σ -ln p(c)
/// ```
///
/// The backward pass is one pass over the logits. It keeps them in their own dtype, and 4 bytes for each row.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use firebrick_kernels::cross_entropy;
///
/// let device = Device::flex().autodiff();
/// let logits = Tensor::<2>::from_data([[0.0, 0.0], [5.0, 7.0]], &device).require_grad();
/// let labels = Tensor::<1, Int>::from_data([1, -100], &device);
/// let loss = cross_entropy(logits.clone(), labels, 0.0);
/// assert!((loss.clone().into_scalar::<f32>() - 2f32.ln()).abs() < 1e-6);
/// let grad = logits.grad(&loss.backward()).unwrap();
/// assert_eq!(grad.into_data().iter::<f32>().collect::<Vec<_>>(), [0.5, -0.5, 0.0, 0.0]);
/// ```
///
/// # Panics
///
/// If there is not one label for each row. On the CPU, if a label is neither -100 nor below the number of classes; other
/// backends do not check.
pub fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>, smoothing: f64) -> Tensor<1> {
    assert_eq!(logits.dims()[0], labels.dims()[0], "each row of logits has one label");
    let sum = <Dispatch as LossOps>::cross_entropy(logits.into_dispatch(), labels.into_dispatch(), smoothing);
    cast(Tensor::from_dispatch(sum), FloatDType::F32)
}

/// The output layer of a language model.
#[derive(Clone, Debug)]
pub struct Head {
    /// The weight of each class.
    pub weight: HeadWeight,
    /// `[classes]`, in the dtype of the weight.
    pub bias: Option<Tensor<1>>,
    /// Bounds the logits, bias included, by `cap · tanh(logit / cap)` (Gemma Team, 2024, arXiv:2408.00118, section 2).
    pub cap: Option<f64>,
}

/// The weight of a [`Head`].
#[derive(Clone, Debug)]
pub enum HeadWeight {
    /// `[classes, width]`, as in an embedding.
    Embedding(Tensor<2>),
    /// `[width, classes]`, as in a linear layer.
    Linear(Tensor<2>),
}

impl Head {
    /// Computes logits `[.., classes]` of `hidden`, `[.., width]`, in the dtype of the weight.
    ///
    /// # Panics
    ///
    /// If the widths differ.
    pub fn logits<const D: usize>(&self, hidden: Tensor<D>) -> Tensor<D> {
        let weight = match &self.weight {
            HeadWeight::Embedding(weight) => weight.clone().transpose(),
            HeadWeight::Linear(weight) => weight.clone(),
        };
        let mut shape = hidden.dims();
        let rows = shape[..D - 1].iter().product();
        let hidden = cast(hidden, self.dtype()).reshape([rows, shape[D - 1]]);
        shape[D - 1] = self.classes();
        let logits = linear(hidden, weight, self.bias.clone()).reshape(shape);
        match self.cap {
            Some(cap) => {
                let wide = if self.dtype() == FloatDType::F64 { FloatDType::F64 } else { FloatDType::F32 };
                cast((cast(logits, wide) / cap).tanh() * cap, self.dtype())
            }
            None => logits,
        }
    }

    /// Returns the likeliest class of each row of `hidden`, `[rows, width]`, without all logits at once: `[rows]`.
    ///
    /// # Panics
    ///
    /// If the widths differ.
    pub fn likeliest(&self, hidden: Tensor<2>) -> Tensor<1, Int> {
        let [rows, _] = hidden.dims();
        let size = head::chunk(rows, self.classes(), hidden.dtype(), is_flex(&hidden.device()));
        let starts = (0..rows.max(1)).step_by(size);
        let of_chunk = |start: usize| {
            let chunk = hidden.clone().narrow(0, start, size.min(rows - start));
            self.logits(chunk).argmax(1).squeeze_dim(1)
        };
        Tensor::cat(starts.map(of_chunk).collect(), 0)
    }

    fn classes(&self) -> usize {
        match &self.weight {
            HeadWeight::Embedding(weight) => weight.dims()[0],
            HeadWeight::Linear(weight) => weight.dims()[1],
        }
    }

    fn dtype(&self) -> FloatDType {
        let (HeadWeight::Embedding(weight) | HeadWeight::Linear(weight)) = &self.weight;
        FloatDType::from(weight.dtype())
    }
}

/// Returns the [`cross_entropy`] of a head's logits for `hidden`, `[rows, width]`, without all logits at once.
///
/// `hidden` is cast to the dtype of the head's weight, and the loss is computed in f32. In half precision, GPUs round the
/// logits and their gradient to that dtype, and all that is summed over classes, rows and chunks is in f32. The CPU rounds
/// the gradient alone, and only to bf16, if the processor has dot products of bf16.
///
/// The gradient of the logits of a single row is between -1 and 1. In f16, GPUs multiply it by 2¹⁵ before they round it, and
/// divide the sums in f32, so a probability of 10⁻¹¹ still counts. A loss scale of 2¹⁶ over 8,192 items would multiply
/// it by 8.
///
/// If most rows have the label -100, as in masked language modelling, only the others are multiplied.
///
/// The gradients of the hidden state, the weight and the bias are computed in the forward pass, those that are tracked,
/// and the backward pass multiplies them by the gradient of the sum. It keeps them: 4 bytes for each element of the
/// hidden state (of the rows with a label), of the weight and of the bias. A chunk has at most 2²² logits on the CPU, 16 MiB,
/// and 448 MiB of them on a GPU, or 256 rows if that is more. Its size depends on shapes and the dtype alone. With a [cap](Head::cap), the chunk exists twice, in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Head, HeadWeight, head_loss};
///
/// let device = Device::flex().autodiff();
/// let hidden = Tensor::<2>::ones([3, 2], &device).require_grad();
/// let head = Head { weight: HeadWeight::Embedding(Tensor::ones([4, 2], &device)), bias: None, cap: None };
/// let loss = head_loss(hidden.clone(), &head, &[0, 3, -100], 0.0);
/// assert!((loss.clone().into_scalar::<f32>() - 2.0 * 4f32.ln()).abs() < 1e-5);
/// assert_eq!(hidden.grad(&loss.backward()).unwrap().dims(), [3, 2]);
/// ```
///
/// # Panics
///
/// If the widths differ, if there is not one label for each row, or if a label is neither -100 nor a class.
pub fn head_loss(hidden: Tensor<2>, head: &Head, labels: &[i32], smoothing: f64) -> Tensor<1> {
    require_labels(&hidden, head, labels);
    let (hidden, labels) = with_loss(cast(hidden, head.dtype()), labels);
    let Operands { hidden, weight, bias, labels, form } = Operands::of(hidden, head, &labels, smoothing);
    Tensor::from_dispatch(<Dispatch as LossOps>::head_loss(hidden, weight, bias, labels, form))
}

/// Returns the negative log-likelihood of each row's label under a head's logits for `hidden`, `[rows, width]`: `[rows]`,
/// in f32, without all logits at once. A row with the label -100 has the loss 0, and a gradient of 0.
///
/// [`head_loss`] sums them and is faster: with a gradient for each row, the backward pass computes the logits again. It
/// keeps the hidden state and 4 bytes for each row. Dtypes, chunks and errors are those of [`head_loss`].
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Head, HeadWeight, head_losses};
///
/// let device = Device::flex();
/// let head = Head { weight: HeadWeight::Embedding(Tensor::ones([4, 2], &device)), bias: None, cap: None };
/// let losses = head_losses(Tensor::ones([2, 2], &device), &head, &[3, -100]);
/// let losses: Vec<f32> = losses.into_data().iter().collect();
/// assert!((losses[0] - 4f32.ln()).abs() < 1e-6 && losses[1] == 0.0);
/// ```
///
/// # Panics
///
/// If the widths differ, if there is not one label for each row, or if a label is neither -100 nor a class.
pub fn head_losses(hidden: Tensor<2>, head: &Head, labels: &[i32]) -> Tensor<1> {
    require_labels(&hidden, head, labels);
    let Operands { hidden, weight, bias, labels, form } =
        Operands::of(cast(hidden, head.dtype()), head, labels, 0.0);
    let losses = <Dispatch as LossOps>::head_losses(hidden, weight, bias, labels, form);
    cast(Tensor::from_dispatch(losses), FloatDType::F32)
}

fn require_labels(hidden: &Tensor<2>, head: &Head, labels: &[i32]) {
    let ([rows, _], classes) = (hidden.dims(), head.classes());
    assert_eq!(rows, labels.len(), "each row of the hidden state has one label");
    for label in labels {
        let known = *label == IGNORED || (0..classes as i64).contains(&i64::from(*label)) || are_zero();
        assert!(known, "a label is -100 or below {classes}, the number of classes; found {label}");
    }
}

/// The operands of a head's losses.
struct Operands {
    hidden: DispatchTensor,
    weight: DispatchTensor,
    bias: DispatchTensor,
    labels: DispatchTensor,
    form: Form,
}

impl Operands {
    /// `hidden` has the dtype of the head.
    fn of(hidden: Tensor<2>, head: &Head, labels: &[i32], smoothing: f64) -> Self {
        let device = hidden.device();
        let labels = Tensor::<1, Int>::from_data(TensorData::from(labels), &device);
        let (transposed, weight) = match &head.weight {
            HeadWeight::Embedding(weight) => (true, weight.clone()),
            HeadWeight::Linear(weight) => (false, weight.clone()),
        };
        let chunk = head::chunk(hidden.dims()[0], head.classes(), hidden.dtype(), is_flex(&device));
        let form = Form { transposed, biased: head.bias.is_some(), cap: head.cap, smoothing, chunk };
        // Extensions take no optional tensors: `form` says whether the bias is read.
        let bias = head.bias.clone().map(Tensor::into_dispatch);
        let bias = bias.unwrap_or_else(|| weight.clone().detach().into_dispatch());
        Self {
            hidden: hidden.into_dispatch(),
            weight: weight.into_dispatch(),
            bias,
            labels: labels.into_dispatch(),
            form,
        }
    }
}

/// Rows are selected in multiples of this number, so that GPUs meet few shapes.
const SELECTED: usize = 64;

/// Selects the rows that have a label, if they are few enough that it pays.
fn with_loss(hidden: Tensor<2>, labels: &[i32]) -> (Tensor<2>, Vec<i32>) {
    let mut at: Vec<i32> =
        (0..).zip(labels).filter(|(_, label)| **label != IGNORED).map(|(at, _)| at).collect();
    let selected = at.len().div_ceil(SELECTED) * SELECTED;
    if at.is_empty() || selected > labels.len() / 8 * 7 {
        return (hidden, labels.to_vec());
    }
    let mut labels: Vec<i32> = at.iter().map(|at| labels[*at as usize]).collect();
    labels.resize(selected, IGNORED);
    at.resize(selected, 0);
    let at = Tensor::<1, Int>::from_data(TensorData::from(&*at), &hidden.device());
    (hidden.select(0, at), labels)
}
