//! A rank's tensors as pieces of files.

use std::sync::Arc;

use burn::tensor::{Bytes, DType};
use firebrick_checkpoints::{Bytes as FileBytes, Dtype, PackedMatrices, Piece};
use firebrick_kernels::packed::Packed;

use super::dtype::of_file;
use super::layout::Place;

/// The piece of a tensor that is laid out like its parameter; `shape` is the part that this rank holds, padding
/// included. `None` if this rank writes no part of it, or if files do not support its dtype.
pub(super) fn piece(
    place: &Place,
    name: String,
    dtype: DType,
    shape: &[usize],
    bytes: Bytes,
) -> Option<Piece> {
    if !place.is_written() {
        return None;
    }
    let dtype = of_file(dtype)?;
    // A state with a shape other than the parameter's, such as a factored one, is not split by rows.
    let shard = place.shard.as_ref().filter(|shard| shape.first() == Some(&shard.padded));
    Some(match shard {
        None => Piece { name, dtype, shape: shape.to_vec(), rows: None, bytes: FileBytes::new(AllOf(bytes)) },
        Some(shard) => {
            let of_row = bytes.len() / shard.padded.max(1);
            let mut whole = shape.to_vec();
            whole[0] = shard.whole;
            let bytes = FileBytes::new(FirstOf { length: of_row * shard.rows.len(), bytes });
            Piece { name, dtype, shape: whole, rows: Some(shard.rows.clone()), bytes }
        }
    })
}

/// The pieces of a packed matrix: its codes, which are not copied, and its scales.
pub(super) fn packed_pieces(path: &str, matrix: &Arc<Packed>) -> [Piece; 2] {
    let scales: Vec<u8> = matrix.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let whole = |name, dtype, length, bytes| Piece { name, dtype, shape: vec![length], rows: None, bytes };
    [
        whole(
            PackedMatrices::codes_of(path),
            Dtype::U8,
            matrix.codes.len(),
            FileBytes::new(CodesOf(matrix.clone())),
        ),
        whole(PackedMatrices::scales_of(path), Dtype::F32, matrix.scales.len(), scales.into()),
    ]
}

struct CodesOf(Arc<Packed>);

impl AsRef<[u8]> for CodesOf {
    fn as_ref(&self) -> &[u8] {
        &self.0.codes
    }
}

struct AllOf(Bytes);

impl AsRef<[u8]> for AllOf {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes before the padding.
struct FirstOf {
    bytes: Bytes,
    length: usize,
}

impl AsRef<[u8]> for FirstOf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
