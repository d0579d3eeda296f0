//! Hybrid sharding: groups of ranks that share a copy of the state each.

use super::*;

/// What all ranks would train, with one copy, equals what the groups train with their own.
#[test]
fn groups_train_what_one_group_trains() {
    for (ranks, each) in [(4, 2), (6, 3), (6, 2), (3, 1), (2, 8)] {
        if !counts(&[2, 3, 6, 4]).any(|count| count == ranks) {
            continue;
        }
        for stage in stages(1) {
            follows(ranks, hybrid(stage, each), TOLERANCE);
        }
    }
}

/// With clipping, casts, offload and recomputation; buckets of one parameter; gradients that travel in half precision.
#[test]
fn groups_keep_to_it_under_other_strategies() {
    for stage in stages(1) {
        let zero = || zero(stage).within(2);
        let first = |zero: Zero| (stage >= 2).then_some(zero);
        let last = |zero: Zero| (stage < 2).then_some(zero);
        let accumulated = || Accumulate(MICRO_BATCHES);
        let small = || zero().bucket_bytes(1);
        follows(4, Composed::new().with(first(small())).with(accumulated()).with(last(small())), TOLERANCE);
        let half = || zero().summing_in(FloatDType::F16);
        follows(4, Composed::new().with(first(half())).with(accumulated()).with(last(half())), OF_HALF);
        let again = Composed::new().with(Recompute::every_block()).with(accumulated());
        follows(4, Composed::new().with(first(zero())).with(again).with(last(zero())), TOLERANCE);
        for offload in [Offload::optimizer(), Offload::parameters()] {
            let offloaded = Composed::new().with(offload).with(accumulated());
            follows(4, Composed::new().with(first(zero())).with(offloaded).with(last(zero())), TOLERANCE);
        }
    }
}

#[test]
fn groups_that_do_not_divide_the_ranks_are_refused() {
    let refused = |zero: Zero, count: usize| {
        let found = ranks(count, zero).remove(0);
        found.unwrap_err().to_string()
    };
    assert_eq!(refused(zero(3).within(2), 3), "Zero: `within` must be a divisor of the 3 ranks, found 2");
    assert_eq!(refused(zero(3).within(0), 2), "Zero: `within` must be at least 1, found 0");
    let error = refused(zero(0).within(2), 2);
    assert_eq!(error, "Zero: `within` must be left out in stage 0, which shards nothing, found 2");
}
