//! Dropout with a mask that is a function of each element's position, not of earlier draws.
//!
//! On Flex, one pass on all cores computes the mask and applies it, forward and backward, and no mask is stored: the
//! backward pass keeps 8 bytes for each line along the last axis, and 4 for each element of such a line. On GPUs, one kernel
//! computes the mask from these bytes and applies it.
//!
//! ```text
//! mask.rs  the hash of a position, on the host and on a device, and the mask of one dropout on the host
//! cube.rs  the mask and its elements in one kernel
//! ```

#[cfg(feature = "cube")]
pub(crate) mod cube;
pub(crate) mod mask;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, backend_extension};
use burn::tensor::{DType, Device, Tensor, TensorData};

use self::mask::{Axis, Places};
use crate::autodiff::differentiable;
#[cfg(feature = "cube")]
use crate::device::is_cube;
use crate::device::is_flex;
use crate::elements::in_blocks;
use crate::off::Kernel;
use crate::{Draws, Ragged};

pub use self::mask::DropMask;

/// What the positions of a tensor's elements are relative to.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The random numbers of the batch.
    pub draws: Draws,
    /// The number of the call in the model: two sites of a model draw apart.
    pub number: u64,
    /// Where the samples stand, from whose starts positions count.
    pub samples: &'a Samples,
    /// The number of the tensor's first head or feature, where a rank has some of them: counts along the first axis after
    /// the rows that is of no positions.
    pub from: usize,
}

/// Drops elements of `x`, `[rows, ...]`, with probability `prob`, and scales the others by 1 / (1 - `prob`) (Srivastava
/// et al., 2014, *Dropout: a simple way to prevent neural networks from overfitting*, JMLR 15).
///
/// A row is a sample. The mask is a function of the [`Draws`], the site, the row and the element's position in it, the
/// same on every device. `positions` are the axes along which positions count from the start of the row's sample:
/// `&[1]` for `[rows, positions, width]`, `&[2, 3]` for attention weights `[rows, heads, query, key]`. Rows that are
/// [ragged](Samples::Ragged) have the masks that they have in rows of their own.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Draws, Ragged, Samples, Site, dropout};
///
/// let x = Tensor::<3>::ones([4, 3, 8], &Device::flex());
/// let site = |first, samples| Site { draws: Draws { seed: 7, epoch: 0, first }, number: 0, samples, from: 0 };
/// // Rows 2 and 3 of a batch are rows 0 and 1 of one that starts two samples later.
/// let whole = dropout(x.clone(), 0.5, &[1], site(0, &Samples::Columns));
/// let later = dropout(x.clone().narrow(0, 2, 2), 0.5, &[1], site(2, &Samples::Columns));
/// assert_eq!(whole.clone().narrow(0, 2, 2).into_data(), later.into_data());
/// // So they are if they stand one after the other.
/// let samples = Samples::Ragged(Ragged::new([3; 4]));
/// let ragged = dropout(x.reshape([1, 12, 8]), 0.5, &[1], site(0, &samples));
/// assert_eq!(ragged.reshape([4, 3, 8]).into_data(), whole.into_data());
/// ```
///
/// # Panics
///
/// If the samples are fewer than the rows of `x`; or if they are ragged and `x` isn't `[1, total, ...]` of at least
/// three axes with positions along axis 1.
pub fn dropout<const D: usize>(x: Tensor<D>, prob: f64, positions: &[usize], site: Site) -> Tensor<D> {
    dropout_along(x, prob, &counted(positions, &site), site)
}

/// Like [`dropout`], with samples of its own for each axis of positions.
pub(crate) fn dropout_along<const D: usize>(
    x: Tensor<D>,
    prob: f64,
    positions: &[(usize, &Samples)],
    site: Site,
) -> Tensor<D> {
    if let Some(mask) = mask_along(&x, prob, positions, site) {
        return Tensor::from_dispatch(<Dispatch as DropoutOps>::dropped(x.into_dispatch(), mask));
    }
    let (dims, device) = (x.dims(), x.device());
    let Some((places, threshold)) = places(dims, prob, positions, site) else { return x };
    let dropped = match D {
        _ if is_flex(&device) => {
            let mask = DropMask::new(&places, threshold, 1.0);
            Tensor::from_data(TensorData::new(mask.dropped(), dims), &device)
        }
        1 => places.on_device::<2>(threshold, &device).reshape(dims),
        _ => places.on_device(threshold, &device),
    };
    // Fill instead of multiply: a dropped infinity becomes 0 too. The backward pass keeps only the mask.
    x.mask_fill(dropped, 0.0) * (1.0 / (1.0 - prob))
}

/// Returns the mask of [`dropout`] if this crate applies it: on Flex and on GPUs, in f32 and half precision.
pub(crate) fn mask_of<const D: usize>(
    x: &Tensor<D>,
    prob: f64,
    positions: &[usize],
    site: Site,
) -> Option<Arc<DropMask>> {
    mask_along(x, prob, &counted(positions, &site), site)
}

/// The axes of positions, which count from the starts of the site's samples.
fn counted<'a>(positions: &[usize], site: &Site<'a>) -> Vec<(usize, &'a Samples)> {
    positions.iter().map(|axis| (*axis, site.samples)).collect()
}

fn mask_along<const D: usize>(
    x: &Tensor<D>,
    prob: f64,
    positions: &[(usize, &Samples)],
    site: Site,
) -> Option<Arc<DropMask>> {
    let narrow = matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16);
    if !narrow || !serves(&x.device()) || Kernel::Dropout.is_off() {
        return None;
    }
    let (places, threshold) = places(x.dims(), prob, positions, site)?;
    Some(Arc::new(DropMask::new(&places, threshold, 1.0 / (1.0 - prob))))
}

