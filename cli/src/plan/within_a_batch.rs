//! What ranks that train on the same samples send each other: those that share tokens, layers or blocks.

use std::collections::BTreeMap;

use firebrick_kernels::rows_of_logits;
use firebrick_strategies::Order;
use firebrick_strategies::cost::{CallsOfLayers, Sent, sent_in_context, sent_in_layers, sent_in_pipeline};
use firebrick_world::Collective;

use super::flops::Work;
use super::in_stages::FirstRank;
use crate::run::Shape;

/// What the first rank sends in an update to the others that train on its samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WithinABatch {
    /// To those with which it shares layers, by the kind of call.
    pub layers: BTreeMap<Collective, Sent>,
    /// The passes of these calls over the ranks: two for a sum that all of them get.
    pub passes_of_layers: u64,
    /// To those with which it shares tokens.
    pub tokens: BTreeMap<Collective, Sent>,
    /// The passes of these calls over the ranks.
    pub passes_of_tokens: u64,
    /// States and their gradients, to the other stages of a pipeline.
    pub states: Sent,
    /// The gradients of parameters outside blocks, which all stages have.
    pub outside: Sent,
    /// New parameters outside blocks that it does not read.
    pub unread: Sent,
}

impl WithinABatch {
    /// Returns what goes in each kind of call.
    pub fn calls(&self) -> impl Iterator<Item = (Collective, Sent)> {
        let to_stages = [
            (Collective::Send, self.states),
            (Collective::AllReduce, self.outside),
            (Collective::AllGather, self.unread),
        ];
        let by_kind = self.layers.iter().chain(&self.tokens).map(|(kind, sent)| (*kind, *sent));
        by_kind.chain(to_stages).filter(|(_, sent)| sent.elements > 0)
    }
}

impl Work {
    /// Returns what the first rank sends in an update to the others that train on its samples, but for parameters outside blocks.
    /// `again` is the share of the blocks that run again in the backward pass, `size_of` the bytes of an element of a
    /// parameter as passes read it, and `of_blocks` the share of the blocks that the rank has, whose parameters the
    /// shapes are.
    pub fn sent_within_a_batch(
        &self,
        order: &Order,
        shapes: &[Shape],
        [again, of_blocks]: [f64; 2],
        size_of: impl Fn(&Shape) -> u64,
    ) -> WithinABatch {
        let (context, tensor) = (order.context(), order.tensor());
        let micro_batches = order.micro_batches() as f64;
        let own = (self.keys_and_values(context) / tensor as u64) as f64 * of_blocks;
        let mut within = WithinABatch {
            tokens: sent_in_context(order, own.round() as u64, again),
            ..WithinABatch::default()
        };
        if context > 1 {
            let layers = self.attention.iter().map(|attention| attention.layers).sum::<usize>() as f64;
            // Keys and values go around forward; they and their gradients side by side in the backward pass.
            within.passes_of_tokens = (micro_batches * layers * of_blocks * (2.0 + again)).round() as u64;
        }
        let pipeline = order.pipeline();
        if pipeline.is_some() {
            // Those of the positions that a rank has between layers.
            let states = self.own_tokens(false, context).div_ceil(tensor as u64) * width_of(shapes);
            within.states = sent_in_pipeline(order, states);
        }
        if tensor == 1 {
            return within;
        }
        let mut calls = self.calls_of_blocks(shapes, [context, tensor], pipeline.is_some(), &size_of);
        if let Some(vocabulary) = shapes.iter().find(|shape| !shape.in_block && shape.divided == Some(0)) {
            let chunks = pipeline.as_ref().map(|pipeline| pipeline.schedule.chunks());
            calls.extend(self.calls_of_vocabulary(
                vocabulary,
                [context, tensor],
                size_of(vocabulary),
                chunks,
            ));
        }
        let passes = calls.iter().map(|one| {
            let times = if one.in_forward_of_blocks { 1.0 + again } else { 1.0 };
            let passes = if one.kind == Collective::AllReduce { 2.0 } else { 1.0 };
            one.calls as f64 * times * passes
        });
        within.passes_of_layers = (micro_batches * passes.sum::<f64>()).round() as u64;
        within.layers = sent_in_layers(order, &calls, again);
        within
    }

    /// The elements of the keys and values in all layers, of the tokens of the longest micro-batch that one of `context` ranks
    /// computes.
    fn keys_and_values(&self, context: usize) -> u64 {
        let [rows, columns] = self.longest;
        let own = 2 * columns.div_ceil(2 * context);
        let widths = self.attention.iter().map(|attention| 2 * attention.layers * attention.key_width);
        (rows * own * widths.sum::<usize>()) as u64
    }

    /// The tokens of the source or the target that one of `context` ranks computes: of the longest micro-batch, or on average
    /// in a model with a source.
    fn own_tokens(&self, is_source: bool, context: usize) -> u64 {
        if self.source.tokens > 0.0 {
            return (self.sequences(is_source).tokens / self.micro_batches.max(1.0)) as u64;
        }
        let [rows, columns] = self.longest;
        let own = if context > 1 { 2 * columns.div_ceil(2 * context) } else { columns };
        (rows * own) as u64
    }

