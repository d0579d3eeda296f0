//! Parameter groups under the strategies: on several ranks, accumulated and cast, they do the same as on one rank.

use crate::support::many::*;
use firebrick::strategies::Composed;
use firebrick::{Accumulate, Amp, Clip, Zero};

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;

fn setting() -> Setting {
    Setting { optimizer: grouped, ..Setting::default() }.cut_for(2, 2)
}

#[test]
fn ranks_and_micro_batches_follow_one_rank() {
    let expected = setting().alone();
    let ungrouped = Setting { optimizer: Setting::default().optimizer, ..setting() }.alone();
    assert!(apart(&expected, &ungrouped).1 > 1e-2, "the groups must have an effect");
    for (stage, ranks, micro_batches) in [(0, 2, 1), (1, 2, 2), (2, 2, 2), (3, 4, 1), (0, 1, 4)] {
        let zero = Zero::stage(stage).replicate_below(64);
        let found =
            setting().run(ranks, micro_batches, Composed::new().with(zero).with(accumulate(micro_batches)));
        let (losses, parameters) = apart(&found, &expected);
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "{stage} {ranks}: {losses:e} {parameters:e}");
    }
}

/// The master is the same in f32, whether the ranks shard it or not.
#[test]
fn mixed_precision_updates_each_group_of_the_master() {
    let amp = || Composed::new().with(Amp::bf16()).with(Accumulate(2));
    let (expected, plain) =
        (setting().run(1, 2, Composed::new().with(amp()).with(Clip::norm(0.5))), setting().alone());
    assert!(apart(&expected, &plain).0 < 2e-2, "{:?}", apart(&expected, &plain));
    let zero = Zero::stage(1).replicate_below(64);
    let sharded = setting().run(2, 2, Composed::new().with(amp()).with(zero).with(Clip::norm(0.5)));
    let (losses, parameters) = apart(&sharded, &expected);
    assert!(losses < 1e-2 && parameters < 2e-2, "{losses:e} {parameters:e}");
}
