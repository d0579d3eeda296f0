//! The gradients of the queries that read one head's keys, and how their blocks are shared out among tasks.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::block::{Block, Inputs, KEYS, Memory, Scratch, turn};
use super::drops::DroppedKeys;
use super::product::{Size, Straight, Turned, product};
use super::scores::{Bounds, QueryTerms, Tile, limit, slope};
use super::spans::LINE;
use super::{
    block::View,
    rows::{self, Rows},
    spans::Spans,
};
use crate::elements::Float;

/// The gradients that are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedGradients {
    pub query: bool,
    pub key: bool,
    pub value: bool,
    pub bias: bool,
}

/// What the forward pass kept, and the gradient of its output.
#[derive(Clone, Copy)]
pub struct BackwardInputs<'a, T> {
    pub output: View<'a, T>,
    pub grad: View<'a, T>,
    /// [`LINE`] for each block of queries, in the order of [`Spans::index`](super::spans::Spans::index).
    pub logs: &'a [f32],
}

/// Blocks of queries that one task computes: those in `steps` among the blocks of all heads that read a head of keys,
/// for each row of `rows` in turn.
pub struct Unit<'a, 'b, T> {
    pub inputs: Inputs<'a, T>,
    pub kept: BackwardInputs<'a, T>,
    pub wanted: WantedGradients,
    /// The rows of the queries' gradient.
    pub of_query: Option<&'a Rows<'b, T>>,
    pub of_bias: Option<&'a Rows<'b, f32>>,
    pub share: &'a Share,
    pub memory: &'a mut Memory,
}

/// Sums of the gradients of one head's keys and values, `[keys, width]`, over some queries.
#[derive(Default)]
pub struct Partial {
    pub row: usize,
    pub key_head: usize,
    /// The first key of the sums; the queries read none outside them.
    pub first: usize,
    /// Empty if not wanted.
    pub key: Vec<f32>,
    pub value: Vec<f32>,
}

impl<T: Float> WithSimd for Unit<'_, '_, T> {
    type Output = Vec<Partial>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<Partial> {
        let Self { inputs, kept, wanted, of_query, of_bias, share, memory } = self;
        let Share { key_head, .. } = *share;
        let head_of = |step: usize| key_head * inputs.group() + step / share.blocks;
        let bias_block = |step: usize| {
            Some(of_bias?.take(
                share.rows.start % inputs.bias?.shape[0],
                head_of(step),
                step % share.blocks * LINE,
            ))
        };
        let mut of_bias: Vec<_> = share.steps.clone().filter_map(bias_block).collect();
        // Loops instead of closures: code of vectors must be inlined to be compiled for them.
        let mut partials = Vec::with_capacity(share.rows.len());
        for row in share.rows.clone() {
            // A short row lacks the last blocks.
            let steps = share.steps.clone().enumerate();
            let steps = steps.filter(|(_, step)| step % share.blocks < inputs.queries.blocks(row));
            let place = |step: usize| [row, head_of(step), step % share.blocks * LINE];
            let blocks: Vec<_> = steps.map(|(at, step)| (at, Block::new(inputs, place(step)))).collect();
            let first = blocks.iter().filter_map(|(_, block)| block.tiles().next()).min().unwrap_or(0);
            let end = blocks.iter().filter_map(|(_, block)| block.tiles().last()).max();
            let keys = end.map_or(0, |last| last + KEYS - first);
            let zeros = |wanted: bool| vec![0.0; if wanted { keys * inputs.width() } else { 0 }];
            let mut sums =
                Partial { row, key_head, first, key: zeros(wanted.key), value: zeros(wanted.value) };
            for (at, block) in blocks {
                let of_query = of_query.map(|rows| rows.take(block.at[0], block.at[1], block.at[2]));
                let step = Step { block, kept, wanted, scratch: memory.of_block(block.columns) };
                step.run(simd, of_query, of_bias.get_mut(at), &mut sums);
            }
            partials.push(sums);
        }
        partials
    }
}

/// One block of queries.
struct Step<'a, 'c, T> {
    block: Block<'a, T>,
    kept: BackwardInputs<'a, T>,
    wanted: WantedGradients,
    scratch: Scratch<'c>,
}

