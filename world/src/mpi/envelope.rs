//! The wire format between processes: a header, followed by the buffers.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::message::{Message, Notice, Piece};

/// A header. Worlds are numbered in the order in which the program joined them.
#[derive(Debug, Serialize, Deserialize)]
pub enum Envelope {
    /// A message from a rank to ranks of this process.
    Message { world: u64, from: usize, to: Vec<usize>, sequence: u64, call: Call, pieces: Vec<Option<Size>> },
    /// What happened to a rank.
    Notice { world: u64, notice: Notice },
    /// The process is about to exit and sends nothing more. `well` is true if none of its worlds failed.
    Leaving { well: bool },
}

/// The announced size of a buffer that follows.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Size {
    bytes: usize,
    element: usize,
}

impl Envelope {
    /// Splits a message into its header and the buffers that follow it.
    pub fn of(
        world: u64,
        from: usize,
        to: Vec<usize>,
        sequence: u64,
        message: Message,
    ) -> (Self, Vec<Bytes>) {
        let size = |piece: &Piece| Size { bytes: piece.bytes.len(), element: piece.element };
        let pieces = message.pieces.iter().map(|piece| piece.as_ref().map(size)).collect();
        let call = Call::clone(&message.call);
        let buffers = message.pieces.into_iter().flatten().map(|piece| piece.bytes).collect();
        (Self::Message { world, from, to, sequence, call, pieces }, buffers)
    }

    /// Returns the bytes of each buffer that follows.
    pub fn lengths(&self) -> Vec<usize> {
        match self {
            Self::Message { pieces, .. } => pieces.iter().flatten().map(|size| size.bytes).collect(),
            _ => vec![],
        }
    }
}

/// Reassembles a message from its header and buffers.
pub fn message(call: Call, sizes: Vec<Option<Size>>, buffers: Vec<Bytes>) -> Message {
    let mut buffers = buffers.into_iter();
    let piece = |size: Option<Size>| {
        let Size { element, .. } = size?;
        Some(Piece { bytes: buffers.next()?, element })
    };
    Message { call: Arc::new(call), pieces: sizes.into_iter().map(piece).collect() }
}
