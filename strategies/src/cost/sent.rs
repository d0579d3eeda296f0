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
/// | 3 | 3k in a block, 2k elsewhere | 2k |
///
/// with k micro-batches. Stages 0 and 1 send gradients k times if they come before `Accumulate` in the list. Scalars,
/// such as norms and flags, are counted separately.
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
                // Each rank sums a chunk and sends the sum to all others.
                let chunk = whole.div_ceil(ranks);
                let own = ((rank + 1) * chunk).min(whole) - (rank * chunk).min(whole);
                add(Kind::AllReduce, times * (whole - own), wire);
                add(Kind::AllReduce, times * (ranks - 1) * own, size.max(wire));
            }
            None => (),
            Some(padded) => {
                let part = padded / ranks * (ranks - 1);
                if param.is_trained {
                    add(Kind::ReduceScatter, times * part, wire);
                }
                let gathered = match (order.stage(), param.in_block) {
                    (3, true) => 2 * micro_batches,
                    (3, false) => micro_batches,
                    _ => 1,
                };
                add(Kind::AllGather, gathered * part, size);
            }
        }
    }
    sent
}