fn serves(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    if is_cube(device) {
        return true;
    }
    is_flex(device)
}

/// Returns the positions of the elements, and the number of words that drop an element. `None` if none does.
fn places<'a, const D: usize>(
    dims: [usize; D],
    prob: f64,
    positions: &[(usize, &'a Samples)],
    site: Site,
) -> Option<(Places<'a>, u32)> {
    let threshold = (prob * 4_294_967_296.0) as u32; // p * 2^32, rounded down
    if threshold == 0 || dims.contains(&0) {
        return None;
    }
    let Site { draws, number, samples, from } = site;
    let rows = match samples {
        Samples::Columns => dims[0],
        Samples::Starting(starts) | Samples::Selected { starts, .. } => {
            assert!(
                starts.len() >= dims[0],
                "Dropout: the pass knows the starts of {} rows, but the tensor has {}: a row must be a sample",
                starts.len(),
                dims[0],
            );
            dims[0]
        }
        Samples::Share { of, shape, own } => {
            assert!(
                D == 3 && dims[..2] == [1, own.len()] && matches!(positions, [(1, _)]),
                "Dropout: a share of {} positions must be [1, {0}, width] with positions along axis 1, found {dims:?}",
                own.len(),
            );
            match &**of {
                Samples::Ragged(rows) => rows.len(),
                Samples::Starting(starts) | Samples::Selected { starts, .. } => {
                    assert!(
                        starts.len() >= shape[0],
                        "Dropout: a share of {shape:?} has {} starts",
                        starts.len()
                    );
                    shape[0]
                }
                Samples::Columns | Samples::Share { .. } => shape[0],
            }
        }
        Samples::Ragged(rows) => {
            assert!(
                D > 2 && dims[..2] == [1, rows.total()] && matches!(positions, [(1, _)]),
                "Dropout: rows in one must be [1, {}, ..] with positions along axis 1, found {dims:?} with positions \
                 along {:?}",
                rows.total(),
                positions.iter().map(|(axis, _)| axis).collect::<Vec<_>>(),
            );
            rows.len()
        }
    };
    let samples_of = |at: usize| positions.iter().find(|(axis, _)| *axis == at).map(|(_, samples)| *samples);
    let features = (1..D).find(|at| samples_of(*at).is_none());
    let from = |at: usize| if features == Some(at) { from } else { 0 };
    let axis = |at: usize| Axis { length: dims[at], from: from(at), samples: samples_of(at) };
    let axes =
        if D == 1 { vec![Axis { length: 1, from: 0, samples: None }] } else { (1..D).map(axis).collect() };
    Some((Places::new(&draws, number, rows, axes), threshold))
}

/// Where the samples of a batch stand in a tensor `[rows, positions, ...]`, so that positions count from the start of
/// each sample. A clone shares the numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Samples {
    /// Each row is a sample from column 0 on.
    #[default]
    Columns,
    /// Each row is a sample from its column on, as in rows padded at the left. There may be more columns than rows.
    Starting(Arc<[usize]>),
    /// A single row holds the samples, one after the other.
    Ragged(Ragged),
    /// Each row has these columns of a wider row, in this order, in which its sample starts at the row's column: those of
    /// one of the ranks that share the tokens of a batch.
    Selected {
        /// The columns of the wider rows.
        columns: Arc<[usize]>,
        /// The column where each row's sample starts. There may be more of them than rows.
        starts: Arc<[usize]>,
    },
    /// A single row holds some positions of the rows, which are counted along one row after the other: those of one of the
    /// ranks that share layers. Positions after the last one belong to no sample.
    Share {
        /// Where the samples stand in all rows.
        of: Arc<Self>,
        /// The number of all rows and of their columns.
        shape: [usize; 2],
        /// The positions.
        own: Range<usize>,
    },
}

impl Samples {
    /// Returns where the samples stand in the keys that such positions read: of [selected](Self::Selected) columns, in the
    /// wider rows.
    pub(crate) fn of_keys(&self) -> Self {
        match self {
            Self::Selected { starts, .. } => Self::Starting(starts.clone()),
            other => other.clone(),
        }
    }

    /// Returns the column of the wider row at this one.
    pub(crate) fn column(&self, at: usize) -> usize {
        match self {
            Self::Selected { columns, .. } => columns[at],
            _ => at,
        }
    }
}

/// Dropout with its gradient, which is the same dropout.
///
/// Call [`dropout`], which takes tensors. On backends outside this crate's features, it panics.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait DropoutOps: Backend {
    /// Replaces the dropped elements by 0 and scales the others. `x` is in f32 or narrower, and not empty.
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self>;
}

impl DropoutOps for Flex {
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        let mask = &*mask;
        in_blocks(
            [x],
            #[inline(always)]
            |at, [x]: [&[f32]; 1], out: &mut [f32]| mask.drop_from(at, x, out),
        )
    }
}

impl<B: DropoutOps, C: CheckpointStrategy> DropoutOps for Autodiff<B, C> {
    fn dropped(x: FloatTensor<Self>, mask: Arc<DropMask>) -> FloatTensor<Self> {
        differentiable::<B, C, _, _>(
            [x],
            |[x]| (B::dropped(x, mask.clone()), mask),
            |mask, grad, _| [Some(B::dropped(grad, mask))],
        )
    }
}
