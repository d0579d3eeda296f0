//! Updates on the host that are published bucket by bucket, and gradients that leave the device in buckets: the run is
//! the same whatever fits into a bucket, and each bucket is one wait.

use crate::every_optimizer::every_optimizer;
use crate::support::many::{Outcome, Setting, accumulate, grouped};
use crate::support::*;
use firebrick::kernels::optim::{copies, taken};
use firebrick::optim::AdamW;
use firebrick::strategies::{Composed, Composition};
use firebrick::world::reads;
use firebrick::{
    Accumulate, Amp, Clip, Data, Ema, Freeze, Keep, Lora, LossScale, Offload, Recompute, Schedule,
    StepNumbers, Trainer, Zero,
};
use firebrick_models::Gpt;

/// A bucket of one parameter, about a dozen buckets, and one bucket.
const BUCKETS: [usize; 3] = [1, 4096, usize::MAX];

/// Compares runs with buckets of all sizes, and returns one of them.
fn alike<S: Composition<Gpt>>(
    setting: &Setting,
    (ranks, micro_batches): (usize, usize),
    with: impl Fn(Offload) -> S,
) -> Outcome {
    let run = |bytes| setting.run(ranks, micro_batches, with(Offload::optimizer().bucket_bytes(bytes)));
    let [expected, others @ ..] = BUCKETS.map(run);
    for found in others {
        assert_eq!(found.losses, expected.losses);
        assert!(found.parameters == expected.parameters);
        assert_eq!(found.report.optimizer_bytes, expected.report.optimizer_bytes);
    }
    expected
}

/// Host and device are one on the CPU, so the update rounds alike wherever it runs.
fn equals_none<S: Composition<Gpt>, N: Composition<Gpt>>(
    setting: &Setting,
    (ranks, micro_batches): (usize, usize),
    with: impl Fn(Offload) -> S,
    without: N,
) {
    let found = alike(setting, (ranks, micro_batches), with);
    if is_cpu() {
        let expected = setting.run(ranks, micro_batches, without);
        assert_eq!(found.losses, expected.losses);
        assert!(found.parameters == expected.parameters);
    }
}

#[test]
fn with_every_optimizer() {
    every_optimizer!(|built| {
        let setting = Setting { steps: 4, optimizer: built, ..Setting::default() };
        equals_none(&setting, (1, 1), |offload| offload, None::<Clip>);
    });
}

#[test]
fn with_groups_of_parameters_and_other_strategies() {
    let setting = Setting { steps: 5, optimizer: grouped, ..Setting::default() };
    let then = || Composed::new().with(Accumulate(2)).with(Clip::norm(1.0)).with(Ema::new(0.9));
    let half = || if has_bf16() { Amp::bf16() } else { Amp::f16() };
    let mixed = || half().keep_f32(Keep::norms());
    equals_none(
        &setting,
        (1, 2),
        |offload| Composed::new().with(offload).with(mixed()).with(then()),
        Composed::new().with(mixed()).with(then()),
    );
    equals_none(
        &setting,
        (1, 2),
        |offload| Composed::new().with(mixed()).with(offload).with(then()),
        Composed::new().with(mixed()).with(then()),
    );
    let f16 = || Amp::f16().scaled_by(LossScale::dynamic(1024.0));
    equals_none(&setting, (1, 1), |offload| Composed::new().with(offload).with(f16()), f16());
    let recompute = Recompute::every(1);
    equals_none(
        &setting,
        (1, 1),
        |offload| Composed::new().with(recompute.clone()).with(offload),
        None::<Clip>,
    );
    let setting = Setting { steps: 4, ..Setting::default() };
    equals_none(&setting, (1, 1), |offload| Composed::new().with(Lora::rank(2)).with(offload), Lora::rank(2));
    let frozen = || Freeze::paths(["tokens"]);
    equals_none(&setting, (1, 1), |offload| Composed::new().with(frozen()).with(offload), frozen());
}

#[test]
fn among_ranks() {
    let setting = Setting { steps: 4, ..Setting::default() }.cut_for(3, 2);
    for stage in 0..=3 {
        let zero = || Zero::stage(stage).replicate_below(64);
        equals_none(
            &setting,
            (3, 2),
            |offload| Composed::new().with(zero()).with(offload).with(accumulate(2)),
            Composed::new().with(zero()).with(accumulate(2)),
        );
        if stage < 2 {
            // Zero gathers all parameters at once before they go to the device.
            alike(&setting, (3, 2), |offload| Composed::new().with(offload).with(accumulate(2)).with(zero()));
        }
    }
}

/// Returns what steps add to a count, once the first two are over.
fn in_steps(offload: Offload, amp: Option<Amp>, count: fn() -> u64) -> Vec<u64> {
    let (sender, seen) = std::sync::mpsc::channel();
    let watch = move |_: &StepNumbers| sender.send(count()).unwrap();
    let data = Data::new(Rows::ragged(24)).micro_batch(2);
    let (model, adamw) = (gpt(0.1, &device().autodiff()), AdamW::new().init().unwrap());
    let trainer = Trainer::new().with(offload).with(amp).steps(6).observe(watch);
    trainer.fit(model, adamw, Schedule::constant(1e-3), data).unwrap();
    let seen: Vec<_> = seen.into_iter().collect();
    // The last step's numbers are known at the end, the others' when the next step has been submitted.
    seen[..seen.len() - 1].windows(2).skip(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn each_bucket_is_updated_in_place_and_cast_by_its_update() {
    for bytes in BUCKETS {
        let offload = || Offload::optimizer().bucket_bytes(bytes);
        assert_eq!(in_steps(offload(), None, copies), [0; 2]);
        assert_eq!(in_steps(offload(), Some(Amp::f16()), copies), [0; 2]);
        let parameters = firebrick::strategies::trained(&gpt(0.1, &device().autodiff())).len() as u64;
        assert_eq!(in_steps(offload(), Some(Amp::f16()), taken), [parameters; 2]);
    }
}

/// The model has three blocks, and embeddings and a norm in no block. A step reads the loss by itself, and the norm is on
/// the host. The parameters that go back are reads of host memory, which wait for nothing and count all the same.
#[test]
fn each_block_and_each_bucket_outside_blocks_is_one_wait() {
    if is_cpu() {
        return;
    }
    let parameters = firebrick::strategies::trained(&gpt(0.1, &device().autodiff())).len() as u64;
    let waits = |offload| {
        let reads = in_steps(offload, None, reads);
        reads.into_iter().map(|reads| reads - parameters - 2).collect::<Vec<_>>()
    };
    let blocks = 3;
    assert_eq!(waits(Offload::optimizer()), [blocks + 1; 2]);
    // Tokens, places, and the norm's scale and bias are a bucket each. A block is one wait all the same.
    let outside = 4;
    assert_eq!(waits(Offload::optimizer().bucket_bytes(1)), [blocks + outside; 2]);
}
