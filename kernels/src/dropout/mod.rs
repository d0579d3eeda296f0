//! Dropout with a mask that is a function of each element's position, not of earlier draws.

pub(crate) mod mask;

use burn::tensor::{Bool, Device, Tensor, TensorData};

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
    let threshold = (prob * 4_294_967_296.0) as u32; // p * 2^32, rounded down
    let dims = x.dims();
    if threshold == 0 || dims.contains(&0) {
        return x;
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
    let dropped = mask(&Places::new(&draws, number, dims[0], axes), threshold, &x.device(), dims);
    // Fill instead of multiply: a dropped infinity becomes 0 too. The backward pass keeps only the mask.
    x.mask_fill(dropped, 0.0) * (1.0 / (1.0 - prob))
}

/// Computes the mask in the faster place. Flex's element-wise operations run single-threaded on host memory, so there
/// the host's threads fill the mask directly; on other backends the device computes it.
fn mask<const D: usize>(
    places: &Places,
    threshold: u32,
    device: &Device,
    dims: [usize; D],
) -> Tensor<D, Bool> {
    if is_flex(device) {
        return Tensor::from_data(TensorData::new(places.on_host(threshold), dims), device);
    }
    if D == 1 {
        return places.on_device::<2>(threshold, device).reshape(dims);
    }
    places.on_device(threshold, device)
}
