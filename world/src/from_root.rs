//! Collectives that send one rank's data to the others.

use std::ops::Range;

use burn::tensor::TensorData;

use crate::call::Call;
use crate::collectives::{check_axes, piece};
use crate::host::joined;
use crate::message::Piece;
use crate::{Collective, Communicator, PartShape, WorldError};

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
            let rows = chunk(rows, rank, ranks);
            Piece { bytes: part.bytes.slice(rows.start * row..rows.end * row), element: part.element }
        })?;
        let mut shape = like.shape;
        shape[0] = chunk(rows, self.rank(), ranks).len();
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
fn chunk(rows: usize, rank: usize, ranks: usize) -> Range<usize> {
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
