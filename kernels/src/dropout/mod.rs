//! Dropout with a mask that is a function of each element's position, not of earlier draws.
//!
//! On Flex, one pass on all cores computes the mask and applies it, forward and backward, and no mask is stored: the
//! backward pass keeps 8 bytes for each line along the last axis, and 4 for each element of such a line.
//!
//! ```text
//! mask.rs       the hash of a position, on the host and on a device
//! drop_mask.rs  the mask of one dropout on the host
//! ops.rs        the operation of a backend, and its gradient
//! ```

mod drop_mask;
mod mask;
mod ops;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Tensor, TensorData};

pub use self::drop_mask::DropMask;
pub use self::ops::{DropoutOps, Dropping};

use self::mask::{Axis, Places};
use crate::Draws;
use crate::device::is_flex;

/// What the positions of a tensor's elements are relative to.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// The random numbers of the batch.
    pub draws: Draws,
    /// The number of the call in the model: two sites of a model draw apart.
    pub number: u64,
    /// The column at which each row's sample starts, from which positions count. `None`: column 0.
    pub starts: Option<&'a [usize]>,
}

/// Drops elements of `x`, `[rows, ...]`, with probability `prob`, and scales the others by 1 / (1 - `prob`) (Srivastava
/// et al., 2014, *Dropout: a simple way to prevent neural networks from overfitting*, JMLR 15).
///
/// A row is a sample. The mask is a function of the [`Draws`], the site, the row and the element's position in it, the
/// same on every device. `positions` are the axes along which positions count from the start of the row's sample:
/// `&[1]` for `[rows, positions, width]`, `&[2, 3]` for attention weights `[rows, heads, query, key]`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Draws, Site, dropout};
///
/// let x = Tensor::<3>::ones([4, 3, 8], &Device::flex());
/// let site = |first| Site { draws: Draws { seed: 7, epoch: 0, first }, number: 0, starts: None };
/// // Rows 2 and 3 of a batch are rows 0 and 1 of one that starts two samples later.
/// let whole = dropout(x.clone(), 0.5, &[1], site(0)).narrow(0, 2, 2);
/// let later = dropout(x.narrow(0, 2, 2), 0.5, &[1], site(2));
/// assert_eq!(whole.into_data(), later.into_data());
/// ```
///
/// # Panics
///
/// If `starts` has fewer columns than `x` has rows.
pub fn dropout<const D: usize>(x: Tensor<D>, prob: f64, positions: &[usize], site: Site) -> Tensor<D> {
    if let Some(mask) = mask_of(&x, prob, positions, site) {
        return Tensor::from_dispatch(<Dispatch as DropoutOps>::own_dropout(x.into_dispatch(), mask));
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

/// Returns the mask of [`dropout`] if this crate applies it: on Flex, in f32 and half precision.
pub(crate) fn mask_of<const D: usize>(
    x: &Tensor<D>,
    prob: f64,
    positions: &[usize],
    site: Site,
) -> Option<Arc<DropMask>> {
    let narrow = matches!(x.dtype(), DType::F32 | DType::BF16 | DType::F16);
    if !narrow || !is_flex(&x.device()) {
        return None;
    }
    let (places, threshold) = places(x.dims(), prob, positions, site)?;
    Some(Arc::new(DropMask::new(&places, threshold, 1.0 / (1.0 - prob))))
}

/// Returns the positions of the elements, and the number of words that drop an element. `None` if none does.
fn places<'a, const D: usize>(
    dims: [usize; D],
    prob: f64,
    positions: &[usize],
    site: Site<'a>,
) -> Option<(Places<'a>, u32)> {
    let threshold = (prob * 4_294_967_296.0) as u32; // p * 2^32, rounded down
    if threshold == 0 || dims.contains(&0) {
        return None;
    }
    let Site { draws, number, starts } = site;
    assert!(
        starts.is_none_or(|starts| starts.len() >= dims[0]),
        "Dropout: the pass knows the starts of {} rows, but the tensor has {}: a row must be a sample",
        starts.map_or(0, <[usize]>::len),
        dims[0],
    );
    let axis = |at: usize| Axis { length: dims[at], starts: starts.filter(|_| positions.contains(&at)) };
    let axes = if D == 1 { vec![Axis { length: 1, starts: None }] } else { (1..D).map(axis).collect() };
    Some((Places::new(&draws, number, dims[0], axes), threshold))
}
