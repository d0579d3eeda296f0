//! What ranks send one another.

use std::sync::Arc;

use bytes::Bytes;

use crate::WorldError;
use crate::call::Call;

/// A buffer on its way to a rank.
#[derive(Clone, Debug)]
pub struct Piece {
    pub bytes: Bytes,
    /// Bytes of one element.
    pub element: usize,
}

/// A message from one rank to another in one call. `None` stands for a part that the sender lacks.
#[derive(Clone, Debug)]
pub struct Message {
    pub call: Arc<Call>,
    pub pieces: Vec<Option<Piece>>,
}

/// What happened to a rank, as announced to the others.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub enum Notice {
    /// The rank is done and makes no more calls.
    Ended(usize),
    /// The world is over.
    Failed(WorldError),
}
