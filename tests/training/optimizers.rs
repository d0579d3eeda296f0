//! Adafactor and LAMB in whole runs: on many ranks, and taken up again.

// On a processor that plays the GPU these take long.
#![cfg(not(feature = "wgpu"))]

use burn::optim::ModuleOptimizer;
use firebrick::models::Gpt;
use firebrick::optim::{Adafactor, Groups, Lamb};
use firebrick::strategies::Stack;
use firebrick::{Accumulate, Amp, Data, Schedule, TrainError, Trainer, World, Zero};

use crate::resume::{SOME, continues_on};
use crate::support::many::*;
use crate::support::resuming::Way;
use crate::support::{Rows, device, gpt};

fn adafactor(model: &Gpt) -> ModuleOptimizer {
    let optimizer = Adafactor::new().beta_1(0.9).scale_parameter(true);
    Groups::new().weight_decay(0.1).init(model, optimizer, Adafactor::weight_decay).unwrap()
}

fn lamb(model: &Gpt) -> ModuleOptimizer {
    // A smaller epsilon turns the rounding of a gradient that is almost 0 into a whole step.
    Groups::new().weight_decay(0.1).init(model, Lamb::new().epsilon(1e-3), Lamb::weight_decay).unwrap()
}

const WHOLE: [fn(&Gpt) -> ModuleOptimizer; 2] = [adafactor, lamb];

/// Where every rank holds the whole of a parameter, its update is that of one rank.
#[test]
fn on_ranks_that_share_nothing_they_follow_one_rank() {
    for optimizer in WHOLE {
        let setting = Setting { optimizer, ..Setting::default() }.cut_for(2, 2);
        let found = setting.run(2, 2, Stack::new(Accumulate(2), Zero::stage(0)));
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
