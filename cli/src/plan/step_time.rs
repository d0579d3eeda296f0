//! The seconds of an update on a cluster: what each rank computes and sends, and which of it happens at the same time.

use std::collections::BTreeMap;

use firebrick_strategies::Order;
use firebrick_strategies::cost::{PlannedParam, SUMS_IN_FLIGHT, Sent, sent, sent_across};
use firebrick_world::Collective;
use serde::Serialize;

use super::cluster::{Cluster, Group};
use super::flops::PassFlops;
use super::within_a_batch::WithinABatch;

/// Seconds of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTime {
    /// Seconds in which a rank computes forward and backward passes, recomputed blocks included.
    pub compute_seconds: f64,
    /// Seconds in which its collectives are under way.
    pub communication_seconds: f64,
    /// Of these, seconds in which it does not compute.
    pub exposed_seconds: f64,
    /// Seconds of the update: `compute_seconds + exposed_seconds`.
    pub step_seconds: f64,
}

/// What a rank sends in an update, by the kind of call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Parameters and gradients of blocks.
    pub blocks: BTreeMap<Collective, Sent>,
    /// Those of all other parameters.
    pub rest: BTreeMap<Collective, Sent>,
    /// The part of `blocks` that goes to other groups in hybrid sharding, of [`Collective::AllReduce`].
    pub blocks_across: Sent,
    /// The same part of `rest`.
    pub rest_across: Sent,
}

impl Traffic {
    /// Counts what the first rank sends, which is at least as much as any other.
    pub(super) fn of<'a, P>(params: impl Fn() -> P, order: &Order, ranks: u64) -> Self
    where
        P: Iterator<Item = PlannedParam<'a>>,
    {
        let of = |in_block: bool| params().filter(move |param| param.in_block == in_block);
        Self {
            blocks: sent(of(true), order, 0, ranks),
            rest: sent(of(false), order, 0, ranks),
            blocks_across: sent_across(of(true), order, 0, ranks),
            rest_across: sent_across(of(false), order, 0, ranks),
        }
    }

    /// Returns the bytes of all calls.
    pub fn bytes(&self) -> u64 {
        self.blocks.values().chain(self.rest.values()).map(|sent| sent.bytes).sum()
    }
}

/// One update of a run on a cluster.
pub(super) struct Step<'a> {
    pub cluster: &'a Cluster,
    /// The order of the strategies.
    pub order: &'a Order,
    /// Number of blocks of a rank.
    pub blocks: u64,
    /// Operations of a rank in a micro-batch.
    pub flops: PassFlops,
    /// Operations per second of a rank.
    pub speed: f64,
    pub traffic: &'a Traffic,
    /// What it sends to the others that train on its samples.
    pub within: &'a WithinABatch,
    /// Whether the sum of a block's gradients is under way while the backward pass goes on.
    pub sums_overlap: bool,
}

/// Whether the sums of blocks' gradients overlap with the backward pass in this version.
pub(super) const SUMS_OVERLAP: bool = SUMS_IN_FLIGHT > 0;

/// Seconds of a block's part of a pass, and of its calls.
struct Block {
    forward: f64,
    backward: f64,
    gather: f64,
    sum: f64,
}

