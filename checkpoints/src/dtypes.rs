//! The dtypes that a checkpoint holds.

use safetensors::Dtype;

/// The supported dtypes. Safetensors has more, which no tensor of a training run uses.
pub(crate) const DTYPES: [Dtype; 13] = [
    Dtype::F64,
    Dtype::F32,
    Dtype::BF16,
    Dtype::F16,
    Dtype::I64,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::U64,
    Dtype::U32,
    Dtype::U16,
    Dtype::U8,
    Dtype::BOOL,
];

/// Returns the bytes of one element, if a checkpoint can hold the dtype.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    DTYPES.contains(&dtype).then(|| dtype.bitsize() / 8)
}

/// Returns the bytes of a tensor, unless the count overflows or the dtype is unsupported.
pub(crate) fn tensor_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let element = element_bytes(dtype)?;
    shape.iter().try_fold(element, |bytes, &length| bytes.checked_mul(length))
}
