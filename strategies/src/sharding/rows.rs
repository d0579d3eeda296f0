//! The rows of a parameter that each rank holds.

use std::ops::Range;

use burn::tensor::{Tensor, TensorData};
use firebrick_world::joined;

/// The rows, along the first axis of a parameter, that the master holds on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows of the whole parameter.
    pub whole: usize,
    /// The rows of this rank: empty if earlier ranks hold all rows.
    pub rows: Range<usize>,
    /// Rows of the tensor that stores the shard: rows of zeros follow the parameter's rows.
    pub padded: usize,
    /// The number of this copy of the shard: other ranks may hold the same rows. A checkpoint has those of copy 0.
    pub copy: usize,
}

/// A first axis of `rows` rows in equal shards. If the ranks do not divide it, the last shards end in rows
/// of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    rows: usize,
    per_rank: usize,
    ranks: usize,
}

impl Rows {
    /// Divides `rows` rows among `ranks` ranks.
    pub fn of(rows: usize, ranks: usize) -> Self {
        Self { rows, per_rank: rows.div_ceil(ranks), ranks }
    }

    /// Returns the rows of the whole parameter.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Returns the rows of a shard.
    pub fn per_rank(self) -> usize {
        self.per_rank
    }

    /// Returns the rows of all shards together.
    pub fn padded(self) -> usize {
        self.per_rank * self.ranks
    }

    /// Returns whether the last shards end in rows of zeros.
    pub fn is_padded(self) -> bool {
        self.padded() != self.rows
    }

    /// Returns the shard of a rank in that copy of the parameter.
    pub fn of_rank(self, rank: usize, copy: usize) -> Shard {
        let place = |rank: usize| (rank * self.per_rank).min(self.rows);
        Shard { whole: self.rows, rows: place(rank)..place(rank + 1), padded: self.per_rank, copy }
    }

    /// Pads a whole parameter that is flat.
    pub fn pad(self, whole: Tensor<1>) -> Tensor<1> {
        let [elements] = whole.dims();
        let missing = (self.padded() - self.rows) * elements / self.rows;
        if missing == 0 {
            return whole;
        }
        let zeros = Tensor::zeros([missing], (&whole.device(), whole.dtype()));
        Tensor::cat(vec![whole, zeros], 0)
    }

    /// Pads a rank's rows of the parameter to a shard.
    pub fn shard(self, own: TensorData) -> TensorData {
        let mut shape = own.shape().to_vec();
        let missing = self.per_rank - shape[0];
        if missing == 0 {
            return own;
        }
        let row = shape[1..].iter().product::<usize>() * own.dtype().size();
        shape[0] = self.per_rank;
        joined(own.dtype(), shape, [own.as_bytes(), &vec![0; missing * row]].into_iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn shards_are_equal_and_together_the_whole() {
        for (rows, ranks) in [(5, 1), (5, 2), (5, 3), (8, 4), (5, 5), (9, 4)] {
            let whole: Vec<f32> = (0..2 * rows).map(|x| x as f32 + 1.0).collect();
            let flat = Tensor::<1>::from_data(&whole[..], &testing::device());
            let division = Rows::of(rows, ranks);
            let each = rows.div_ceil(ranks);
            let shards = (0..ranks).map(|rank| {
                let own = &whole[(2 * each * rank).min(2 * rows)..(2 * each * (rank + 1)).min(2 * rows)];
                division.shard(TensorData::new(own.to_vec(), [own.len() / 2, 2]))
            });
            let shards: Vec<_> = shards
                .inspect(|shard| assert_eq!(shard.shape()[0], rows.div_ceil(ranks)))
                .flat_map(|shard| shard.try_to_vec::<f32>().unwrap())
                .collect();
            assert_eq!(shards[..whole.len()], whole);
            assert!(shards[whole.len()..].iter().all(|&x| x == 0.0));
            assert_eq!(division.pad(flat).into_data().try_to_vec::<f32>().unwrap(), shards);
        }
    }
}
