//! What a model is trained to do.

use burn::module::Module;
use burn::tensor::Tensor;
use firebrick_strategies::Pass;

/// The loss of one batch: a sum, and over how many items.
///
/// It is a sum, not a mean, because only the loop knows the divisor: the supervised items of the
/// whole window, over all its micro-batches.
#[derive(Debug)]
pub struct Loss {
    /// Sum of the losses of the supervised items, shape `[1]`, f32 whatever the model computes in.
    pub sum: Tensor<1>,
    /// How many items are supervised. It must equal the batch's own count, which the loop has used
    /// before the forward pass.
    pub items: usize,
}

/// A model that can say how wrong it is about a batch.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, loss::{MseLoss, Reduction}};
/// use burn::tensor::Tensor;
/// use firebrick::{Loss, Objective, Pass};
/// use firebrick::datasets::Batch;
///
/// /// Rows of `[x, y]`.
/// struct Points(Vec<[f32; 2]>);
///
/// impl Batch for Points {
///     fn items(&self) -> usize { self.0.len() }
///     fn samples(&self) -> usize { self.0.len() }
///     fn tokens(&self) -> usize { self.0.len() }
/// }
///
/// #[derive(Module, Debug)]
/// struct Line { linear: Linear }
///
/// impl Objective<Points> for Line {
///     fn loss(&self, batch: Points, pass: &Pass) -> Loss {
///         let column = |i: usize| -> Tensor<2> {
///             let values: Vec<f32> = batch.0.iter().map(|point| point[i]).collect();
///             Tensor::<1>::from_data(values.as_slice(), pass.device()).reshape([-1, 1])
///         };
///         let sum = MseLoss::new().forward(self.linear.forward(column(0)), column(1), Reduction::Sum);
///         Loss { sum, items: batch.0.len() }
///     }
/// }
/// ```
pub trait Objective<B>: Module {
    /// The forward pass: the summed loss over the batch's supervised items, tracked for gradients.
    ///
    /// Tensors made from the batch belong on [`pass.device()`](Pass::device).
    fn loss(&self, batch: B, pass: &Pass) -> Loss;

    /// The summed loss that evaluation reports; the same as in training unless a model says
    /// otherwise.
    fn evaluate(&self, batch: B, pass: &Pass) -> Loss {
        self.loss(batch, pass)
    }
}
