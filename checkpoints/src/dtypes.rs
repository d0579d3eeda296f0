//! The dtypes that a checkpoint holds.

use safetensors::Dtype;

/// All of them. Safetensors knows more, which no tensor of a training run has.
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

/// Bytes of one element, if it is a dtype that a checkpoint holds.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    DTYPES.contains(&dtype).then(|| dtype.bitsize() / 8)
}

/// Bytes of a tensor, if they can be counted.
pub(crate) fn tensor_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let element = element_bytes(dtype)?;
    shape.iter().try_fold(element, |bytes, &length| bytes.checked_mul(length))
}
