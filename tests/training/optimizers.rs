//! Adafactor, LAMB and AdamW with 8-bit moments in whole runs: on several ranks, and resumed.

use firebrick::optim::{Adafactor, AdamW8bit, Groups, Lamb, ModelOptimizer};
use firebrick::strategies::Composed;
use firebrick::{Accumulate, Amp, Data, Offload, Resume, Schedule, TrainError, Trainer, World, Zero};
use firebrick_models::Gpt;

use crate::resume::{SOME, continues_on};
use crate::support::many::*;
use crate::support::resuming::{Way, saved};
use crate::support::{Rows, device, difference, gpt};

fn adafactor(model: &Gpt) -> ModelOptimizer {
    // A smaller epsilon turns the rounding of a gradient that is almost 0 into a whole step.
    let optimizer = Adafactor::new().epsilons(1e-6, 1e-3).beta_1(0.9).scale_parameter(true);
    Groups::new().weight_decay(0.1).init(model, optimizer, Adafactor::weight_decay).unwrap()
}

fn lamb(model: &Gpt) -> ModelOptimizer {
    Groups::new().weight_decay(0.1).init(model, Lamb::new().epsilon(1e-3), Lamb::weight_decay).unwrap()
}

const WHOLE: [fn(&Gpt) -> ModelOptimizer; 2] = [adafactor, lamb];

/// If every rank holds whole parameters, the update equals that of one rank.
#[test]
fn on_ranks_that_share_nothing_they_follow_one_rank() {
    for optimizer in WHOLE {
        let setting = Setting { optimizer, ..Setting::default() }.cut_for(2, 2);
        let found = setting.run(2, 2, Composed::new().with(Accumulate(2)).with(Zero::stage(0)));
        let (losses, parameters) = apart(&found, &setting.alone());
        assert!(losses < 1e-5 && parameters < 1e-5, "{losses:e} {parameters:e}");
    }
}

#[test]
fn ranks_that_share_rows_refuse_them() {
    let device = device().autodiff();
    for (stage, optimizer) in
        [1, 2, 3].into_iter().flat_map(|stage| WHOLE.map(|optimizer| (stage, optimizer)))
    {
        let model = gpt(0.0, &device);
        let optimizer = optimizer(&model);
        let trainer = Trainer::new().over(World::threads(2)).with(Zero::stage(stage)).steps(1);
        let data = Data::new(Rows::ragged(4)).micro_batch(2);
        let error = trainer.fit(model, optimizer, Schedule::constant(1e-3), data).err().unwrap();
        let reason = match error {
            TrainError::Rank { reason, .. } => *reason,
            error => error,
        };
        assert!(matches!(reason, TrainError::NotElementwise { .. }), "{reason}");
    }
}

#[test]
fn they_are_taken_up_again_to_the_bit() {
    for optimizer in WHOLE {
        let way = |ranks| Way { optimizer, ..Way::on(ranks, 1) };
        continues_on(way(1), Amp::bf16(), &SOME);
        continues_on(way(2), Zero::stage(0), &SOME[1..2]);
    }
}

fn eight_bit(model: &Gpt) -> ModelOptimizer {
    let optimizer = AdamW8bit::new().epsilon(1e-3).min_8bit_size(64);
    optimizer.init(model, &Groups::new().weight_decay(0.1)).unwrap()
}

/// Blocks end with their rows, so a rank's part of them is updated as in the whole.
#[test]
fn shards_of_8_bit_moments_are_those_of_the_whole() {
    let setting = Setting { optimizer: eight_bit, ..Setting::default() };
    let whole = setting.run(2, 1, Zero::stage(0));
    for stage in 1..=3 {
        let shared = setting.run(2, 1, Zero::stage(stage).replicate_below(64));
        assert_eq!(shared.losses, whole.losses, "stage {stage}");
        assert!(shared.parameters == whole.parameters, "stage {stage}");
        assert!(shared.report.ranks[0].optimizer_bytes < whole.report.ranks[0].optimizer_bytes * 7 / 10);
    }
    // Rows of 16 elements have a block each, with 2.5 bytes per element; vectors have 8.
    let in_f32 = Setting::default().run(2, 1, Zero::stage(0)).report;
    assert!(whole.report.optimizer_bytes < in_f32.optimizer_bytes * 45 / 100);
    // As on one rank, except for codes that the rounding of a sum moves by one.
    let (losses, parameters) = apart(&whole, &setting.alone());
    assert!(losses < 1e-3 && parameters < 1e-2, "{losses:e} {parameters:e}");
}

#[test]
fn eight_bit_moments_are_taken_up_again_to_the_bit() {
    let way = |ranks, micro_batches| Way { optimizer: eight_bit, ..Way::on(ranks, micro_batches) };
    continues_on(way(1, 1), Composed::new().with(Offload::optimizer()).with(Amp::bf16()), &SOME);
    continues_on(way(2, 1), Zero::stage(3).replicate_below(64), &SOME[1..2]);
}

#[test]
fn eight_bit_moments_of_two_ranks_go_on_with_three() {
    let folder = tempfile::tempdir().unwrap();
    let way = |ranks| Way { optimizer: eight_bit, global: 12, ..Way::on(ranks, 1) };
    let zero = |stage| Zero::stage(stage).replicate_below(64);
    let first = folder.path().join("two");
    let expected = way(2).train(&first, zero(2)).unwrap();
    for (ranks, stage) in [(1, 0), (3, 1), (3, 3)] {
        let on = way(ranks).from(Resume::Path(saved(&first, 5)));
        let found = on.train(&folder.path().join(format!("{ranks}-{stage}")), zero(stage)).unwrap();
        let apart = difference(&found.parameters, &expected.parameters);
        assert!(apart < 1e-2, "{ranks} {stage}: {apart:e}");
    }
}