impl<T: Float> Step<'_, '_, T> {
    #[inline(always)]
    fn run<S: Simd>(
        self,
        simd: S,
        of_query: Option<rows::Block<T>>,
        mut of_bias: Option<&mut rows::Block<f32>>,
        sums: &mut Partial,
    ) {
        let Self { block, kept, wanted, mut scratch } = self;
        let Block { inputs, columns, .. } = block;
        let (size, width) = (inputs.size(), inputs.width());
        block.load_queries(&mut scratch);
        let inner = load_grads(&block, &kept, &mut scratch);
        let dropped = DroppedKeys::of(inputs.plan.drops.as_deref(), block.at, columns);
        let [row, head, query] = block.at;
        let line = inputs.queries.index([row, head, query / LINE], inputs.heads());
        let known = QueryTerms { logs: &kept.logs[line * LINE..][..columns], inner: &inner };
        let Scratch {
            queries,
            queries_turned,
            grads,
            grads_turned,
            key,
            value,
            scores,
            slopes,
            turned,
            from,
            to,
            ..
        } = scratch;
        let bounds = Bounds { from, to };
        turned.fill(0.0);
        let of_scores = wanted.query || wanted.key || wanted.bias;
        for first in block.tiles() {
            let keys = inputs.load_keys(block.key_row(), first, key, Some(&mut *value));
            let (inner, across, along) = (
                Size { rows: keys, depth: size, columns },
                Size { rows: keys, depth: columns, columns: width },
                Size { rows: width, depth: keys, columns },
            );
            product(simd, Straight { values: key, stride: width }, queries_turned, scores, inner, false);
            block.add_bias(scores, first, keys);
            if of_scores {
                product(simd, Straight { values: value, stride: width }, grads_turned, slopes, inner, false);
            }
            let masked = (!block.is_all_read(first, keys)).then_some(&bounds);
            let dropped = dropped.as_ref();
            let tile = Tile { first, keys, queries: columns, cap: block.cap(), bounds: masked, dropped };
            limit(tile, scores);
            slope(simd, tile, scores, slopes, known);
            let at = (first - sums.first) * width;
            if wanted.value {
                let left = Straight { values: scores, stride: columns };
                product(simd, left, grads, &mut sums.value[at..], across, true);
            }
            if wanted.key {
                let left = Straight { values: slopes, stride: columns };
                product(simd, left, queries, &mut sums.key[at..], across, true);
            }
            if wanted.query {
                product(simd, Turned { values: key, stride: width }, slopes, turned, along, true);
            }
            if let Some(rows) = of_bias.as_deref_mut() {
                for query in 0..block.count {
                    let sums = rows.row(query)[first..].iter_mut().take(keys);
                    for (sum, slope) in sums.zip(slopes[query..].iter().step_by(columns)) {
                        *sum += slope;
                    }
                }
            }
        }
        if let Some(mut rows) = of_query {
            let scale = inputs.plan.scale as f32;
            for query in 0..rows.len() {
                let wide = &mut key[..size];
                for (value, sum) in wide.iter_mut().zip(turned[query..].iter().step_by(columns)) {
                    *value = sum * scale;
                }
                T::narrow(wide, rows.row(query));
            }
        }
    }
}

/// Loads the gradients of a block's outputs, also turned, and their products with the outputs.
#[inline(always)]
fn load_grads<T: Float>(block: &Block<T>, kept: &BackwardInputs<T>, scratch: &mut Scratch) -> [f32; LINE] {
    let width = block.inputs.width();
    let Scratch { grads, grads_turned, outputs, .. } = scratch;
    kept.grad.widen(block.stored, block.count, grads, width);
    kept.output.widen(block.stored, block.count, outputs, width);
    turn(grads, width, 1.0, grads_turned, block.columns);
    let rows = grads.chunks_exact(width).zip(outputs.chunks_exact(width));
    let mut sums = [0.0; LINE];
    for (sum, (grads, outputs)) in sums.iter_mut().zip(rows) {
        *sum = grads.iter().zip(outputs).map(|(grad, output)| grad * output).sum();
    }
    sums
}

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
