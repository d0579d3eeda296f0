//! Counts what a rank sends to the others in an update, element by element, as the transport counts it.

use std::collections::BTreeMap;

use burn::tensor::DType;
use firebrick_world::Kind;
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

/// Returns what `rank` of `ranks` sends in an update of whole windows, by the kind of call.
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
/// times if they come before `Accumulate` in the list. Scalars, such as norms and flags, are counted separately.
pub fn sent<'a>(
    params: impl IntoIterator<Item = PlannedParam<'a>>,
    order: &Order,
    rank: u64,
    ranks: u64,
) -> BTreeMap<Kind, Sent> {
    let mut sent = BTreeMap::new();
    if ranks < 2 {
        return sent;
    }
    let micro_batches = order.micro_batches() as u64;
    let times = if order.sums_each_micro_batch() { micro_batches } else { 1 };
    let sum_in = order.reduces().and_then(|reduces| reduces.sum_in);
    let each = order.sharing(ranks);
    // The place among so many ranks that sum a part in chunks, each of which then sends its sum to all others.
    let chunks = |elements: u64, rank: u64, ranks: u64| {
        let chunk = elements.div_ceil(ranks);
        let own = ((rank + 1) * chunk).min(elements) - (rank * chunk).min(elements);
        [elements - own, (ranks - 1) * own]
    };
    let mut add = |kind, elements: u64, size: u64| {
        let all: &mut Sent = sent.entry(kind).or_default();
        all.elements += elements;
        all.bytes += elements * size;
    };
    for param in params {
        let size = if order.exchanges_replica() { param.replica_bytes } else { param.master_bytes };
        let wire = sum_in.map_or(size, |dtype| DType::from(dtype).size() as u64);
        let whole = param.elements();
        match param.padded(order, ranks) {
            None if param.is_trained => {
                let [parts, sums] = chunks(whole, rank, ranks);
                add(Kind::AllReduce, times * parts, wire);
                add(Kind::AllReduce, times * sums, size.max(wire));
            }
            None => (),
            Some(padded) => {
                let part = padded / each * (each - 1);
                if param.is_trained {
                    add(Kind::ReduceScatter, times * part, wire);
                    let [parts, sums] = chunks(padded / each, rank / each, ranks / each);
                    add(Kind::AllReduce, times * parts, wire);
                    add(Kind::AllReduce, times * sums, size.max(wire));
                }
                let gathered = match (order.stage(), param.in_block, param.in_last_block) {
                    (3, true, false) => 2 * micro_batches,
                    (3, true, true) => micro_batches,
                    _ => 1,
                };
                add(Kind::AllGather, gathered * part, size);
            }
        }
    }
    sent
}
