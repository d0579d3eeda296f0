//! Tests that strategies train like a single rank without them, in whichever order they are written and whenever they act.

use firebrick_strategies::{Composed, Composition, Order};

use super::*;

/// Below the first norm, which is reported before clipping.
const BOUND: f64 = 1.0;

/// A strategy in a list.
#[derive(Clone, Debug, PartialEq)]
enum One {
    Zero(Zero),
    Offload(Offload),
    Recompute,
    Accumulate,
    Half,
    Clip,
}

impl One {
    fn recipe(&self) -> Composed<Model> {
        match self {
            Self::Zero(zero) => Composed::new().with(zero.clone()),
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

/// Runs a list on two ranks, as it is written and in the opposite order, which are executed alike.
fn follow(list: &[One], expected: &(Vec<f32>, f32), tolerance: f32) {
    let opposite: Vec<One> = list.iter().rev().cloned().collect();
    let [order, of_opposite] = [list, &opposite].map(|written| {
        let effects: Vec<_> =
            recipes(written).strategies().iter().map(|strategy| strategy.effects()).collect();
        Order::of(effects).unwrap()
    });
    let execution = |order: &Order| -> Vec<_> {
        let executes = |name: &&str| !matches!(*name, "Recompute" | "Clip");
        order.effects().iter().map(|effects| effects.strategy).filter(executes).collect()
    };
    assert_eq!(execution(&order), execution(&of_opposite), "{list:?}");
    follow_found(ranks(2, recipes(list)), expected, &list, tolerance);
}

/// Each stage of ZeRO, each way to offload, and each choice of when they act.
fn choices() -> impl Iterator<Item = Vec<One>> {
    let zeros = (0..=3).map(zero).chain([0, 1].map(|stage| zero(stage).each_micro_batch()));
    let offloads = [
        None,
        Some(Offload::optimizer()),
        Some(Offload::optimizer().each_update()),
        Some(Offload::parameters()),
    ];
    zeros.flat_map(move |zero| {
        let with = move |offload: Option<Offload>| {
            [One::Zero(zero.clone())].into_iter().chain(offload.map(One::Offload)).collect()
        };
        offloads.clone().into_iter().map(with)
    })
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
    for choice in choices() {
        let list = [One::Recompute, One::Accumulate, One::Clip];
        follow(&choice.into_iter().chain(list).collect::<Vec<_>>(), &expected, TOLERANCE);
    }
}

#[test]
fn so_do_those_in_half_precision() {
    if !is_cpu() {
        return;
    }
    let alone = rank(Communicator::solo(), recipes(&[One::Half, One::Accumulate])).unwrap();
    for choice in choices() {
        let list = [One::Half, One::Accumulate];
        follow(&choice.into_iter().chain(list).collect::<Vec<_>>(), &alone, OF_HALF);
    }
}
