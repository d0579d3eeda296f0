//! Tests that strategies in every order train like a single rank without them.

use std::collections::HashSet;

use firebrick_strategies::{Composed, Composition, Order};

use super::*;

/// Below the first norm, which is reported before clipping.
const BOUND: f64 = 1.0;

/// A strategy in a list.
#[derive(Clone, Debug, PartialEq)]
enum One {
    Zero(u8),
    Offload(Offload),
    Recompute,
    Accumulate,
    Half,
    Clip,
}

impl One {
    fn recipe(&self) -> Composed<Model> {
        match self {
            Self::Zero(stage) => Composed::new().with(zero(*stage)),
            Self::Offload(offload) => Composed::new().with(offload.clone()),
            Self::Recompute => Composed::new().with(Recompute::every_block()),
            Self::Accumulate => Composed::new().with(Accumulate(MICRO_BATCHES)),
            Self::Half => Composed::new().with(half()),
            Self::Clip => Composed::new().with(Clip::norm(BOUND)),
        }
    }
}

fn recipes(list: &[One]) -> Vec<Composed<Model>> {
    list.iter().map(|one| one.recipe()).collect()
}

/// Returns all permutations of a list.
fn orders(list: &[One]) -> Vec<Vec<One>> {
    let Some((first, rest)) = list.split_first() else { return vec![Vec::new()] };
    let with_first = |order: Vec<One>| {
        (0..=order.len()).map(move |place| {
            let mut order = order.clone();
            order.insert(place, first.clone());
            order
        })
    };
    orders(rest).into_iter().flat_map(with_first).collect()
}

/// Runs a list on two ranks, once for each order in which its strategies may follow one another.
fn follow(list: &[One], expected: &(Vec<f32>, f32), tolerance: f32) {
    let mut seen = HashSet::new();
    for written in orders(list) {
        let effects: Vec<_> =
            recipes(&written).strategies().iter().map(|strategy| strategy.effects()).collect();
        let order = Order::of(effects).unwrap();
        let names: Vec<_> = order.effects().iter().map(|effects| effects.strategy).collect();
        if seen.insert(names) {
            follow_found(ranks(2, recipes(&written)), expected, &written, tolerance);
        }
    }
}

#[test]
fn all_orders_follow_one_rank() {
    if !is_cpu() {
        return; // Kernels are slow if a processor emulates the GPU.
    }
    let (_, norm) = plain();
    assert!(f64::from(norm) > 2.0 * BOUND);
    let (clipped, _) = rank(Communicator::solo(), recipes(&[One::Accumulate, One::Clip])).unwrap();
    let expected = (clipped, norm);
    for stage in 0..=3 {
        for offload in [None, Some(Offload::optimizer()), Some(Offload::parameters())] {
            let list = [One::Zero(stage), One::Recompute, One::Accumulate, One::Clip];
            let list: Vec<One> = list.into_iter().chain(offload.map(One::Offload)).collect();
            follow(&list, &expected, TOLERANCE);
        }
    }
}

#[test]
fn so_do_those_in_half_precision() {
    if !is_cpu() {
        return;
    }
    let alone = rank(Communicator::solo(), recipes(&[One::Half, One::Accumulate])).unwrap();
    for stage in 0..=3 {
        for offload in [None, Some(Offload::optimizer()), Some(Offload::parameters())] {
            let list = [One::Zero(stage), One::Half, One::Accumulate];
            let list: Vec<One> = list.into_iter().chain(offload.map(One::Offload)).collect();
            follow(&list, &alone, OF_HALF);
        }
    }
}
