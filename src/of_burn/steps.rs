//! Trains a model that implements burn-train's steps.

use std::error::Error;
use std::fmt::{self, Debug, Formatter};
use std::ops::Range;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use burn::train::metric::{AccuracyMetric, Adaptor, HammingScore};
use burn::train::{
    ClassificationOutput, InferenceStep, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
    TrainOutput, TrainStep,
};
use firebrick_datasets::{Batch, Batches, DataError};

use super::dataset::SEED;
use super::{BurnMetric, Collated, FromBurn};
use crate::{Data, Evaluation, Loss, Objective, Pass, Score};

/// A batch for a model that implements burn-train's `TrainStep` and `InferenceStep`. Every such model is an
/// [`Objective`] of it, if its outputs are [`StepOutput`]s:
///
/// ```
/// # use burn::data::dataloader::batcher::Batcher;
/// # use burn::data::dataset::InMemDataset;
/// # use burn::module::Module;
/// # use burn::nn::{Linear, LinearConfig, loss::{MseLoss, Reduction}};
/// # use burn::optim::SgdConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
/// # use firebrick::{Accumulate, Data, Schedule, Trainer};
/// # struct Rows;
/// # impl Batcher<[f32; 2], Tensor<2>> for Rows {
/// #     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
/// #         Tensor::<1>::from_floats(items.concat().as_slice(), device).reshape([-1, 2])
/// #     }
/// # }
/// # #[derive(Module, Debug)]
/// # struct Line { linear: Linear }
/// # impl Line {
/// #     fn forward(&self, rows: Tensor<2>) -> RegressionOutput {
/// #         let (x, y) = (rows.clone().narrow(1, 0, 1), rows.narrow(1, 1, 1));
/// #         let output = self.linear.forward(x);
/// #         let loss = MseLoss::new().forward(output.clone(), y.clone(), Reduction::Mean);
/// #         RegressionOutput::new(loss, output, y)
/// #     }
/// # }
/// // What you have for burn-train stays as it is:
/// impl TrainStep for Line {
///     type Input = Tensor<2>;
///     type Output = RegressionOutput;
///
///     fn step(&self, rows: Tensor<2>) -> TrainOutput<RegressionOutput> {
///         let output = self.forward(rows);
///         TrainOutput::new(self, output.loss.backward(), output)
///     }
/// }
/// # impl InferenceStep for Line {
/// #     type Input = Tensor<2>;
/// #     type Output = RegressionOutput;
/// #     fn step(&self, rows: Tensor<2>) -> RegressionOutput { self.forward(rows) }
/// # }
///
/// # let train = InMemDataset::new((0..32).map(|i| [i as f32 / 32.0, 2.0 * i as f32 / 32.0]).collect());
/// # let model = Line { linear: LinearConfig::new(1, 1).init(&Device::flex().autodiff()) };
/// // The builder of the data loader and `SupervisedTraining` become `Data` and `Trainer`.
/// let data = Data::for_steps(train, Rows).micro_batch(4);
/// let trainer = Trainer::new().with(Accumulate(2)).epochs(40);
/// let trained = trainer.fit(model, SgdConfig::new().init(), Schedule::constant(0.3), data)?;
/// assert!(trained.report.train_loss < 0.01);
/// # Ok::<(), firebrick::TrainError>(())
/// ```
///
/// The gradients are those that `step` returns, and its loss must be the mean over the batch's
/// [items](super::Counts::items). Since `step` runs the backward pass by itself, a loss scale comes too late: use `Amp`
/// in bf16. `TrainStep::optimize` is not called, and Burn's own dropout draws from Burn's generator, so a run with it is
/// not reproducible. To lift these limits, implement [`Objective`] for the batch [`Collated`]:
///
/// ```
/// # use burn::module::Module;
/// # use burn::nn::{Linear, loss::{MseLoss, Reduction}};
/// # use burn::tensor::Tensor;
/// # use burn::train::RegressionOutput;
/// # use firebrick::datasets::Batch;
/// # use firebrick::of_burn::Collated;
/// # use firebrick::{Loss, Objective, Pass};
/// # #[derive(Module, Debug)]
/// # struct Line { linear: Linear }
/// # impl Line {
/// #     fn forward(&self, rows: Tensor<2>) -> RegressionOutput {
/// #         let (x, y) = (rows.clone().narrow(1, 0, 1), rows.narrow(1, 1, 1));
/// #         let output = self.linear.forward(x);
/// #         let loss = MseLoss::new().forward(output.clone(), y.clone(), Reduction::Mean);
/// #         RegressionOutput::new(loss, output, y)
/// #     }
/// # }
/// impl Objective<Collated<[f32; 2], Tensor<2>>> for Line {
///     fn loss(&self, batch: Collated<[f32; 2], Tensor<2>>, pass: &Pass) -> Loss {
///         let items = batch.items();
///         let output = self.forward(batch.on(pass.device()));
///         Loss { sum: output.loss * items as f32, items } // a sum, which the loop divides
///     }
/// }
/// ```
pub struct Stepped<I, O>(Collated<I, O>);

impl<I: Send + 'static, O: 'static> Batch for Stepped<I, O> {
    fn items(&self) -> usize {
        self.0.items()
    }

    fn samples(&self) -> usize {
        self.0.samples()
    }

    fn tokens(&self) -> usize {
        self.0.tokens()
    }
}

