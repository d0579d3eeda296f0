//! Every stage of ZeRO, number of ranks, precision, accumulation, offload and recompute trains to the same model as one
//! rank with the same global batches, over 8 updates, which are four epochs.
//!
//! | rows | tolerance against one rank without any of them |
//! |---|---|
//! | f32 | 1e-5 of the largest parameter: sums run in another order, and an update turns the rounding of a small gradient into a step |
//! | bf16 | 5% of what training moves, as the root of the sum of squares: each rank rounds its own part of a sum |
//!
//! The global batch is 12 rows, or 18 for three ranks with three micro-batches. An epoch of 21 rows ends in one of
//! 9 or 3, which four ranks cannot share evenly, so some may get none. Parameters of fewer than 64 elements are
//! replicated, and the embedding is tied to the head.

use std::collections::HashMap;

use crate::support;
use crate::support::many::*;
use crate::support::{device, gpt, is_cpu, parameters};
use firebrick::strategies::Composed;
use firebrick::{Amp, Offload, Recompute, Zero};

/// Ranks, micro-batches, bf16, offload and recompute of a row.
#[derive(Clone, Debug)]
struct Row {
    stage: u8,
    ranks: usize,
    micro_batches: usize,
    half: bool,
    offload: Option<Offload>,
    recompute: bool,
}

impl Row {
    fn setting(&self) -> Setting {
        let setting = Setting { global: 12, steps: if is_cpu() { 8 } else { 3 }, ..Setting::default() };
        setting.cut_for(self.ranks, self.micro_batches)
    }

    fn run(&self) -> Outcome {
        let recompute = self.recompute.then(Recompute::every_block);
        let zero = Zero::stage(self.stage).replicate_below(64);
        let strategies = Composed::new().with(recompute).with(zero).with(self.offload.clone());
        let then = Composed::new().with(self.half.then(Amp::bf16)).with(accumulate(self.micro_batches));
        self.setting().run(self.ranks, self.micro_batches, Composed::new().with(strategies).with(then))
    }

    /// The same global batches on one rank.
    fn alone(&self) -> Outcome {
        self.setting().run(1, 1, self.half.then(Amp::bf16))
    }
}

/// Returns the distance between the ends of two runs, relative to the distance that the second has moved.
fn drifted(found: &Outcome, expected: &Outcome) -> f64 {
    let start = parameters(&gpt(0.0, &device().autodiff()));
    let distance = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    distance(&found.parameters, &expected.parameters) / distance(&expected.parameters, &start)
}

fn every_row(stage: u8, half: bool) {
    if half && !support::has_bf16() {
        return;
    }
    let row = Row { stage, ranks: 1, micro_batches: 1, half, offload: None, recompute: false };
    // Keyed by the rows of a global batch.
    let mut alone = HashMap::new();
    // Few combinations if a processor emulates the GPU.
    let (ranks, micro_batches, recompute): (&[_], &[_], &[_]) = match is_cpu() {
        true => (&[1, 2, 3, 4], &[1, 3], &[false, true]),
        false => (&[2], &[3], &[false]),
    };
    for &ranks in ranks {
        for &micro_batches in micro_batches {
            for offload in [None, Some(Offload::optimizer()), Some(Offload::parameters())] {
                for &recompute in recompute {
                    let row = Row { ranks, micro_batches, offload: offload.clone(), recompute, ..row };
                    let expected = alone.entry(row.setting().global).or_insert_with(|| row.alone());
                    let found = row.run();
                    let (losses, most) = apart(&found, expected);
                    if half {
                        let drifted = drifted(&found, expected);
                        assert!(losses < 1e-2, "{row:?}: losses differ by {losses:e}");
                        assert!(drifted < 5e-2, "{row:?}: apart by {drifted:e} of what training moves");
                    } else {
                        assert!(losses < 1e-5, "{row:?}: losses differ by {losses:e}");
                        assert!(most < 1e-5, "{row:?}: parameters differ by {most:e}");
                    }
                }
            }
        }
    }
}

/// As a run file without `Zero` composes it: the ranks' sum comes last.
#[test]
fn sums_behind_offload_are_those_of_all_ranks() {
    let row = Row { stage: 0, ranks: 2, micro_batches: 1, half: false, offload: None, recompute: false };
    let expected = row.alone();
    for offload in [Offload::optimizer(), Offload::parameters()] {
        for stage in [0, 1] {
            let zero = Zero::stage(stage).replicate_below(64);
            let found = row.setting().run(2, 1, Composed::new().with(offload.clone()).with(zero));
            let (losses, most) = apart(&found, &expected);
            assert!(losses < 1e-5 && most < 1e-5, "{offload:?} {stage}: {losses:e} {most:e}");
        }
    }
}

macro_rules! rows {
    ($($name:ident: $stage:literal, $half:literal;)*) => {
        $(
            #[test]
            fn $name() {
                every_row($stage, $half);
            }
        )*
    };
}

rows! {
    stage_0_in_f32: 0, false;
    stage_1_in_f32: 1, false;
    stage_2_in_f32: 2, false;
    stage_3_in_f32: 3, false;
    stage_0_in_bf16: 0, true;
    stage_1_in_bf16: 1, true;
    stage_2_in_bf16: 2, true;
    stage_3_in_bf16: 3, true;
}
