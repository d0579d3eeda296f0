//! Messages between processes: a header, followed by buffers that MPI reads and writes while the program continues.
#![allow(unsafe_code)] // MPI needs memory that outlives a call: it is leaked, and reclaimed when MPI is done.

use std::mem;
use std::sync::Arc;

use bytes::Bytes;
use mpi::Tag;
use mpi::request::{Request, StaticScope};
use mpi::topology::Process;
use mpi::traits::*;
use serde::{Deserialize, Serialize};

use crate::call::Call;
use crate::message::{Message, Notice, Piece};

/// Bytes of one MPI message, whose counts are 31-bit numbers: longer buffers need several.
const LONGEST: usize = 1 << 30;

type Pending = Request<'static, [u8], StaticScope>;

/// The messages of one buffer that MPI still works on.
struct Requests(Vec<Pending>);

impl Requests {
    /// Returns whether MPI has finished all of them.
    fn done(&mut self) -> bool {
        let pending = mem::take(&mut self.0).into_iter();
        self.0 = pending.filter_map(|request| request.test().err()).collect();
        self.0.is_empty()
    }
}

impl Drop for Requests {
    /// Forgets the pending requests, since rsmpi panics if a request is dropped. The buffers below leak their
    /// memory in that case.
    fn drop(&mut self) {
        mem::take(&mut self.0).into_iter().for_each(mem::forget);
    }
}

/// A buffer that is being sent.
pub struct Sending {
    requests: Requests,
    /// The buffer; leaked if sending never ends.
    buffer: mem::ManuallyDrop<Bytes>,
}

impl Sending {
    /// Starts sending a buffer. For an empty one it sends nothing, and [`Receiving`] expects nothing.
    pub fn start(to: &Process, tag: Tag, buffer: Bytes) -> Self {
        // SAFETY: the bytes are on the heap and stay there unchanged as long as `buffer` lives. Only `unless_done`
        // drops it, after MPI is done.
        let bytes: &'static [u8] = unsafe { mem::transmute::<&[u8], &'static [u8]>(&buffer) };
        let send = |chunk| to.immediate_send_with_tag(StaticScope, chunk, tag);
        let requests = Requests(bytes.chunks(LONGEST).map(send).collect());
        Self { requests, buffer: mem::ManuallyDrop::new(buffer) }
    }

    /// Returns itself unless MPI has finished with the buffer.
    pub fn unless_done(mut self) -> Option<Self> {
        if !self.requests.done() {
            return Some(self);
        }
        mem::ManuallyDrop::into_inner(self.buffer);
        None
    }
}

/// A buffer that is being received.
pub struct Receiving {
    requests: Requests,
    /// The buffer; leaked if it never arrives.
    memory: *mut [u8],
}

impl Receiving {
    /// Starts receiving a buffer of `length` bytes.
    pub fn start(from: &Process, tag: Tag, length: usize) -> Self {
        let memory = Box::into_raw(vec![0u8; length].into_boxed_slice());
        // SAFETY: the memory was leaked just above, and only these requests refer to it until they are done. The chunks
        // do not overlap.
        let bytes: &'static mut [u8] = unsafe { &mut *memory };
        let receive = |chunk| from.immediate_receive_into_with_tag(StaticScope, chunk, tag);
        Self { requests: Requests(bytes.chunks_mut(LONGEST).map(receive).collect()), memory }
    }

    /// Returns the bytes if they have arrived, and itself otherwise.
    pub fn finished(mut self) -> Result<Bytes, Self> {
        if !self.requests.done() {
            return Err(self);
        }
        // SAFETY: the memory came from `Box::into_raw`, no request refers to it any more, and `self` is consumed.
        Ok(Bytes::from(unsafe { Box::from_raw(self.memory) }))
    }
}

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
