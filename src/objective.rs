//! The training objective: the loss of a batch, and the scores of an evaluation.

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use firebrick_strategies::{Pass, TensorPlan};

use crate::Score;

/// The loss of one batch: a sum, and the number of items that it sums.
///
/// It is a sum, not a mean, because only the training loop knows the divisor: the supervised items of the whole global
/// batch, over all its micro-batches.
#[derive(Debug)]
pub struct Loss {
    /// Sum of the losses of the supervised items, shape `[1]`, in f32 whatever dtype the model computes in.
    pub sum: Tensor<1>,
    /// Number of supervised items. It must equal the batch's own count, which the loop uses before the forward pass.
    pub items: usize,
}

impl Loss {
    /// The loss of a batch without a token, for which there is nothing to compute: no items, and a sum of 0, `[1]` in f32
    /// on the pass's device. Its backward pass gives no parameter a gradient.
    pub fn of_nothing(pass: &Pass) -> Self {
        let sum = Tensor::zeros([1], (pass.device(), DType::F32));
        let sum = if pass.device().is_autodiff() { sum.require_grad() } else { sum };
        Self { sum, items: 0 }
    }
}

/// The results of one evaluated batch: its loss, and counts for the scores.
///
/// The loop sums the counts over all batches and ranks, and [`Objective::scores`] computes
/// the scores from the sums. So the F1 of a data set is computed from its counts, and is not a mean of its batches' F1.
#[derive(Debug)]
pub struct Evaluation {
    /// The summed loss.
    pub loss: Loss,
    /// Counts that can be summed over batches, in an order that the model defines. Every batch has the same number of
    /// counts.
    pub counts: Vec<f64>,
}

impl From<Loss> for Evaluation {
    fn from(loss: Loss) -> Self {
        Self { loss, counts: Vec::new() }
    }
}

/// A model that computes its loss on a batch.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, loss::{MseLoss, Reduction}};
/// use burn::tensor::{FloatDType, Tensor};
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
///         // The weights are bf16 under `Amp`: the input takes their dtype, the loss is f32 again.
///         let x = column(0).cast(FloatDType::from(self.linear.weight.val().dtype()));
///         let y = self.linear.forward(x).cast(FloatDType::F32);
///         Loss { sum: MseLoss::new().forward(y, column(1), Reduction::Sum), items: batch.0.len() }
///     }
/// }
///
/// # use burn::{nn::LinearConfig, optim::SgdConfig, tensor::Device};
/// # use firebrick::{Amp, Data, Schedule, Trainer};
/// # use firebrick::datasets::{Batches, DataError};
/// # struct Samples;
/// # impl Batches for Samples {
/// #     type Batch = Points;
/// #     fn samples(&self, _: u64) -> usize { 16 }
/// #     fn batch(&self, _: u64, at: std::ops::Range<usize>) -> Result<Points, DataError> {
/// #         Ok(Points(at.map(|i| { let x = i as f32 / 8.0 - 1.0; [x, 2.0 * x + 1.0] }).collect()))
/// #     }
/// # }
/// # let line = Line { linear: LinearConfig::new(1, 1).init(&Device::flex().autodiff()) };
/// let trained = Trainer::new().with(Amp::bf16()).epochs(100).fit(
///     line,
///     SgdConfig::new().init(),
///     Schedule::constant(0.1),
///     Data::new(Samples).micro_batch(8),
/// )?;
/// assert!(trained.report.train_loss < 0.1); // y = 2x + 1
/// # Ok::<(), firebrick::TrainError>(())
/// ```
pub trait Objective<B>: Module {
    /// Runs the forward pass and returns the summed loss over the batch's supervised items, tracked for gradients.
    ///
    /// Create the tensors of the batch on [`pass.device()`](Pass::device).
    fn loss(&self, batch: B, pass: &Pass) -> Loss;

    /// Returns the summed loss that evaluation reports, and counts for [`scores`](Self::scores). Defaults to the
    /// training loss without counts.
    fn evaluate(&self, batch: B, pass: &Pass) -> Evaluation {
        self.loss(batch, pass).into()
    }

    /// Computes the scores of an evaluation from its counts, summed over all batches. Before the run the trainer calls
    /// this with no counts, to learn the scores' names.
    ///
    /// ```
    /// # use burn::{module::Module, tensor::{Device, Tensor}};
    /// # use firebrick::{Evaluation, Loss, Objective, Pass, Score};
    /// # use firebrick::datasets::TokenBatch;
    /// # #[derive(Module, Debug)]
    /// # struct Tagger;
    /// # impl Tagger {
    /// #     fn right(&self) -> usize { 3 }
    /// # }
    /// impl Objective<TokenBatch> for Tagger {
    ///     # fn loss(&self, _: TokenBatch, pass: &Pass) -> Loss {
    ///     #     Loss { sum: Tensor::zeros([1], pass.device()), items: 4 }
    ///     # }
    ///     // fn loss ...
    ///
    ///     fn evaluate(&self, batch: TokenBatch, pass: &Pass) -> Evaluation {
    ///         let loss = self.loss(batch, pass);
    ///         let counts = vec![self.right() as f64, loss.items as f64];
    ///         Evaluation { loss, counts }
    ///     }
    ///
    ///     fn scores(&self, counts: &[f64]) -> Vec<Score> {
    ///         let [right, all] = *counts else { return vec![Score::higher("accuracy", f64::NAN)] };
    ///         vec![Score::higher("accuracy", right / all)]
    ///     }
    /// }
    /// # use firebrick::datasets::Batch;
    /// # let batch = TokenBatch::from_rows(vec![vec![1, 2, 3, 4, 5]], 0)?;
    /// # let evaluation = Tagger.evaluate(batch, &Pass::evaluate(&Device::flex()));
    /// # assert_eq!(Tagger.scores(&evaluation.counts)[0].value, 0.75);
    /// # Ok::<(), firebrick::datasets::DataError>(())
    /// ```
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        let _ = counts;
        Vec::new()
    }

    /// Returns the layers that the ranks of a tensor axis of a [`Mesh`](crate::Mesh) divide. Default: none, and such an axis is
    /// an error.
    fn tensor_plan(&self) -> TensorPlan {
        TensorPlan::new()
    }

    /// Computes what the loss has to know of the samples from a reference model, as many numbers for each, in order: for
    /// batches that [compare](firebrick_datasets::Batch::compared) the model with one. The trainer calls it on that model
    /// once for each sample, before the first update, and gives the batches the
    /// [answers](firebrick_datasets::Batch::answered). Default: none.
    fn reference(&self, batch: B, pass: &Pass) -> Option<Tensor<1>> {
        let _ = (batch, pass);
        None
    }
}