impl Step<'_> {
    /// Computes the seconds of the update.
    ///
    /// With k micro-batches and L blocks, where a block takes f forward and b backward (with what it recomputes), its
    /// gather g, the sum of its gradients s:
    ///
    /// ```text
    /// forward   root + g + (L-1) max(f, g) + f             the next block is gathered while one computes
    /// backward  root + (L-1) max(b, g) + b + L s + root sum     if the pass waits for each block's sum
    ///           root + b + (L-1) max(b, g + s) + s + root sum   if it does not
    /// step      k (forward + backward) + within + bubble + sums of stages 0 and 1, and of what all stages have + root gather
    /// within    the calls between ranks that share layers or tokens
    /// bubble    (p-1)/(v k) of the passes and of `within`, and 2 (p-1) hops to the next stage
    /// ```
    ///
    /// Stages 0 and 1 have no s: they sum all gradients after the passes. In stages 1 and 2, g is the gather of a block's new
    /// parameters in the first forward pass, and 0 in the others and in the backward passes. Stage 0 has no gathers.
    pub fn time(&self) -> StepTime {
        let (stage, blocks) = (self.order.stage(), self.blocks as f64);
        let micro_batches = self.order.micro_batches() as u64;
        let PassFlops { forward_in_blocks, forward_elsewhere, backward_in_blocks, backward_elsewhere } =
            self.flops;
        let seconds = |flops: f64| flops / self.speed;
        let by_block = |flops: f64| seconds(flops) / blocks.max(1.0);
        let gathers = [Collective::AllGather];
        let sums = [Collective::ReduceScatter, Collective::AllReduce];
        let (per_block, per_pass) = (micro_batches * self.blocks, micro_batches);

        let mut block = Block {
            forward: by_block(forward_in_blocks),
            backward: by_block(backward_in_blocks),
            gather: 0.0,
            sum: 0.0,
        };
        let (mut root_sum, mut sum_all) = (0.0, 0.0);
        let root = self.call(false, &gathers, 1);
        // The gather of a block in the first forward pass, if the others have none.
        let mut published = 0.0;
        match stage {
            // The last block is kept for its backward pass.
            3 => block.gather = self.call(true, &gathers, (2 * per_block).saturating_sub(per_pass)),
            _ => published = self.call(true, &gathers, self.blocks),
        }
        let sums_in_update = if self.order.sums_each_micro_batch() { micro_batches } else { 1 };
        if stage >= 2 {
            block.sum = self.call(true, &sums, per_block);
            root_sum = self.call(false, &sums, per_pass);
        } else {
            sum_all = self.call(true, &sums, sums_in_update) + self.call(false, &sums, sums_in_update);
        }

        let passes = seconds(forward_elsewhere + backward_elsewhere) + root_sum + self.through_blocks(&block);
        let times = micro_batches as f64;
        let waits = self.forward(block.forward, published) - self.forward(block.forward, 0.0);
        let (within, outside) = (self.within_seconds(), self.outside_seconds());
        let (bubble, hops) = self.bubble(times * passes + within);
        let step_seconds =
            times * passes + within + bubble + waits + sums_in_update as f64 * sum_all + outside + root;
        let compute_seconds = times * seconds(self.flops.all());
        let in_passes = (2.0 * blocks - 1.0).max(0.0) * block.gather + blocks * block.sum + root_sum;
        StepTime {
            compute_seconds,
            communication_seconds: times * in_passes
                + within
                + hops
                + outside
                + blocks * published
                + sums_in_update as f64 * sum_all
                + root,
            exposed_seconds: (step_seconds - compute_seconds).max(0.0),
            step_seconds,
        }
    }

    /// Returns the seconds in which a forward and a backward pass go through all blocks.
    fn through_blocks(&self, block: &Block) -> f64 {
        if self.blocks == 0 {
            return 0.0;
        }
        let (blocks, others) = (self.blocks as f64, (self.blocks - 1) as f64);
        let Block { forward, backward, gather, sum } = *block;
        let backward = match self.sums_overlap {
            false => others * backward.max(gather) + backward + blocks * sum,
            true => backward + others * backward.max(gather + sum) + sum,
        };
        self.forward(forward, gather) + backward
    }

    /// Returns the seconds in which a forward pass goes through all blocks.
    fn forward(&self, forward: f64, gather: f64) -> f64 {
        match self.blocks {
            0 => 0.0,
            blocks => gather + (blocks - 1) as f64 * forward.max(gather) + forward,
        }
    }

    /// The number of ranks that have one copy of the model.
    fn per_model(&self) -> u64 {
        self.order.ranks_per_model().max(1) as u64
    }

    /// The ranks that hold the same part of the model.
    fn copies(&self) -> Group {
        self.strided(self.cluster.ranks() / self.per_model(), self.per_model())
    }

    /// A group of so many ranks, each of which is so many behind the one before.
    fn strided(&self, ranks: u64, stride: u64) -> Group {
        Group { ranks, per_node: (self.cluster.gpus / stride).clamp(1, ranks.max(1)) }
    }

    /// The seconds of all calls between ranks that share layers, and between those that share tokens: nothing is computed beside them.
    fn within_seconds(&self) -> f64 {
        let bytes = |sent: &BTreeMap<Collective, Sent>| sent.values().map(|sent| sent.bytes).sum();
        let WithinABatch { layers, passes_of_layers, tokens, passes_of_tokens, .. } = self.within;
        let of_layers = self.strided(self.order.tensor() as u64, 1);
        let of_tokens = self.strided(self.order.context() as u64, self.per_model());
        self.cluster.seconds(of_layers, bytes(layers), *passes_of_layers)
            + self.cluster.seconds(of_tokens, bytes(tokens), *passes_of_tokens)
    }

    /// The seconds of the sum of what all stages of a pipeline have, and of the gather of what the rank does not read of it.
    fn outside_seconds(&self) -> f64 {
        let stages = self.order.pipeline().map_or(1, |pipeline| pipeline.ranks as u64);
        let stages = self.strided(stages, self.order.tensor() as u64);
        self.cluster.seconds(stages, self.within.outside.bytes, 2)
            + self.cluster.seconds(self.copies(), self.within.unread.bytes, 1)
    }

    /// The seconds in which a rank waits for the other stages of a pipeline, which compute for so many, and those of all that it sends
    /// to the next one.
    fn bubble(&self, seconds: f64) -> (f64, f64) {
        let Some(pipeline) = self.order.pipeline() else { return (0.0, 0.0) };
        let (chunks, micro_batches) = (pipeline.schedule.chunks() as u64, self.order.micro_batches() as u64);
        let sends = (2 * chunks - 1) * micro_batches;
        let next = self.strided(2, self.order.tensor() as u64);
        let hop = self.cluster.seconds(next, self.within.states.bytes / sends, 1);
        let others = (pipeline.ranks - 1) as f64;
        (others * (seconds / (chunks * micro_batches) as f64 + 2.0 * hop), sends as f64 * hop)
    }

    /// Returns the seconds of one of so many calls of these kinds. Groups share what they gather and sum to shards; the
    /// sums of shards go across groups, and those of replicated parameters to all ranks.
    fn call(&self, of_blocks: bool, kinds: &[Collective], calls: u64) -> f64 {
        if calls == 0 {
            return 0.0;
        }
        let all = self.copies();
        let sharing = self.order.sharing(all.ranks).max(1);
        let group = Group { ranks: sharing, per_node: sharing.min(all.per_node) };
        let across = Group { ranks: all.ranks / sharing, per_node: (all.per_node / sharing).max(1) };
        let Traffic { blocks, rest, blocks_across, rest_across } = self.traffic;
        let (sent, sent_across) = if of_blocks { (blocks, blocks_across) } else { (rest, rest_across) };
        let seconds = kinds.iter().map(|kind| {
            let bytes = sent.get(kind).map_or(0, |sent| sent.bytes);
            match kind {
                Collective::AllReduce => {
                    let to_all = bytes.saturating_sub(sent_across.bytes);
                    self.cluster.seconds(across, sent_across.bytes, 2 * calls)
                        + self.cluster.seconds(all, to_all, 2 * calls)
                }
                _ => self.cluster.seconds(group, bytes, calls),
            }
        });
        seconds.sum::<f64>() / calls as f64
    }
}

#[cfg(test)]
#[path = "step_time_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "published_tests.rs"]
mod published_tests;
