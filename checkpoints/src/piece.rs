//! What a rank hands over to be saved.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use crate::Scalar;
use crate::elements::is_finite;

/// Bytes of a tensor, in whatever owns them: a vector, or a buffer of a tensor library.
///
/// Anything that is `AsRef<[u8]>` and gives the same bytes each time will do; it is not copied.
pub struct Bytes(Box<dyn AsRef<[u8]> + Send + Sync>);

impl Bytes {
    /// Takes what owns the bytes.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Box::new(owner))
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.as_ref().len())
    }
}

/// One rank's piece of one tensor.
#[derive(Debug)]
pub struct Piece {
    /// The module path, as in `blocks.0.attention.query.weight`; for the optimizer's state `PATH/FIELD`, as in
    /// `blocks.0.weight/momentum.moment_1`.
    pub name: String,
    /// The dtype of its elements, which are little-endian.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// The rows of the first axis that this piece holds, or `None` where it is the whole tensor.
    pub rows: Option<Range<usize>>,
    /// The elements of these rows, in row-major order.
    pub bytes: Bytes,
}

/// What one rank saves. What all ranks hold alike is handed over by one of them only.
#[derive(Debug, Default)]
pub struct RankState {
    /// This rank, from 0.
    pub rank: usize,
    /// How many ranks save.
    pub ranks: usize,
    /// Parameters, or this rank's rows of them.
    pub parameters: Vec<Piece>,
    /// Tensors of the optimizer's state.
    pub optimizer: Vec<Piece>,
    /// Numbers of the optimizer's state, by `PATH/FIELD`. Ranks may hand over the same number, if it is equal.
    pub scalars: BTreeMap<String, Scalar>,
    /// The averaged weights, where weights are averaged: on all ranks or on none.
    pub average: Option<Vec<Piece>>,
}

impl RankState {
    /// Whether all floats in its tensors are finite: weights, moments and averages. It reads every byte.
    pub fn is_finite(&self) -> bool {
        let pieces = self.parameters.iter().chain(&self.optimizer).chain(self.average.iter().flatten());
        pieces.into_iter().all(|piece| is_finite(piece.dtype, piece.bytes.as_ref()))
    }
}
