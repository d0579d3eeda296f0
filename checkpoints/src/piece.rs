//! The data a rank saves.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::{fmt, io};

use safetensors::Dtype;

use crate::Scalar;
use crate::elements::is_finite;
use crate::error::{CheckpointError, Result};

/// A tensor's bytes: in whatever owns them, a vector or a buffer of a tensor library, or read when they are needed.
pub struct Bytes(Owner);

type Read = dyn Fn() -> io::Result<Vec<u8>> + Send + Sync;

enum Owner {
    Held(Box<dyn AsRef<[u8]> + Send + Sync>),
    Elsewhere { length: usize, read: Box<Read> },
}

impl Bytes {
    /// Takes the owner of the bytes, without copying them. It must return the same bytes each time.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Owner::Held(Box::new(owner)))
    }

    /// Takes what reads so many bytes. It is called each time they are needed, so that only one tensor at a time is in
    /// memory, and must return the same bytes each time.
    pub fn read_by(length: usize, read: impl Fn() -> io::Result<Vec<u8>> + Send + Sync + 'static) -> Self {
        Self(Owner::Elsewhere { length, read: Box::new(read) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Owner::Held(owner) => (**owner).as_ref().len(),
            Owner::Elsewhere { length, .. } => *length,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lends the bytes, or reads them.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn get(&self) -> io::Result<Cow<'_, [u8]>> {
        match &self.0 {
            Owner::Held(owner) => Ok(Cow::Borrowed((**owner).as_ref())),
            Owner::Elsewhere { length, read } => {
                let bytes = read()?;
                match bytes.len() == *length {
                    true => Ok(Cow::Owned(bytes)),
                    false => Err(io::Error::other(format!("expected {length} bytes, found {}", bytes.len()))),
                }
            }
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Piece {
    /// Lends the piece's bytes, or reads them.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Unread`] if they cannot be read.
    pub(crate) fn content(&self) -> Result<Cow<'_, [u8]>> {
        self.bytes.get().map_err(|source| CheckpointError::Unread { tensor: self.name.clone(), source })
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
    /// The rows of the first axis in this piece, or `None` for all.
    pub rows: Option<Range<usize>>,
    /// The columns of the last axis in this piece, or `None` for all. Each range is one of adjacent columns; they ascend
    /// and do not overlap. A range may be empty if it is the only one. Of a matrix, the piece holds these columns of its
    /// rows, side by side. Of a tensor with one axis, it holds these elements, and `rows` is `None`. Tensors with other
    /// numbers of axes cannot be cut into columns.
    pub columns: Option<Vec<Range<usize>>>,
    /// The elements of these rows and columns, in row-major order.
    pub bytes: Bytes,
}

/// The state that one rank saves. Only one of the ranks passes a tensor that all hold whole.
#[derive(Debug, Default)]
pub struct RankState {
    /// This rank, from 0.
    pub rank: usize,
    /// The number of ranks that save.
    pub ranks: usize,
    /// The parameters, or this rank's rows and columns of them.
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
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Unread`] if a tensor's bytes cannot be read.
    pub fn is_finite(&self) -> Result<bool> {
        for piece in self.parameters.iter().chain(&self.optimizer).chain(self.average.iter().flatten()) {
            if !is_finite(piece.dtype, &piece.content()?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
