//! Collectives on several parts at once, such as the tensors of a unit of parameters; those that send one rank's data to the
//! others; and those on tensors.
//!
//! A tensor may have any float dtype and be on any device; the result is on the same device, has the same dtype
//! and carries no gradient. Sums are taken in rank order, or in NCCL's order if [NCCL](crate::World::on) sums; f16 and
//! bf16 accumulate in f32 and are rounded once. All ranks get the same bits.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{Device, Tensor, TensorData};
use bytes::Bytes;

use crate::call::Call;
use crate::host::joined;
use crate::message::Piece;
use crate::seat::Seat;
use crate::{Collective, Communicator, PartShape, WorldError, host, sum};

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
    Piece { bytes: host::lend(data), element }
}

/// Transposes pieces indexed by rank, then part, into pieces indexed by part, then rank.
fn by_part(arrived: Pieces) -> Pieces {
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
fn check_axes(call: &Call) -> Result<(), WorldError> {
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

impl Communicator {
    /// Sends the part of rank `root` to every rank. Reads `part` on `root` alone, where it must match `like`.
    ///
    /// `what` names the part in errors.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`] if there is no such rank; [`WorldError::Shape`] if the root's part is missing or does not
    /// match `like`; and an error if a rank fails, ends, makes a different call, or is late.
    pub fn broadcast_part(
        &self,
        what: &str,
        part: Option<TensorData>,
        like: PartShape,
        root: usize,
    ) -> Result<TensorData, WorldError> {
        let call = self.checked_root(Call::new(Collective::Broadcast, what, vec![like.clone()]), root)?;
        let sent = self.handed_out(call, part, root, |part, _| part.clone())?;
        Ok(joined(like.dtype, like.shape, sent.iter().map(|piece| &*piece.bytes)))
    }

    /// Sends each rank a chunk of the part of rank `root`. Splits the first axis into one run of rows per rank. The
    /// runs have equal length, except that the last ones are shorter or empty if the ranks do not divide the rows.
    /// Reads `part` on `root` alone, where it must match `like`; the other ranks' values are ignored. `root` sends
    /// (N-1)/N of the part.
    ///
    /// `what` names the part in errors.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`] if there is no such rank; [`WorldError::Shape`] if the root's part is missing, does not
    /// match `like` or has no axis; and an error if a rank fails, ends, makes a different call, or is late.
    ///
    /// ```
    /// use burn::tensor::TensorData;
    /// use firebrick_world::{PartShape, World};
    ///
    /// let ranks = World::threads(2).join()?.into_iter().map(|rank| {
    ///     std::thread::spawn(move || {
    ///         let whole = TensorData::from([1.0f32, 2.0, 3.0]);
    ///         let like = PartShape::of(&whole);
    ///         rank.scatter("bias", (rank.rank() == 0).then_some(whole), like, 0)
    ///     })
    /// });
    /// let chunks: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(chunks, [Ok(TensorData::from([1.0f32, 2.0])), Ok(TensorData::from([3.0f32]))]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn scatter(
        &self,
        what: &str,
        part: Option<TensorData>,
        like: PartShape,
        root: usize,
    ) -> Result<TensorData, WorldError> {
        let call = self.checked_root(Call::new(Collective::Scatter, what, vec![like.clone()]), root)?;
        check_axes(&call)?;
        let (rows, ranks) = (like.shape[0], self.size());
        let row = like.elements() / rows.max(1) * like.dtype.size();
        let sent = self.handed_out(call, part, root, |part, rank| {
            let rows = rows_of(rows, rank, ranks);
            Piece { bytes: part.bytes.slice(rows.start * row..rows.end * row), element: part.element }
        })?;
        let mut shape = like.shape;
        shape[0] = rows_of(rows, self.rank(), ranks).len();
        Ok(joined(like.dtype, shape, sent.iter().map(|piece| &*piece.bytes)))
    }

    /// Sends each rank its cut of the part of `root`, and returns this rank's.
    fn handed_out(
        &self,
        call: Call,
        part: Option<TensorData>,
        root: usize,
        cut: impl Fn(&Piece, usize) -> Piece,
    ) -> Result<Option<Piece>, WorldError> {
        let mut pieces = vec![vec![]; self.size()];
        if self.rank() == root {
            let whole = piece(checked(&call, part)?);
            pieces = (0..self.size()).map(|rank| vec![Some(cut(&whole, rank))]).collect();
        }
        let call = self.open(call);
        let mut arrived = self.exchange(&call, pieces)?;
        Ok(arrived.swap_remove(root).into_iter().flatten().next())
    }
}

/// Returns the range of rows that `rank` gets.
fn rows_of(rows: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = rows.div_ceil(ranks);
    (rank * each).min(rows)..((rank + 1) * each).min(rows)
}

/// Returns the root's part if it matches the call.
fn checked(call: &Call, part: Option<TensorData>) -> Result<TensorData, WorldError> {
    let like = &call.parts[0];
    let found = match part {
        Some(part) if part.shape().as_slice() == like.shape && part.dtype() == like.dtype => return Ok(part),
        Some(part) => PartShape::of(&part).to_string(),
        None => "none".into(),
    };
    let expected = format!("the part of this rank to be {like}");
    Err(WorldError::Shape { call: call.to_string(), expected, found })
}

impl Communicator {
    /// Sums all ranks' tensors, of any shape, and returns the sum on every rank.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_reduce<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (shape, device, dtype) = (tensor.dims(), tensor.device(), tensor.dtype());
        let elements = shape.iter().product();
        let like = [PartShape::flat(elements, dtype)];
        let flat = vec![Some(tensor.inner().reshape([elements]))];
        let sums = self.begin_all_reduce("", flat, &like, &device.clone().inner())?.wait()?;
        Ok(shaped(sums.into_iter().flatten(), shape, &device))
    }

    /// Sums all ranks' tensors and returns this rank's chunk, split along the first axis: `[n, ..]` gives
    /// `[n / size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if the first axis is not divisible by the number of ranks; and an error if a rank
    /// fails, ends, makes a different call, or is late.
    pub fn reduce_scatter<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (mut shape, device, dtype) = (tensor.dims(), tensor.device(), tensor.dtype());
        let like = [PartShape { shape: shape.to_vec(), ..PartShape::flat(0, dtype) }];
        self.check_divisible(&Call::new(Collective::ReduceScatter, "", like.to_vec()), &like[0])?;
        let elements = shape.iter().product();
        let like = [PartShape::flat(elements, dtype)];
        let flat = vec![Some(tensor.inner().reshape([elements]))];
        let sums = self.begin_reduce_scatter("", flat, &like, &device.clone().inner())?.wait()?;
        shape[0] /= self.size();
        Ok(shaped(sums.into_iter().flatten(), shape, &device))
    }

    /// Concatenates all ranks' tensors, which have the same shape, along the first axis in rank order: `[n, ..]` gives
    /// `[n * size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_gather<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (mut shape, device) = (tensor.dims(), tensor.device());
        let elements = shape.iter().product::<usize>();
        let flat = vec![tensor.inner().reshape([elements])];
        let parts = self.begin_all_gather("", flat, &device.clone().inner())?.wait()?;
        shape[0] *= self.size();
        Ok(shaped(parts.into_iter(), shape, &device))
    }

    /// Returns the tensor of rank `root` on every rank. The others' tensors must have its shape and dtype.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`] if there is no such rank; and an error if a rank fails, ends, makes a different call, or
    /// is late.
    pub fn broadcast<const D: usize>(&self, tensor: Tensor<D>, root: usize) -> Result<Tensor<D>, WorldError> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let like = PartShape { shape: tensor.dims().to_vec(), dtype, sum: dtype };
        let read = |like| host::read(tensor, &Call::new(Collective::Broadcast, "", vec![like]));
        let part = (self.rank() == root).then(|| read(like.clone())).transpose()?;
        Ok(Tensor::from_data(self.broadcast_part("", part, like, root)?, (&device, dtype)))
    }
}

/// Returns the one result of a collective in its shape, on the device of the tensor that went in.
fn shaped<const D: usize>(
    mut results: impl Iterator<Item = Tensor<1>>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    let result = results.next().expect("one part has one result").reshape(shape);
    if device.is_autodiff() { Tensor::from_inner(result) } else { result }
}
