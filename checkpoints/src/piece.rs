//! The data a rank saves.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use crate::Scalar;
use crate::elements::is_finite;

/// A tensor's bytes, in whatever owns them: a vector, or a buffer of a tensor library.
///
/// Takes any `AsRef<[u8]>` that returns the same bytes each time, without copying it.
pub struct Bytes(Box<dyn AsRef<[u8]> + Send + Sync>);

impl Bytes {
    /// Takes the owner of the bytes.
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
    /// The rows of the first axis in this piece, or `None` for the whole tensor.
    pub rows: Option<Range<usize>>,
    /// The elements of these rows, in row-major order.
    pub bytes: Bytes,
}

/// The state that one rank saves. Only one of the ranks passes a tensor that all hold whole.
#[derive(Debug, Default)]
pub struct RankState {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks that save.
    pub ranks: usize,
    /// The parameters, or this rank's rows of them.
    pub parameters: Vec<Piece>,
    /// The tensors of the optimizer's state.
    pub optimizer: Vec<Piece>,
    /// The numbers of the optimizer's state, by `PATH/FIELD`. Several ranks may pass the same number if it is equal.
    pub scalars: BTreeMap<String, Scalar>,
    /// The averaged weights, if the run averages weights: on all ranks or on none.
    pub average: Option<Vec<Piece>>,
}

impl RankState {
    /// Returns whether all floats in its tensors are finite: weights, moments and averages. Reads every byte.
    pub fn is_finite(&self) -> bool {
        let pieces = self.parameters.iter().chain(&self.optimizer).chain(self.average.iter().flatten());
        pieces.into_iter().all(|piece| is_finite(piece.dtype, piece.bytes.as_ref()))
    }
}
