//! A rank's tensors as pieces of files.

use std::io;
use std::sync::Arc;

use burn::tensor::{Bytes, DType};
use firebrick_checkpoints::{Bytes as FileBytes, Dtype, PackedMatrices, Piece};
use firebrick_kernels::packed::Packed;

use super::dtype::of_file;
use super::layout::Place;
use crate::scratch::{Stored, StoredTensor};

/// The piece of a tensor that is laid out like its parameter; `shape` is the part that this rank holds, padding
/// included. `None` if this rank writes no part of it, or if files do not support its dtype.
pub(super) fn piece(
    place: &Place,
    name: String,
    dtype: DType,
    shape: &[usize],
    bytes: Bytes,
) -> Option<Piece> {
    let all = bytes.len();
    of_first(place, name, dtype, shape, all, |length| match length == all {
        true => FileBytes::new(AllOf(bytes)),
        false => FileBytes::new(FirstOf { bytes, length }),
    })
}

/// The same of a tensor on a disk, which is read when it is written.
pub(super) fn piece_on_disk(
    place: &Place,
    name: String,
    bucket: &Arc<Stored>,
    index: usize,
) -> Option<Piece> {
    let StoredTensor { dtype, shape, bytes, .. } = &bucket.tensors[index];
    of_first(place, name, *dtype, shape, *bytes, |length| {
        let bucket = bucket.clone();
        FileBytes::read_by(length, move || {
            let mut bytes = bucket.read_tensor(index).map_err(io::Error::other)?;
            bytes.truncate(length);
            Ok(bytes)
        })
    })
}

/// The piece of a tensor of so many bytes; `first` returns those before the padding.
fn of_first(
    place: &Place,
    name: String,
    dtype: DType,
    shape: &[usize],
    bytes: usize,
    first: impl FnOnce(usize) -> FileBytes,
) -> Option<Piece> {
    if !place.is_written() {
        return None;
    }
    let dtype = of_file(dtype)?;
    // A state with a shape other than the parameter's, such as a factored one, is not split by rows.
    let shard = place.shard.as_ref().filter(|shard| shape.first() == Some(&shard.padded));
    Some(match shard {
        None => Piece { name, dtype, shape: shape.to_vec(), rows: None, bytes: first(bytes) },
        Some(shard) => {
            let of_row = bytes / shard.padded.max(1);
            let mut whole = shape.to_vec();
            whole[0] = shard.whole;
            let bytes = first(of_row * shard.rows.len());
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
