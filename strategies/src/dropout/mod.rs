//! Dropout whose mask is a function of where an element stands, not of what was drawn before.

mod mask;

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use self::mask::{Axis, Places};
use crate::Pass;

/// Drops elements at random while training, and scales the others by 1 / (1 - p)
/// (Srivastava et al., 2014, *Dropout: a simple way to prevent neural networks from overfitting*,
/// JMLR 15).
///
/// Whether an element is dropped is a function of the run's seed, the epoch, the sample's place in
/// the epoch, the element's place in the sample, and which of the model's calls it is
/// (counter-based random numbers: Salmon et al., 2011, *Parallel random numbers: as easy as 1, 2,
/// 3*, SC11). So the mask is the same
///
/// - in a block's forward pass and in its re-run during the backward pass;
/// - after a resume as in the run that was not interrupted;
/// - however the global batch is cut into micro-batches and ranks, and however rows are padded;
/// - on every device.
///
/// Burn's own [`burn::nn::Dropout`] draws from a generator that is shared by the whole process and
/// can't be saved, so it has none of these. To replace it, keep the field, give it this type, and
/// pass the [`Pass`] down to where it is called. It has no parameters: saved weights fit as before.
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
///     /// `[rows, positions, width]` to the same.
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
/// // An evaluation drops nothing.
/// let pass = Pass::evaluate(&device);
/// let y = block.forward(x.clone(), &pass);
/// assert_eq!(y.into_data(), block.linear.forward(x).into_data());
/// ```
///
/// It drops in a pass that [trains](Pass::is_training), whether or not the tensor is tracked for
/// gradients: a block that is to be re-run goes forward outside autodiff first. To keep a frozen
/// part of a model from dropping, give that part a dropout of 0.
#[derive(Module, Debug)]
pub struct Dropout {
    prob: f64,
}

impl Dropout {
    /// Drops each element with probability `prob`.
    ///
    /// # Panics
    ///
    /// Unless `prob` is at least 0 and below 1, as Burn's does.
    pub fn new(prob: f64) -> Self {
        assert!((0.0..1.0).contains(&prob), "Dropout: prob must be at least 0 and below 1, found {prob}");
        Self { prob }
    }

    /// The probability of being dropped.
    pub fn prob(&self) -> f64 {
        self.prob
    }

    /// Drops elements of `x`, `[rows, positions, ...]`, or `[rows, features]`, of any float dtype.
    ///
    /// A row is a sample of the batch, in the batch's order. The positions are those along a
    /// sample; where samples do not start at column 0, the pass
    /// [knows it](Pass::starting_at).
    ///
    /// # Panics
    ///
    /// Where the pass knows starts of fewer rows than `x` has.
    pub fn forward<const D: usize>(&self, x: Tensor<D>, pass: &Pass) -> Tensor<D> {
        let positions: &[usize] = if D > 2 { &[1] } else { &[] };
        self.forward_along(x, positions, pass)
    }

    /// As [`forward`](Self::forward), for a tensor whose positions are along other axes:
    /// `&[2, 3]` for attention weights `[rows, heads, query, key]`. Rows are along axis 0.
    ///
    /// # Panics
    ///
    /// As [`forward`](Self::forward).
    pub fn forward_along<const D: usize>(&self, x: Tensor<D>, positions: &[usize], pass: &Pass) -> Tensor<D> {
        // Taken by each call, so that the sites after it do not depend on whether it drops.
        let site = pass.next_site();
        let threshold = (self.prob * 4_294_967_296.0) as u32; // p * 2^32, rounded down
        let dims = x.dims();
        if !pass.is_training() || threshold == 0 || dims.contains(&0) {
            return x;
        }
        let starts = pass.starts();
        assert!(
            starts.is_none_or(|starts| starts.len() >= dims[0]),
            "Dropout: the pass knows the starts of {} rows, but the tensor has {}: a row must be a sample",
            starts.map_or(0, <[usize]>::len),
            dims[0],
        );
        let axis = |at: usize| Axis { length: dims[at], starts: starts.filter(|_| positions.contains(&at)) };
        let axes = if D == 1 { vec![Axis { length: 1, starts: None }] } else { (1..D).map(axis).collect() };
        let dropped = mask(&Places::new(&pass.draws(), site, dims[0], axes), threshold, &x.device(), dims);
        // Filled, not multiplied: a dropped infinity is 0 too. The backward pass keeps only the mask.
        x.mask_fill(dropped, 0.0) * (1.0 / (1.0 - self.prob))
    }
}

/// The mask, made by whoever is quicker. Flex's element-wise operations are single threads over the
/// host's memory, so there the host's threads fill it directly; elsewhere it is made on the device.
fn mask<const D: usize>(
    places: &Places,
    threshold: u32,
    device: &Device,
    dims: [usize; D],
) -> Tensor<D, Bool> {
    #[cfg(feature = "flex")]
    if device.clone().inner() == Device::flex() {
        let data = burn::tensor::TensorData::new(places.on_host(threshold), dims);
        return Tensor::from_data(data, device);
    }
    if D == 1 {
        return places.on_device::<2>(threshold, device).reshape(dims);
    }
    places.on_device(threshold, device)
}

#[cfg(test)]
#[path = "dropout_tests.rs"]
mod tests;
