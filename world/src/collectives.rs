//! Collectives on several parts at once, such as the tensors of a unit of parameters.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::TensorData;
use bytes::Bytes;

use crate::call::Call;
use crate::host::joined;
use crate::message::Piece;
use crate::seat::Seat;
use crate::{Collective, Communicator, PartShape, WorldError, buffers, sum};

/// Gathered parts, each with its pieces by rank.
type Pieces = Vec<Vec<Option<Piece>>>;

impl Communicator {
    /// Gathers each rank's shards on `root`, concatenated along the first axis in rank order; returns `None` on the
    /// other ranks. All ranks' shards have the same shapes.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`] if there is no such rank; [`WorldError::Shape`] for a shard without axes; and
    /// an error if a rank fails, ends, makes a different call, or is late.
    pub fn gather(
        &self,
        what: &str,
        shards: Vec<TensorData>,
        root: usize,
    ) -> Result<Option<Vec<TensorData>>, WorldError> {
        let like = shards.iter().map(PartShape::of).collect();
        let call = self.checked_root(Call::new(Collective::Gather, what, like), root)?;
        check_axes(&call)?;
        let call = self.open(call);
        let shards: Vec<_> = shards.into_iter().map(|shard| Some(piece(shard))).collect();
        let mut pieces = vec![vec![]; self.size()];
        pieces[root] = shards;
        let arrived = self.exchange(&call, pieces)?;
        Ok((self.rank() == root).then(|| concatenated(&call, arrived)))
    }
}

impl Seat {
    /// Sends each rank its chunk of each part. Splits the elements into one chunk per rank, whatever the shape; the
    /// last chunks are shorter if the ranks do not divide the elements.
    pub fn send_chunks(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        parts: Vec<Option<Piece>>,
    ) -> Result<(), WorldError> {
        let chunk = |rank: usize| -> Vec<Option<Piece>> {
            let parts = parts.iter().zip(&call.parts);
            parts.map(|(buffer, part)| Some(cut(buffer.as_ref()?, part, rank, self.size()))).collect()
        };
        self.post(sequence, call, (0..self.size()).map(chunk).collect())
    }

    /// Waits for the chunks that ranks [send](Self::send_chunks) to this one, and sums them.
    pub fn sum_chunks(&self, sequence: u64, call: &Arc<Call>) -> Result<Vec<Option<TensorData>>, WorldError> {
        let arrived = self.complete(sequence, call)?;
        let sums = by_part(arrived).into_iter().zip(&call.parts).map(|(pieces, part)| {
            let buffers: Vec<&[u8]> = pieces.iter().flatten().map(|piece| &*piece.bytes).collect();
            let elements = buffers.first()?.len() / part.dtype.size();
            Some(sum::sum(part.dtype, part.sum, vec![elements], &buffers))
        });
        Ok(sums.collect())
    }

    /// Sends this rank's chunk of each sum to all ranks, and returns the sums.
    pub fn share_chunks(
        &self,
        sequence: u64,
        call: &Arc<Call>,
        chunks: Vec<Option<TensorData>>,
    ) -> Result<Vec<Option<TensorData>>, WorldError> {
        let chunks: Vec<_> = chunks.into_iter().map(|chunk| chunk.map(piece)).collect();
        let gathered = by_part(self.exchanged(sequence, call, vec![chunks; self.size()])?);
        let sums = gathered.iter().zip(&call.parts).map(|(pieces, part)| {
            // In a rehearsal the others answer with chunks of this rank's length.
            let length = |rank: usize| chunk(part, rank, self.size()).len() * part.sum.size();
            let sum =
                |(rank, piece): (usize, &Option<Piece>)| Some(piece.as_ref()?.bytes.slice(..length(rank)));
            let chunks: Option<Vec<Bytes>> = pieces.iter().enumerate().map(sum).collect();
            Some(joined(part.sum, part.shape.clone(), chunks?.iter().map(|chunk| &**chunk)))
        });
        Ok(sums.collect())
    }
}

/// Wraps host data as a buffer.
pub(super) fn piece(data: TensorData) -> Piece {
    let element = data.dtype().size();
    Piece { bytes: buffers::lend(data), element }
}

/// Transposes pieces indexed by rank, then part, into pieces indexed by part, then rank.
pub(super) fn by_part(arrived: Pieces) -> Pieces {
    let parts = arrived.first().map_or(0, Vec::len);
    let mut turned: Pieces = vec![Vec::with_capacity(arrived.len()); parts];
    for pieces in arrived {
        turned.iter_mut().zip(pieces).for_each(|(part, piece)| part.push(piece));
    }
    turned
}

/// Concatenates all ranks' pieces of each part along the first axis.
pub(super) fn concatenated(call: &Call, arrived: Pieces) -> Vec<TensorData> {
    let ranks = arrived.len();
    let parts = by_part(arrived).into_iter().zip(&call.parts);
    let join = |(pieces, part): (Vec<Option<Piece>>, &PartShape)| {
        let mut shape = part.shape.clone();
        shape[0] *= ranks;
        joined(part.dtype, shape, pieces.iter().flatten().map(|piece| &*piece.bytes))
    };
    parts.map(join).collect()
}

/// Rejects shards that cannot be concatenated.
pub(super) fn check_axes(call: &Call) -> Result<(), WorldError> {
    if call.parts.iter().all(|part| !part.shape.is_empty()) {
        return Ok(());
    }
    let (expected, found) = ("a first axis to concatenate along".to_string(), "a scalar".to_string());
    Err(WorldError::Shape { call: call.to_string(), expected, found })
}

/// Returns the elements of a part that `rank` sums.
fn chunk(part: &PartShape, rank: usize, ranks: usize) -> Range<usize> {
    let elements = part.elements();
    let edge = |rank: usize| (rank * elements.div_ceil(ranks)).min(elements);
    edge(rank)..edge(rank + 1)
}

/// Returns the chunk of a part's elements that `rank` sums.
fn cut(piece: &Piece, part: &PartShape, rank: usize, ranks: usize) -> Piece {
    let Range { start, end } = chunk(part, rank, ranks);
    Piece { bytes: piece.bytes.slice(start * piece.element..end * piece.element), element: piece.element }
}
