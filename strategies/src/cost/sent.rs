//! Counts what a rank sends to the others in an update, element by element, as the transport counts it.

use std::collections::BTreeMap;

use burn::tensor::DType;
use firebrick_world::Collective;
use serde::Serialize;

use super::PlannedParam;
use crate::Order;

/// Elements and bytes of tensors that a rank sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Elements.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Returns what `rank` of `ranks` sends in an update of a whole global batch, by the kind of call.
///
/// | stage | sent per sharded parameter, times (N-1)/N | sent per replicated parameter, times (N-1)/N |
/// |---|---|---|
/// | 0 | - | 2 |
/// | 1 | 2 | 2 |
/// | 2 | k + 1 | 2k |
/// | 3 | 3k in a block, 2k in the last one, k + 1 outside blocks | 2k |
///
/// with k micro-batches. The backward pass begins with the last block, whose parameters are still there; what is in no block
/// is gathered once for all micro-batches. If [groups](crate::Zero::within) of N ranks have a copy each, a rank also sends
/// 2(C-1)/C of its shard of the gradients to the C copies, whenever gradients are summed. Stages 0 and 1 send gradients k
/// times if they sum [each micro-batch](crate::Zero::each_micro_batch). Scalars, such as norms and flags, are counted separately.
pub fn sent<'a>(
    params: impl IntoIterator<Item = PlannedParam<'a>>,
    order: &Order,
    rank: u64,
    ranks: u64,
) -> BTreeMap<Collective, Sent> {
    let mut sent = BTreeMap::new();
    if ranks < 2 {
        return sent;
    }
    let micro_batches = order.micro_batches() as u64;
    let times = if order.sums_each_micro_batch() { micro_batches } else { 1 };
    let reduces = order.reduces();
    let sum_in = reduces.and_then(|reduces| reduces.sum_in);
    let sums_once = reduces.is_some_and(|reduces| !reduces.each_micro_batch);
    let each = order.sharing(ranks);
    let mut add = |kind, elements: u64, size: u64| {
        let all: &mut Sent = sent.entry(kind).or_default();
        all.elements += elements;
        all.bytes += elements * size;
    };
    for param in params {
        let size = param.replica_bytes;
        // What is summed once per update is in f32.
        let of_sum = if sums_once { size.max(4) } else { size };
        let wire = sum_in.map_or(of_sum, |dtype| DType::from(dtype).size() as u64);
        let whole = param.elements();
        match param.padded(order, ranks) {
            None if param.is_trained => {
                let [parts, sums] = chunks(whole, rank, ranks);
                add(Collective::AllReduce, times * parts, wire);
                add(Collective::AllReduce, times * sums, of_sum.max(wire));
            }
            None => (),
            Some(padded) => {
                let part = padded / each * (each - 1);
                if param.is_trained {
                    add(Collective::ReduceScatter, times * part, wire);
                    let [parts, sums] = chunks(padded / each, rank / each, ranks / each);
                    add(Collective::AllReduce, times * parts, wire);
                    add(Collective::AllReduce, times * sums, of_sum.max(wire));
                }
                let gathered = match (order.stage(), param.in_block, param.in_last_block) {
                    (3, true, false) => 2 * micro_batches,
                    (3, true, true) => micro_batches,
                    _ => 1,
                };
                add(Collective::AllGather, gathered * part, size);
            }
        }
    }
    sent
}

/// Returns what a rank sends in an update of a whole global batch to those with which it [shares](crate::Mesh::context)
/// the tokens of its samples, by the kind of call. `own` are the elements of the keys and values of its tokens in all
/// layers, in one micro-batch, and `again` is the share of the layers that run again in the backward pass.
///
/// A layer hands on the keys and values of C - 1 ranks whenever it runs and once more in the backward pass, where it hands on the
/// gradients of those of all C, in f32.
pub fn sent_in_context(order: &Order, own: u64, again: f64) -> BTreeMap<Collective, Sent> {
    let others = order.context() as u64 - 1;
    if others == 0 {
        return BTreeMap::new();
    }
    let once = order.micro_batches() as u64 * own;
    let run = others * once + (again * (others * once) as f64) as u64;
    let size = DType::from(order.training_dtype()).size() as u64;
    let (keys, gradients) = (run + others * once, (others + 1) * once);
    let sent = Sent { elements: keys + gradients, bytes: keys * size + 4 * gradients };
    BTreeMap::from([(Collective::Shift, sent)])
}

/// Calls of one kind among the ranks that [share](crate::Mesh::tensor) layers, in a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallsOfLayers {
    /// [`Collective::AllReduce`], [`Collective::AllGather`] or [`Collective::ReduceScatter`].
    pub kind: Collective,
    /// Their number.
    pub calls: u64,
    /// The elements of each: of the whole sum, or those of one rank's positions that the ranks gather or scatter.
    pub elements: u64,
    /// The bytes of an element; that of activations if `None`.
    pub bytes: Option<u64>,
    /// Whether blocks that run again in the backward pass make them again.
    pub in_forward_of_blocks: bool,
}

