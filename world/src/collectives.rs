//! Collectives on several parts at once, such as the tensors of a unit of parameters.

use std::sync::Arc;

use burn::tensor::TensorData;

use crate::call::{Call, name};
use crate::exchange::Piece;
use crate::host::joined;
use crate::{Communicator, Kind, PartShape, WorldError, buffers, sum};

/// Gathered parts, each with its pieces by rank.
type Pieces = Vec<Vec<Option<Piece>>>;

impl Communicator {
    /// Sums each part over all ranks and returns this rank's chunk of each sum, which is split along the first axis
    /// into one chunk per rank.
    ///
    /// `what` names the parts in errors. A part that is `None` adds and sends nothing; if it is `None` on all ranks, so
    /// is the sum. The sum is taken in rank order and rounded once, to [`PartShape::sum`], so its bits do not depend on
    /// where the ranks run. Each rank sends (N-1)/N of its elements.
    /// # Errors
    ///
    /// [`WorldError::Shape`] if a part does not match `like` or its first axis is not divisible by the
    /// number of ranks; [`WorldError::Dtype`] if it is not a float; and an error if a rank fails, ends, makes a
    /// different call, or is late.
    ///
    /// ```
    /// use burn::tensor::{DType, TensorData, bf16};
    /// use firebrick_world::{Communicator, PartShape};
    ///
    /// let part = TensorData::from([[1.5f32, 2.0]]).convert::<bf16>();
    /// let like = PartShape { sum: DType::F32, ..PartShape::of(&part) };
    /// let sums = Communicator::solo().reduce_scatter_parts("head", vec![Some(part)], &[like])?;
    /// assert_eq!(sums, [Some(TensorData::from([[1.5f32, 2.0]]))]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn reduce_scatter_parts(
        &self,
        what: &str,
        parts: Vec<Option<TensorData>>,
        like: &[PartShape],
    ) -> Result<Vec<Option<TensorData>>, WorldError> {
        let call = Call::new(Kind::ReduceScatter, what, like.to_vec());
        for part in like {
            self.check_divisible(&call, part)?;
        }
        self.reduced(call, parts).map(|(_, chunks)| {
            let shapes = like.iter().map(|part| chunk_shape(part, self.size()));
            chunks.into_iter().zip(shapes).map(|(chunk, shape)| Some(reshaped(chunk?, shape))).collect()
        })
    }

    /// Sums each part over all ranks and returns the sums on every rank.
    ///
    /// Like [`reduce_scatter_parts`](Self::reduce_scatter_parts), for parts of any shape: each rank sums a chunk of
    /// the elements and sends the sum to all others. A rank sends 2(N-1)/N of the elements, and all ranks get
    /// the same bits.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if a part does not match `like`; [`WorldError::Dtype`] if it is not a float;
    /// and an error if a rank fails, ends, makes a different call, or is late.
    pub fn all_reduce_parts(
        &self,
        what: &str,
        parts: Vec<Option<TensorData>>,
        like: &[PartShape],
    ) -> Result<Vec<Option<TensorData>>, WorldError> {
        let (call, chunks) = self.reduced(Call::new(Kind::AllReduce, what, like.to_vec()), parts)?;
        if self.size() == 1 {
            let whole = chunks.into_iter().zip(like);
            return Ok(whole.map(|(sum, part)| Some(reshaped(sum?, part.shape.clone()))).collect());
        }
        let chunks: Vec<_> = chunks.into_iter().map(|chunk| chunk.map(piece)).collect();
        let gathered = by_part(self.exchange(&call, vec![chunks; self.size()])?);
        let sums = gathered.iter().zip(like).map(|(pieces, part)| {
            let chunks: Option<Vec<&[u8]>> =
                pieces.iter().map(|piece| Some(&*piece.as_ref()?.bytes)).collect();
            Some(joined(part.sum, part.shape.clone(), chunks?.into_iter()))
        });
        Ok(sums.collect())
    }

    /// Sums this rank's chunk of each part. Splits the elements into one chunk per rank, whatever the shape; the
    /// last chunks are shorter if the ranks do not divide the elements.
    fn reduced(
        &self,
        call: Call,
        parts: Vec<Option<TensorData>>,
    ) -> Result<(Arc<Call>, Vec<Option<TensorData>>), WorldError> {
        check(&call, &parts)?;
        let call = self.open(call);
        if self.size() == 1 {
            let own = |(part, like): (Option<TensorData>, &PartShape)| {
                let part = part?;
                if like.dtype == like.sum {
                    return Some(part);
                }
                Some(sum::sum(like.dtype, like.sum, like.shape.clone(), &[part.as_bytes()]))
            };
            let sums = parts.into_iter().zip(&call.parts).map(own).collect();
            return Ok((call, sums));
        }
        let buffers: Vec<_> = parts.into_iter().map(|part| part.map(piece)).collect();
        let chunk = |rank: usize| -> Vec<Option<Piece>> {
            let parts = buffers.iter().zip(&call.parts);
            parts.map(|(buffer, part)| Some(cut(buffer.as_ref()?, part, rank, self.size()))).collect()
        };
        let arrived = self.exchange(&call, (0..self.size()).map(chunk).collect())?;
        let sums = by_part(arrived).into_iter().zip(&call.parts).map(|(pieces, part)| {
            let buffers: Vec<&[u8]> = pieces.iter().flatten().map(|piece| &*piece.bytes).collect();
            let elements = buffers.first()?.len() / part.dtype.size();
            Some(sum::sum(part.dtype, part.sum, vec![elements], &buffers))
        });
        let sums = sums.collect();
        Ok((call, sums))
    }

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
        let call = self.checked_root(Call::new(Kind::Gather, what, like), root)?;
        check_axes(&call)?;
        let call = self.open(call);
        let shards: Vec<_> = shards.into_iter().map(|shard| Some(piece(shard))).collect();
        let mut pieces = vec![vec![]; self.size()];
        pieces[root] = shards;
        let arrived = self.exchange(&call, pieces)?;
        Ok((self.rank() == root).then(|| concatenated(&call, arrived)))
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

/// Rejects parts that do not match their announcement or cannot be summed.
fn check(call: &Call, parts: &[Option<TensorData>]) -> Result<(), WorldError> {
    let shape = |expected, found| WorldError::Shape { call: call.to_string(), expected, found };
    if parts.len() != call.parts.len() {
        return Err(shape(format!("{} parts", call.parts.len()), format!("{} parts", parts.len())));
    }
    for (at, (part, like)) in parts.iter().zip(&call.parts).enumerate() {
        if let Some(dtype) = [like.dtype, like.sum].into_iter().find(|dtype| !sum::sums(*dtype)) {
            return Err(WorldError::Dtype { call: call.to_string(), found: name(dtype) });
        }
        let Some(part) = part else { continue };
        if part.shape().as_slice() != like.shape || part.dtype() != like.dtype {
            return Err(shape(format!("part {at} to be {like}"), PartShape::of(part).to_string()));
        }
    }
    Ok(())
}

/// Returns the chunk of a part's elements that `rank` sums.
fn cut(piece: &Piece, part: &PartShape, rank: usize, ranks: usize) -> Piece {
    let elements = part.elements();
    let chunk = elements.div_ceil(ranks);
    let edge = |rank: usize| (rank * chunk).min(elements) * piece.element;
    Piece { bytes: piece.bytes.slice(edge(rank)..edge(rank + 1)), element: piece.element }
}

fn chunk_shape(part: &PartShape, ranks: usize) -> Vec<usize> {
    let mut shape = part.shape.clone();
    shape[0] /= ranks;
    shape
}

fn reshaped(data: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = data.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}