impl<I, O> Debug for Stepped<I, O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<I: Send + 'static, O: 'static> FromBurn<I, O> {
    /// Returns the same stream for a model that implements burn-train's steps.
    pub fn for_steps(self) -> impl Batches<Batch = Stepped<I, O>> {
        ForSteps(self)
    }
}

impl<I: Send + 'static, O: 'static> Data<Stepped<I, O>> {
    /// Trains a model that implements burn-train's `TrainStep` and `InferenceStep`, as it is, on a data set with its
    /// batcher, shuffled with the seed 42: see [`Stepped`].
    pub fn for_steps<E>(dataset: impl Dataset<I, E> + 'static, batcher: impl Batcher<I, O> + 'static) -> Self
    where
        E: Error + Send + Sync + 'static,
    {
        Self::new(FromBurn::new(dataset, batcher).shuffled(SEED).for_steps())
    }
}

struct ForSteps<I, O>(FromBurn<I, O>);

impl<I: Send + 'static, O: 'static> Batches for ForSteps<I, O> {
    type Batch = Stepped<I, O>;

    fn samples(&self, epoch: u64) -> usize {
        self.0.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<Stepped<I, O>, DataError> {
        self.0.batch(epoch, positions).map(Stepped)
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.0.padded_tokens(epoch, positions)
    }
}

/// What a step of burn-train returns, as far as a trainer reads it.
///
/// ```
/// use burn::tensor::Tensor;
/// use firebrick::of_burn::StepOutput;
///
/// struct Reconstruction { loss: Tensor<1> }
///
/// impl StepOutput for Reconstruction {
///     fn loss(&self) -> Tensor<1> { self.loss.clone() }
/// }
/// ```
pub trait StepOutput {
    /// The mean loss of the batch, shape `[1]`.
    fn loss(&self) -> Tensor<1>;

    /// Counts of an evaluation that can be summed over batches: see [`Evaluation::counts`]. Default: none.
    fn counts(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Computes the scores from the summed counts: see [`Objective::scores`]. Default: none.
    fn scores(counts: &[f64]) -> Vec<Score>
    where
        Self: Sized,
    {
        let _ = counts;
        Vec::new()
    }
}

/// The score is burn-train's accuracy, in percent.
impl StepOutput for ClassificationOutput {
    fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }

    fn counts(&self) -> Vec<f64> {
        accuracy().counts(&self.adapt()).to_vec()
    }

    fn scores(counts: &[f64]) -> Vec<Score> {
        vec![accuracy().score(counts)]
    }
}

fn accuracy() -> BurnMetric<AccuracyMetric> {
    BurnMetric::new("accuracy", AccuracyMetric::new())
}

/// The score is burn-train's Hamming score, in percent, of probabilities above one half.
impl StepOutput for MultiLabelClassificationOutput {
    fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }

    fn counts(&self) -> Vec<f64> {
        hamming().counts(&self.adapt()).to_vec()
    }

    fn scores(counts: &[f64]) -> Vec<Score> {
        vec![hamming().score(counts)]
    }
}

fn hamming() -> BurnMetric<HammingScore> {
    BurnMetric::new("hamming", HammingScore::new())
}

impl StepOutput for RegressionOutput {
    fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }
}

impl StepOutput for SequenceOutput {
    fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }
}

impl<M, I, O> Objective<Stepped<I, O>> for M
where
    M: Module + TrainStep<Input = O> + InferenceStep<Input = O>,
    <M as TrainStep>::Output: StepOutput,
    <M as InferenceStep>::Output: StepOutput,
    I: Send + 'static,
    O: Send + 'static,
{
    fn loss(&self, batch: Stepped<I, O>, pass: &Pass) -> Loss {
        let items = batch.items();
        let TrainOutput { grads, item } = TrainStep::step(self, batch.0.on(pass.device()));
        let value = pass.lift(summed(item.loss().inner(), items));
        let mut products = Products { grads, items, pass, sum: None };
        self.visit(&mut products);
        let sum = match products.sum {
            // Its value is 0, and its gradients are those of the step.
            Some(sum) => value + (sum.clone() - sum.detach()),
            None => value.require_grad(),
        };
        Loss { sum, items }
    }

    fn evaluate(&self, batch: Stepped<I, O>, pass: &Pass) -> Evaluation {
        let items = batch.items();
        let output = InferenceStep::step(self, batch.0.on(pass.device()));
        Evaluation { loss: Loss { sum: summed(output.loss(), items), items }, counts: output.counts() }
    }

    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        <<M as InferenceStep>::Output as StepOutput>::scores(counts)
    }
}

/// Returns the sum of the losses of a batch, in f32, from their mean.
fn summed(mean: Tensor<1>, items: usize) -> Tensor<1> {
    mean.mean().cast(FloatDType::F32) * items as f32
}

/// Sums the products of parameters and their gradients, a function whose gradients are these.
struct Products<'a> {
    grads: GradientsParams,
    items: usize,
    pass: &'a Pass,
    sum: Option<Tensor<1>>,
}

impl ModuleVisitor for Products<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A tied parameter has one gradient, for both of its places.
        let Some(grad) = self.grads.remove::<D>(param.id) else { return };
        let wide = |tensor: Tensor<D>| match tensor.dtype() {
            DType::F64 => tensor,
            _ => tensor.cast(FloatDType::F32),
        };
        let grad = self.pass.lift(wide(grad) * self.items as f32);
        let product = (wide(param.base()) * grad).sum().cast(FloatDType::F32);
        self.sum = Some(match self.sum.take() {
            Some(sum) => sum + product,
            None => product,
        });
    }
}