/// Returns what the first rank sends in an update of a whole global batch to those with which it shares layers, in
/// these calls, by their kind. `again` is the share of the blocks that run again in the backward pass.
///
/// A sum of n elements over T ranks sends 2 n (T - 1)/T (Narayanan et al., 2021, arXiv:2104.04473, section 3.2). To gather n
/// elements in all, or to scatter their sums, sends n (T - 1)/T (Korthikanti et al., 2022, arXiv:2205.05198, section 4.2.2).
pub fn sent_in_layers(order: &Order, calls: &[CallsOfLayers], again: f64) -> BTreeMap<Collective, Sent> {
    let (ranks, micro_batches) = (order.tensor() as u64, order.micro_batches() as u64);
    let size = DType::from(order.training_dtype()).size() as u64;
    let mut times = BTreeMap::<(Collective, u64, u64), f64>::new();
    for &CallsOfLayers { kind, calls, elements, bytes, in_forward_of_blocks } in calls {
        let again = if in_forward_of_blocks { again } else { 0.0 };
        *times.entry((kind, elements, bytes.unwrap_or(size))).or_default() += calls as f64 * (1.0 + again);
    }
    let mut sent = BTreeMap::<Collective, Sent>::new();
    for ((kind, elements, bytes), times) in times {
        let each = match kind {
            Collective::AllReduce => chunks(elements, 0, ranks).iter().sum::<u64>(),
            _ => elements * (ranks - 1),
        };
        let elements = (micro_batches as f64 * times).round() as u64 * each;
        let all = sent.entry(kind).or_default();
        *all = Sent { elements: all.elements + elements, bytes: all.bytes + elements * bytes };
    }
    sent
}

/// Returns what the first rank of a [pipeline](crate::Mesh::pipeline) sends to the next ones in an update of a whole
/// global batch, where the states of its tokens in one micro-batch have so many elements: each of its stages sends the
/// states that it returns, and each but the model's first one the gradients of those that it reads.
pub fn sent_in_pipeline(order: &Order, states: u64) -> Sent {
    let Some(pipelined) = order.pipeline() else { return Sent::default() };
    let times = 2 * pipelined.schedule.chunks() as u64 - 1;
    let elements = times * order.micro_batches() as u64 * states;
    Sent { elements, bytes: elements * DType::from(order.training_dtype()).size() as u64 }
}

/// Returns what the first rank of a pipeline sends to the others to sum the gradients of a parameter that each of them has, once in
/// an update. It has a part of the sum where it `reads` the parameter. `ranks` share the state of a stage.
pub fn sent_of_outside(param: &PlannedParam<'_>, reads: bool, order: &Order, ranks: u64) -> Sent {
    let Some(pipelined) = order.pipeline().filter(|_| param.is_trained) else { return Sent::default() };
    let whole = param.elements();
    let own = param.padded(order, ranks).map_or(whole, |padded| padded / order.sharing(ranks));
    let [parts, sums] = chunks(own, 0, pipelined.ranks as u64);
    let elements = sums + if reads { parts } else { 0 };
    Sent { elements, bytes: elements * param.master_bytes }
}

/// Returns the part of [`sent`] that goes to other copies, of the calls of [`Collective::AllReduce`]: the sums of shards of
/// gradients, if [groups](crate::Zero::within) have a copy of the state each.
///
/// Zhao et al., *PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel*, 2023 (arXiv:2304.11277), section
/// 3.2.2.
pub fn sent_across<'a>(
    params: impl IntoIterator<Item = PlannedParam<'a>>,
    order: &Order,
    rank: u64,
    ranks: u64,
) -> Sent {
    let (each, mut across) = (order.sharing(ranks), Sent::default());
    if each >= ranks {
        return across;
    }
    let of_shards =
        params.into_iter().filter(|param| param.is_trained && param.padded(order, ranks).is_some());
    if let Some(sums) = sent(of_shards, order, rank, ranks).get(&Collective::AllReduce) {
        across = *sums;
    }
    across
}

/// Returns what the rank sends in a sum of so many elements: its parts of the chunks of others, and the sum of its own
/// chunk to all of them.
fn chunks(elements: u64, rank: u64, ranks: u64) -> [u64; 2] {
    let chunk = elements.div_ceil(ranks);
    let own = ((rank + 1) * chunk).min(elements) - (rank * chunk).min(elements);
    [elements - own, (ranks - 1) * own]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accumulate, Amp, StrategyRecipe, Zero};

    fn param(shape: &[usize]) -> PlannedParam<'_> {
        PlannedParam {
            shape,
            master_bytes: 4,
            replica_bytes: 2,
            is_trained: true,
            in_block: true,
            in_last_block: false,
            is_factor: false,
            packing: None,
        }
    }

    /// Within a group as stage 3 on so many ranks; across groups the sum of a shard of the gradients.
    #[test]
    fn hybrid_sharding_sends_shards_between_groups() {
        let of =
            |zero: Zero| Order::of([zero.effects(), Amp::bf16().effects(), Accumulate(3).effects()]).unwrap();
        let order = of(Zero::stage(3).within(4));
        let (matrix, bias) = (param(&[64, 32]), param(&[30]));
        for rank in 0..8 {
            let all = sent([matrix, bias], &order, rank, 8);
            // 3 micro-batches, 2 gathers and one sum of 3/4 of the matrix in bf16.
            let part = 64 * 32 * 3 / 4;
            assert_eq!(all[&Collective::AllGather], Sent { elements: 6 * part, bytes: 12 * part });
            assert_eq!(all[&Collective::ReduceScatter], Sent { elements: 3 * part, bytes: 6 * part });
            // 2 (C-1)/C of a quarter of the matrix, with C = 2 copies.
            let left = 64 * 32 / 4;
            let across = sent_across([matrix, bias], &order, rank, 8);
            assert_eq!(across, Sent { elements: 3 * left, bytes: 6 * left }, "rank {rank}");
        }
        let frozen = PlannedParam { is_trained: false, ..matrix };
        assert_eq!(sent_across([frozen], &order, 0, 8), Sent::default(), "nothing to sum");
        assert_eq!(sent_across([matrix], &order, 0, 4), Sent::default(), "one copy");
        assert_eq!(sent_across([matrix, bias], &of(Zero::stage(3)), 0, 8), Sent::default(), "no groups");
    }
}
