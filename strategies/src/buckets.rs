//! Runs of tensors that are on their way together.

use burn::module::ParamId;
use burn::tensor::Tensor;

/// Bytes in flight at once by default: large enough to use a network or a bus well, and small beside a model.
pub(crate) const BUCKET_BYTES: usize = 32 << 20;

/// Splits items into runs of neighbours of at most `most` bytes each, and of at least one item.
pub(crate) fn buckets<T>(all: &[T], most: usize, bytes: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut sum = 0;
    let mut runs = Vec::new();
    let mut start = 0;
    for (end, item) in all.iter().enumerate() {
        if sum > 0 && sum + bytes(item) > most {
            runs.push(&all[start..end]);
            (start, sum) = (end, 0);
        }
        sum += bytes(item);
    }
    if start < all.len() {
        runs.push(&all[start..]);
    }
    runs
}

/// Returns the bytes of a flat tensor.
pub(crate) fn bytes((_, flat): &(ParamId, Tensor<1>)) -> usize {
    bytes_of(flat)
}

/// Returns the bytes of a flat tensor.
pub(crate) fn bytes_of(flat: &Tensor<1>) -> usize {
    flat.dims()[0] * flat.dtype().size()
}
