//! Tests that every valid order of strategies trains like a single rank without them.

use firebrick_strategies::BoxedStrategy;

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
    fn recipe(&self) -> BoxedStrategy<Model> {
        match self {
            Self::Zero(stage) => BoxedStrategy::new(zero(*stage)),
            Self::Offload(offload) => BoxedStrategy::new(offload.clone()),
            Self::Recompute => BoxedStrategy::new(Recompute::every_block()),
            Self::Accumulate => BoxedStrategy::new(Accumulate(MICRO_BATCHES)),
            Self::Half => BoxedStrategy::new(half()),
            Self::Clip => BoxedStrategy::new(Clip::norm(BOUND)),
        }
    }
}

fn recipes(list: &[One]) -> Vec<BoxedStrategy<Model>> {
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

/// Runs each order on two ranks, and returns how many start. A rejected order must be rejected on all ranks.
fn follow(list: &[One], expected: &(Vec<f32>, f32), tolerance: f32) -> usize {
    let starts = |order: &Vec<One>| {
        let found = ranks(2, recipes(order));
        let refused = found.iter().filter(|found| found.is_err()).count();
        assert!(refused == 0 || refused == 2, "{order:?}: {found:?}");
        if refused == 0 {
            follow_found(found, expected, order, tolerance);
        }
        refused == 0
    };
    orders(list).iter().filter(|order| starts(order)).count()
}

#[test]
fn all_orders_that_start_follow_one_rank() {
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
            let started = follow(&list, &expected, TOLERANCE);
            assert!(started > 0, "no order of {list:?} starts");
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
            let started = follow(&list, &alone, OF_HALF);
            assert!(started > 0, "no order of {list:?} starts");
        }
    }
}