    /// The calls of a micro-batch in blocks, and at their start and end. A layer gathers the states of all positions, and
    /// scatters the sums of what the ranks return; the gradients go the other way, where something before them is trained. Ranks
    /// sum the gradients of parameters that each of them has whole. The first rank of a pipeline has no end.
    fn calls_of_blocks(
        &self,
        shapes: &[Shape],
        [context, tensor]: [usize; 2],
        in_pipeline: bool,
        size_of: impl Fn(&Shape) -> u64,
    ) -> Vec<CallsOfLayers> {
        let width = width_of(shapes);
        let own = |is_source| self.own_tokens(is_source, context).div_ceil(tensor as u64) * width;
        let backward = |kind, elements, bytes| CallsOfLayers {
            kind,
            calls: 1,
            elements,
            bytes,
            in_forward_of_blocks: false,
        };
        let mut calls = Vec::new();
        // Of the target and the source: whether something so far is trained, and something before the layers that read positions.
        let (mut trained, mut before) = ([false; 2], [None; 2]);
        let (mut first, mut learn) = ([true; 2], [false; 2]);
        // Each parameter with its factors.
        for layer in shapes.chunk_by(|_, next| next.is_factor) {
            let (weight, is_source) = (&layer[0], self.is_source(&layer[0]));
            let (side, elements) = (usize::from(is_source), own(is_source));
            if weight.in_block && std::mem::take(&mut first[side]) {
                // The gradients of what the first block reads, and what the last one returns.
                let ends = u64::from(trained[side]) + u64::from(!in_pipeline);
                calls.push(CallsOfLayers { calls: ends, ..backward(Collective::AllGather, elements, None) });
            }
            if weight.in_block && weight.divided.is_some() {
                before[side].get_or_insert(trained[side]);
            }
            trained[side] |= layer.iter().any(|one| one.is_trained);
            if is_rows(&weight) {
                let of_input = before[side].take().unwrap_or(trained[side]);
                let [gather, scatter] = [Collective::AllGather, Collective::ReduceScatter]
                    .map(|kind| backward(kind, elements, None));
                // A block that does not run again gathers what its layers read once more, for the gradients of their weights.
                calls.push(match std::mem::take(&mut learn[side]) {
                    true => CallsOfLayers { calls: 2, ..gather },
                    false => CallsOfLayers { in_forward_of_blocks: true, ..gather },
                });
                calls.push(CallsOfLayers { in_forward_of_blocks: true, ..scatter });
                calls.extend(trained[side].then_some(gather));
                calls.extend(of_input.then_some(scatter));
            } else if weight.in_block && weight.divided.is_some() {
                learn[side] |= layer.iter().any(|one| one.learns_in_product);
            }
        }
        // The first rank of a pipeline does not read what is behind the blocks.
        let reads = |shape: &&Shape| !in_pipeline || FirstRank::reads(shapes, shape);
        let is_summed = |shape: &&Shape| shape.in_block || shape.at_own_positions && reads(shape);
        let whole = shapes.iter().filter(is_summed);
        let whole = whole.filter(|shape| shape.divided.is_none() && shape.is_trained);
        let of_whole =
            |shape: &Shape| backward(Collective::AllReduce, shape.elements(), Some(size_of(shape)));
        calls.extend(whole.map(of_whole));
        // An attention over a source reads two tensors.
        let crosses = self.attention.iter().filter(|one| one.of_source != one.over_source);
        calls.extend(crosses.map(|one| {
            let elements = self.own_tokens(one.over_source, context) * width;
            CallsOfLayers { calls: one.layers as u64, ..backward(Collective::AllReduce, elements, None) }
        }));
        calls
    }

    /// Whether there is a source, and the target.
    fn sides(&self) -> impl Iterator<Item = bool> {
        [(self.source.tokens > 0.0).then_some(true), Some(false)].into_iter().flatten()
    }

    /// The calls of a micro-batch of the ranks that divide a vocabulary, whose embeddings take `size` bytes an element: of the
    /// embeddings of tokens, which each stage of a rank looks up, and of the loss and the gradient of its input, as if each token had a
    /// label. The first rank of a pipeline has no loss, but so many stages.
    fn calls_of_vocabulary(
        &self,
        vocabulary: &Shape,
        [context, tensor]: [usize; 2],
        size: u64,
        stages: Option<usize>,
    ) -> Vec<CallsOfLayers> {
        let of = |kind, elements, bytes| CallsOfLayers {
            kind,
            calls: 1,
            elements,
            bytes: Some(bytes),
            in_forward_of_blocks: false,
        };
        let sum = |elements, bytes| of(Collective::AllReduce, elements, bytes);
        let width = vocabulary.shape[1..].iter().product::<usize>() as u64;
        let mut calls: Vec<_> =
            self.sides().map(|is_source| sum(self.own_tokens(is_source, context) * width, size)).collect();
        if let Some(stages) = stages {
            return calls.repeat(stages);
        }
        let labels = self.own_tokens(false, context);
        calls.push(sum(labels * width, 4));
        // The largest logit of each row.
        calls.push(of(Collective::AllGather, labels, 4));
        // Three numbers for each row of a chunk of logits.
        let chunk = rows_of_logits(vocabulary.shape[0].div_ceil(tensor)) as u64;
        let chunks = (0..labels).step_by(chunk as usize);
        calls.extend(chunks.map(|start| sum(3 * chunk.min(labels - start), 4)));
        calls
    }
}

/// Whether a parameter is the weight of a layer in a block that reads what other layers of the block have computed.
fn is_rows(shape: &&Shape) -> bool {
    shape.in_block && shape.divided == Some(0) && shape.shape.len() == 2 && !shape.is_factor
}

/// The width of the states between blocks.
fn width_of(shapes: &[Shape]) -> u64 {
    shapes.iter().find(is_rows).map_or(0, |shape| shape.shape[1] as u64)
}
