//! Where the positions of each row stand in a tensor `[batch, heads, positions, size]`, and their blocks.

use crate::Ragged;

/// The most queries of a block.
pub const LINE: usize = 64;
/// The elements of the widest vectors.
pub const LANES: usize = 16;

/// Where the positions of each row stand in a tensor `[batch, heads, positions, size]`.
#[derive(Clone, Debug)]
enum Places {
    /// Each in a row of its own: rows, and positions of each.
    Even([usize; 2]),
    /// One after the other in a single row.
    Ragged(Ragged),
}

/// The positions of the rows of a tensor `[batch, heads, positions, size]`, in blocks of at most [`LINE`]. No block has
/// positions of two rows.
#[derive(Clone, Debug)]
pub struct Spans {
    places: Places,
    /// The blocks of a head in all rows before each, and in all rows.
    blocks: Vec<usize>,
}

impl Spans {
    /// Rows of `length` positions, each in a row of its own.
    pub fn even(rows: usize, length: usize) -> Self {
        Self::of(Places::Even([rows, length]), rows)
    }

    /// Rows that stand one after the other in a single row.
    pub fn ragged(rows: &Ragged) -> Self {
        Self::of(Places::Ragged(rows.clone()), rows.len())
    }

    fn of(places: Places, rows: usize) -> Self {
        let mut spans = Self { places, blocks: Vec::with_capacity(rows + 1) };
        spans.blocks.push(0);
        for row in 0..rows {
            spans.blocks.push(spans.blocks[row] + spans.length(row).div_ceil(LINE));
        }
        spans
    }

    pub fn rows(&self) -> usize {
        self.blocks.len() - 1
    }

    /// The positions of a row.
    pub fn length(&self, row: usize) -> usize {
        match &self.places {
            Places::Even([_, length]) => *length,
            Places::Ragged(rows) => rows.row(row).len(),
        }
    }

    /// The positions of the longest row.
    pub fn longest(&self) -> usize {
        match &self.places {
            Places::Even([_, length]) => *length,
            Places::Ragged(rows) => rows.longest(),
        }
    }

    /// The rows of the tensor, and the positions of each.
    pub fn shape(&self) -> [usize; 2] {
        match &self.places {
            Places::Even(shape) => *shape,
            Places::Ragged(rows) => [1, rows.total()],
        }
    }

    /// The row of the tensor, and the position in it, that hold a position of a row.
    #[inline(always)]
    pub fn place(&self, row: usize, position: usize) -> [usize; 2] {
        match &self.places {
            Places::Even(_) => [row, position],
            Places::Ragged(rows) => [0, rows.row(row).start + position],
        }
    }

    /// The blocks of a row in one head.
    pub fn blocks(&self, row: usize) -> usize {
        self.blocks[row + 1] - self.blocks[row]
    }

    /// The blocks of all rows in one head.
    pub fn all_blocks(&self) -> usize {
        self.blocks[self.rows()]
    }

    /// The index of a block among those of all rows and heads: row by row, and head by head in each.
    pub fn index(&self, [row, head, block]: [usize; 3], heads: usize) -> usize {
        self.blocks[row] * heads + head * self.blocks(row) + block
    }

    /// The row, the head and the first position of the block with this index.
    pub fn at(&self, index: usize, heads: usize) -> [usize; 3] {
        let row = self.blocks.partition_point(|before| before * heads <= index) - 1;
        let (in_row, blocks) = (index - self.blocks[row] * heads, self.blocks(row));
        [row, in_row / blocks, in_row % blocks * LINE]
    }
}

/// The queries of a block of a row of this length, in whole vectors.
pub fn columns(length: usize) -> usize {
    length.next_multiple_of(LANES).clamp(LANES, LINE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_rows_of_any_length_are_found_by_their_index() {
        let rows = Ragged::new([0, 3, 64, 0, 130, 65, 0]);
        for spans in [Spans::ragged(&rows), Spans::even(3, 70), Spans::even(2, 64)] {
            let mut index = 0;
            for row in 0..spans.rows() {
                for head in 0..3 {
                    for block in 0..spans.blocks(row) {
                        assert_eq!(spans.index([row, head, block], 3), index);
                        assert_eq!(spans.at(index, 3), [row, head, block * LINE]);
                        index += 1;
                    }
                }
            }
            assert_eq!(index, 3 * spans.all_blocks());
        }
        let spans = Spans::ragged(&rows);
        assert_eq!((spans.shape(), spans.longest()), ([1, 262], 130));
        assert_eq!((spans.place(5, 2), spans.length(5)), ([0, 199], 65));
    }
}
