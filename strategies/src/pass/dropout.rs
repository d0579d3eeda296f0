//! Dropout: a layer whose mask is a function of each element's position, not of earlier draws.

use burn::module::Module;
use burn::tensor::Tensor;
use firebrick_kernels::{Site, add, add_dropout, dropout};

use crate::Pass;

/// Drops elements at random in training, and scales the others by 1 / (1 - p) (Srivastava et al., 2014, *Dropout: a
/// simple way to prevent neural networks from overfitting*, JMLR 15).
///
/// The mask is a function of the run's seed, the epoch, the sample's position in the epoch, the element's position in
/// the sample, and the index of the call in the model (counter-based random numbers: Salmon et al., 2011, *Parallel
/// random numbers: as easy as 1, 2, 3*, SC11). The mask is therefore the same
///
/// - in a block's forward pass and in its recomputation during the backward pass;
/// - after a resume and in an uninterrupted run;
/// - for every division of the global batch into micro-batches and ranks, and for every padding;
/// - on every device.
///
/// Burn's own [`burn::nn::Dropout`] draws from a generator that the whole process shares and that cannot be saved, so
/// it has none of these properties. To replace it, keep the field, change its type, and pass the [`Pass`] to its
/// `forward`. `Dropout` has no parameters: saved weights still fit.
///
/// ```
/// use burn::module::Module;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use firebrick_strategies::{Draws, Dropout, Pass};
///
/// #[derive(Module, Debug)]
/// struct Block {
///     linear: Linear,
///     dropout: Dropout, // was burn::nn::Dropout, made by DropoutConfig::new(0.5).init()
/// }
///
/// impl Block {
///     /// Maps `[rows, positions, width]` to the same shape.
///     fn forward(&self, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
///         self.dropout.forward(self.linear.forward(x), pass) // was self.dropout.forward(..)
///     }
/// }
///
/// let device = Device::flex();
/// let block = Block { linear: LinearConfig::new(8, 8).init(&device), dropout: Dropout::new(0.5) };
/// let x = Tensor::<3>::ones([4, 3, 8], &device);
/// let pass = |first| Pass::train(&device).drawing(Draws { seed: 7, epoch: 0, first });
///
/// // Rows 2 and 3 of a batch are rows 0 and 1 of one that starts two samples later.
/// let whole = block.forward(x.clone(), &pass(0)).narrow(0, 2, 2);
/// let later = block.forward(x.clone().narrow(0, 2, 2), &pass(2));
/// assert_eq!(whole.into_data(), later.into_data());
/// // Evaluation drops nothing.
/// let pass = Pass::evaluate(&device);
/// let y = block.forward(x.clone(), &pass);
/// assert_eq!(y.into_data(), block.linear.forward(x).into_data());
/// ```
///
/// It drops in a pass that [trains](Pass::is_training), whether or not the tensor is tracked for gradients, because the
/// first forward pass of a recomputed block runs outside autodiff. To disable dropout in a frozen part of a model, give
/// that part a dropout of 0.
#[derive(Module, Debug)]
pub struct Dropout {
    prob: f64,
}

impl Dropout {
    /// Drops each element with probability `prob`.
    ///
    /// # Panics
    ///
    /// If `prob` is below 0 or at least 1, like Burn's `Dropout`.
    pub fn new(prob: f64) -> Self {
        assert!((0.0..1.0).contains(&prob), "Dropout: prob must be at least 0 and below 1, found {prob}");
        Self { prob }
    }

    /// Returns the probability of dropping an element.
    pub fn prob(&self) -> f64 {
        self.prob
    }

    /// Drops elements of `x`, `[rows, positions, ...]`, or `[rows, features]`, of any float dtype.
    ///
    /// A row is a sample of the batch, in the batch's order. Positions count along a sample; if samples do not start at
    /// column 0, tell the pass with [`starting_at`](Pass::starting_at) or [`ragged`](Pass::ragged).
    ///
    /// # Panics
    ///
    /// If the pass has start columns for fewer rows than `x` has, or ragged rows and `x` isn't `[1, total, ...]`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        let positions: &[usize] = if D > 2 { &[1] } else { &[] };
        self.forward_along(x, positions, pass)
    }

    /// Like [`forward`](Self::forward), for a tensor whose positions are along other axes: `&[2, 3]` for attention
    /// weights `[rows, heads, query, key]`. Rows are along axis 0.
    ///
    /// # Panics
    ///
    /// The same as [`forward`](Self::forward).
    pub fn forward_along<const D: usize>(&self, x: Tensor<D>, positions: &[usize], pass: &Pass) -> Tensor<D> {
        match self.at(pass) {
            Some((prob, site)) => dropout(x, prob, positions, site),
            None => x,
        }
    }

    /// Takes the next site of the pass for an operation that drops by itself, such as
    /// [`attention`](firebrick_kernels::attention()), and returns the probability. `None` if the pass doesn't train.
    pub fn at<'a>(&self, pass: &'a Pass) -> Option<(f64, Site<'a>)> {
        // Each call takes a site, so that later sites do not depend on whether it drops.
        let site = Site {
            draws: pass.draws(),
            number: pass.next_site(),
            samples: pass.own_samples(),
            from: pass.first_of_share,
        };
        pass.is_training().then_some((self.prob, site))
    }

    /// Returns `x + self.forward(y, pass)`, in one pass over memory on the CPU: the end of a residual branch. In half
    /// precision, the sum alone is rounded.
    ///
    /// # Panics
    ///
    /// The same as [`forward`](Self::forward), and if the shapes cannot be broadcast or the dtypes differ.
    pub fn forward_onto<const D: usize>(&self, x: Tensor<D>, y: Tensor<D>, pass: &Pass) -> Tensor<D> {
        let positions: &[usize] = if D > 2 { &[1] } else { &[] };
        match self.at(pass) {
            Some((prob, site)) => add_dropout(x, y, prob, positions, site),
            None => add(x, y),
        }
    }
}

#[cfg(test)]
#[path = "dropout_tests.rs"]
mod tests;
