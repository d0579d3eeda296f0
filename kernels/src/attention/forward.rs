//! The output of a block of queries.

use pulp::{Simd, WithSimd};

use super::block::{Block, KEYS, Memory, Scratch};
use super::drops::DroppedKeys;
use super::product::{Size, Straight, Turned, product};
use super::rows;
use super::scores::{Bounds, Running, Tile, limit, rescale, weigh};
use super::spans::LINE;
use crate::elements::Float;

/// Computes one block of queries of one head.
pub struct Forward<'a, 'b, T> {
    pub block: Block<'a, T>,
    pub memory: &'a mut Memory,
    pub output: rows::Block<'b, T>,
}

impl<T: Float> WithSimd for Forward<'_, '_, T> {
    /// The logarithms of the sums of 2 to the power of each score.
    type Output = [f32; LINE];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f32; LINE] {
        let Self { block, memory, mut output } = self;
        let Block { inputs, columns, .. } = block;
        let (size, width) = (inputs.size(), inputs.width());
        let mut scratch = memory.of_block(columns);
        block.load_queries(&mut scratch);
        let dropped = DroppedKeys::of(inputs.plan.drops.as_deref(), block.at, columns);
        let Scratch { queries_turned, key, value, scores, turned, from, to, most, sums, factors, .. } =
            scratch;
        let bounds = Bounds { from, to };
        most.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        turned.fill(0.0);
        for first in block.tiles() {
            let keys = inputs.load_keys(block.key_row(), first, key, Some(&mut *value));
            product(
                simd,
                Straight { values: key, stride: width },
                queries_turned,
                scores,
                Size { rows: keys, depth: size, columns },
                false,
            );
            block.add_bias(scores, first, keys);
            let masked = (!block.is_all_read(first, keys)).then_some(&bounds);
            let dropped = dropped.as_ref();
            let tile = Tile { first, keys, queries: columns, cap: block.cap(), bounds: masked, dropped };
            limit(tile, scores);
            weigh(simd, tile, scores, Running { most, sums, factors });
            rescale(simd, turned, factors);
            product(
                simd,
                Turned { values: value, stride: width },
                scores,
                turned,
                Size { rows: width, depth: keys, columns },
                true,
            );
        }
        let mut logs = [0.0; LINE];
        for query in 0..output.len() {
            let row = &mut key[..size];
            if !block.reads(query).is_empty() {
                let base = if most[query] == f32::NEG_INFINITY { 0.0 } else { most[query] };
                logs[query] = base + sums[query].log2();
                let share = 1.0 / sums[query];
                for (value, sum) in row.iter_mut().zip(turned[query..].iter().step_by(columns)) {
                    *value = sum * share;
                }
            } else {
                row.fill(0.0);
            }
            T::narrow(row, output.row(query));
        }
        logs
    }
}

/// The keys of a tile are computed up to a multiple of the rows of a product.
const _: () = assert!(KEYS.is_multiple_of(super::product::ROWS));
