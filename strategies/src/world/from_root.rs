//! Collectives that hand out what one rank has.

use std::ops::Range;

use burn::tensor::TensorData;

use super::call::Call;
use super::collectives::{check_axes, piece};
use super::exchange::Piece;
use super::{Communicator, Kind, PartShape, WorldError};
use crate::host::joined;

impl Communicator {
    /// The part of rank `root`, on every rank: `part` is read there alone, and is as `like` says.
    ///
    /// `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`], if there is no such rank, [`WorldError::Shape`], if its part is missing or not
    /// as `like` says; and if a rank fails, ends, calls something else, or is late.
    pub fn broadcast_part(
        &self,
        what: &str,
        part: Option<TensorData>,
        like: PartShape,
        root: usize,
    ) -> Result<TensorData, WorldError> {
        let call = self.checked_root(Call::new(Kind::Broadcast, what, vec![like.clone()]), root)?;
        let sent = self.handed_out(call, part, root, |part, _| part.clone())?;
        Ok(joined(like.dtype, like.shape, sent.iter().map(|piece| &*piece.bytes)))
    }

    /// A chunk of the part of rank `root` to each rank: its first axis is cut into as many runs of rows as
    /// there are ranks, of equal length, but that the last ones are shorter, or empty, where they do not
    /// divide it. `part` is read on `root` alone, and is as `like` says; what others have there does not
    /// count. `root` sends (N-1)/N of it.
    ///
    /// `what` names it in errors.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`], if there is no such rank, [`WorldError::Shape`], if its part is missing, is not
    /// as `like` says or has no axis; and if a rank fails, ends, calls something else, or is late.
    ///
    /// ```
    /// use burn::tensor::TensorData;
    /// use firebrick_strategies::{PartShape, World};
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
    /// # Ok::<(), firebrick_strategies::WorldError>(())
    /// ```
    pub fn scatter(
        &self,
        what: &str,
        part: Option<TensorData>,
        like: PartShape,
        root: usize,
    ) -> Result<TensorData, WorldError> {
        let call = self.checked_root(Call::new(Kind::Scatter, what, vec![like.clone()]), root)?;
        check_axes(&call)?;
        let (rows, ranks) = (like.shape[0], self.size());
        let row = like.elements() / rows.max(1) * like.dtype.size();
        let sent = self.handed_out(call, part, root, |part, rank| {
            let rows = chunk(rows, rank, ranks);
            Piece { bytes: part.bytes.slice(rows.start * row..rows.end * row), element: part.element }
        })?;
        let mut shape = like.shape;
        shape[0] = chunk(rows, self.rank(), ranks).len();
        Ok(joined(like.dtype, shape, sent.iter().map(|piece| &*piece.bytes)))
    }

    /// What `root` hands to this rank, cut from its part for each.
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

/// The rows that a rank is handed, of so many.
fn chunk(rows: usize, rank: usize, ranks: usize) -> Range<usize> {
    let each = rows.div_ceil(ranks);
    (rank * each).min(rows)..((rank + 1) * each).min(rows)
}

/// The part of the root, as it was announced.
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
