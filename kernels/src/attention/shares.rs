//! How the blocks of queries of a backward pass are shared out among tasks.

use std::ops::Range;

use super::spans::Spans;

/// Tasks of a backward pass, if it has so many blocks of queries. It depends on shapes only, since it decides in which
/// order gradients are summed.
const TASKS: usize = 32;

/// Blocks of queries that one task computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub rows: Range<usize>,
    /// The head of the keys.
    pub key_head: usize,
    /// Blocks of a head in the longest of the rows.
    pub blocks: usize,
    /// Blocks among those of all heads that read the head of keys.
    pub steps: Range<usize>,
    /// Whether these are all such blocks.
    pub is_whole: bool,
}

/// Shares out blocks of queries, of which `group` heads read each of `key_heads`. `together` computes all rows in one
/// task.
pub fn shares(queries: &Spans, group: usize, key_heads: usize, together: bool) -> Vec<Share> {
    let all = queries.rows();
    let groups: Vec<Range<usize>> = match together {
        true => std::iter::once(0..all).collect(),
        false => (0..all).map(|row| row..row + 1).collect(),
    };
    let blocks_of = |rows: &Range<usize>| rows.clone().map(|row| queries.blocks(row)).max().unwrap_or(0);
    let all_steps = key_heads * group * groups.iter().map(blocks_of).sum::<usize>();
    let mut shares = Vec::new();
    for rows in groups {
        let blocks = blocks_of(&rows);
        let steps = group * blocks;
        // A row without queries has none.
        let count = (TASKS * steps).div_ceil(all_steps.max(1)).min(steps);
        for key_head in 0..key_heads {
            shares.extend((0..count).map(|at| Share {
                rows: rows.clone(),
                key_head,
                blocks,
                steps: steps * at / count..steps * (at + 1) / count,
                is_whole: count == 1,
            }));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ragged;

    /// Every block is in one share, whatever the lengths, and a long row among short ones is shared out.
    #[test]
    fn each_block_is_computed_once() {
        let spans = Spans::ragged(&Ragged::new([5, 0, 2000, 70, 1]));
        for together in [false, true] {
            let shares = shares(&spans, 3, 2, together);
            for row in 0..spans.rows() {
                for key_head in 0..2 {
                    let of_row =
                        shares.iter().filter(|share| share.rows.contains(&row) && share.key_head == key_head);
                    let mut steps: Vec<usize> =
                        of_row.clone().flat_map(|share| share.steps.clone()).collect();
                    steps.sort_unstable();
                    let longest = of_row.clone().next().map_or(0, |share| share.blocks);
                    assert_eq!(steps, (0..3 * longest).collect::<Vec<_>>());
                    assert!(longest >= spans.blocks(row));
                    assert_eq!(of_row.clone().count() == 1, of_row.clone().any(|share| share.is_whole));
                }
            }
            assert!((16..64).contains(&shares.len()), "{}", shares.len());
        }
    }
}
