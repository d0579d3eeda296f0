//! Several ranks train to the same model as one rank with the same global batches.

use crate::support;
use crate::support::many::*;
use crate::support::{Bigram, POISON, Rows, adamw, device, is_cpu, parameters};
use burn::module::Module;
use burn::tensor::FloatDType;
use firebrick::datasets::{Batch, TokenBatch};
use firebrick::strategies::{
    Composed, Composition, Effects, Grads, Outcome, Setup, SkipReason, Stage, Stages, StrategyError,
    StrategyRecipe,
};
use firebrick::world::Collective;
use firebrick::{
    Amp, Clip, Data, Ema, Freeze, KeepPadding, Lora, Loss, Objective, Offload, Pass, Recompute, Schedule,
    SkipOutliers, Strategy, TrainError, Trainer, World, Zero,
};
use firebrick_models::Gpt;

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;

/// ZeRO at a valid position: stages 2 and 3 before `Accumulate`, 0 and 1 after it.
fn sharded(stage: u8, micro_batches: usize) -> impl Composition<Gpt> {
    let zero = Zero::stage(stage).replicate_below(64);
    let (first, last) = if stage < 2 { (None, Some(zero)) } else { (Some(zero), None) };
    Composed::new().with(first).with(accumulate(micro_batches)).with(last)
}

/// Compares a run with that of one rank.
fn follows(setting: &Setting, stage: u8, ranks: usize, micro_batches: usize) {
    let setting = setting.cut_for(ranks, micro_batches);
    let found = setting.run(ranks, micro_batches, sharded(stage, micro_batches));
    let (losses, parameters) = apart(&found, &setting.alone());
    let name = format!("stage {stage}, {ranks} ranks, {micro_batches} micro-batches, {setting:?}");
    assert!(losses < TOLERANCE, "{name}: losses differ by {losses:e}");
    assert!(parameters < TOLERANCE, "{name}: parameters differ by {parameters:e}");
}

#[test]
fn ranks_follow_one_rank_with_the_same_global_batch() {
    for (stage, ranks, micro_batches) in
        (0..=3).flat_map(|stage| (1..=4).flat_map(move |ranks| [1, 3].map(|k| (stage, ranks, k))))
    {
        follows(&Setting::default(), stage, ranks, micro_batches);
    }
}

#[test]
fn ranks_without_a_sample_in_the_last_step_take_part() {
    // The last global batch of an epoch has two rows, for four ranks.
    let setting = Setting { rows: 18, ..Setting::default() };
    for stage in 0..=3 {
        follows(&setting, stage, 4, 1);
        follows(&setting, stage, 4, 2);
    }
}

#[test]
fn the_norm_that_bounds_the_update_is_over_all_ranks() {
    let setting = Setting::default().cut_for(3, 2);
    let expected = setting.run(1, 1, Clip::norm(0.05));
    for stage in 0..=3 {
        let found = setting.run(3, 2, Composed::new().with(sharded(stage, 2)).with(Clip::norm(0.05)));
        let (losses, parameters) = apart(&found, &expected);
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "{losses:e} {parameters:e}");
        for (found, expected) in found.steps.iter().zip(&expected.steps) {
            let norms = (found.gradient_norm - expected.gradient_norm).abs() / expected.gradient_norm;
            assert!(norms < 1e-5 && expected.gradient_norm > 0.05, "{norms:e}");
        }
    }
    assert!(apart(&setting.alone(), &expected).1 > 1e-3, "the bound must have an effect");
}

/// In stage 1, parameters come in the step after their update, or before it if something is evaluated in between.
#[test]
fn what_comes_between_two_steps_is_counted() {
    let received = |evaluated| {
        let setting = Setting { rows: 8, steps: 4, evaluated, ..Setting::default() }.cut_for(2, 1);
        let run = setting.run(2, 1, Zero::stage(1).replicate_below(64));
        let gathers =
            run.report.ranks.iter().map(|rank| rank.per_step[&Collective::AllGather].received_bytes);
        gathers.collect::<Vec<_>>()
    };
    let expected = received(false);
    assert!(expected.len() == 2 && expected[0] > 0.0);
    assert_eq!(received(true), expected);
}

#[test]
fn the_numbers_of_a_step_are_those_of_all_ranks() {
    let setting = Setting { evaluated: true, ..Setting::default() };
    let alone = setting.alone();
    let four = setting.run(4, 1, Zero::stage(1));
    for (found, expected) in four.steps.iter().zip(&alone.steps) {
        assert_eq!((found.items, found.tokens), (expected.items, expected.tokens));
        assert_eq!((found.step, found.epoch), (expected.step, expected.epoch));
    }
    for (found, expected) in [
        (four.report.valid_loss, alone.report.valid_loss),
        (four.report.best_valid_loss, alone.report.best_valid_loss),
    ] {
        let (found, expected) = (found.unwrap(), expected.unwrap());
        assert!((found - expected).abs() < TOLERANCE * expected, "{found} {expected}");
    }
    assert_eq!(four.report.best_step, alone.report.best_step);
}

/// Trains the small model on several ranks.
fn bigram(trainer: Trainer<Bigram>, data: Data<TokenBatch>) -> Result<(Vec<f32>, u64), TrainError> {
    let model = Bigram::new(&device().autodiff());
    let trained = trainer.fit(model, adamw(), Schedule::constant(1e-2), data)?;
    Ok((parameters(&trained.model), trained.report.skipped_steps))
}

#[test]
fn an_overflow_on_one_rank_skips_the_update_of_all() {
    // The poisoned row goes to the second of two ranks, in the second of three global batches.
    let mut rows = Rows::ragged(24).0;
    rows[14] = vec![1, POISON, 3];
    let without: Vec<_> = rows[..8].iter().chain(&rows[16..]).cloned().collect();
    let train = |rows: &[Vec<u32>], ranks, stage| {
        let data = Data::new(Rows(rows.to_vec())).micro_batch(8 / ranks);
        let trainer = Trainer::new().over(World::threads(ranks)).with(Zero::stage(stage).replicate_below(16));
        bigram(trainer.with(Amp::f16()).with(Clip::norm(1.0)).epochs(1), data).unwrap()
    };
    for stage in [0, 1] {
        let (found, skipped) = train(&rows, 2, stage);
        let (expected, none) = train(&without, 2, stage);
        assert_eq!((skipped, none), (1, 0));
        if is_cpu() {
            assert_eq!(found, expected);
        }
    }
}

/// Blocks that get an input in f32, whatever dtype they are kept in, if a cast is forgotten.
#[derive(Module, Debug)]
struct Forgetful {
    embedding: burn::nn::Embedding,
    blocks: Vec<burn::nn::Linear>,
    forgets: bool,
}

impl Forgetful {
    fn new(forgets: bool) -> Self {
        let device = device().autodiff();
        let block = || burn::nn::LinearConfig::new(8, 8).init(&device);
        let embedding = burn::nn::EmbeddingConfig::new(support::VOCABULARY, 8).init(&device);
        Self { embedding, blocks: vec![block(), block()], forgets }
    }
}

impl Objective<TokenBatch> for Forgetful {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let x = self.embedding.forward(batch.ids(pass.device()));
        let x = if self.forgets { x.cast(FloatDType::F32) } else { x };
        let y = self.blocks.iter().fold(x, |x, block| pass.segment(block, x, |block, x, _| block.forward(x)));
        let items = batch.items();
        Loss { sum: y.cast(FloatDType::F32).square().mean() * items as f64, items }
    }
}

#[test]
fn all_ranks_try_a_smaller_dtype_together() {
    if !support::has_bf16() {
        return;
    }
    for stage in [1, 3] {
        let fit = |forgets| {
            let zero = Zero::stage(stage).replicate_below(1);
            let trainer = Trainer::new().over(World::threads(3)).with(zero).with(Amp::bf16()).steps(2);
            let data = Data::new(Rows::ragged(12)).valid(Rows::ragged(5)).micro_batch(2);
            trainer.fit(Forgetful::new(forgets), adamw(), Schedule::constant(1e-3), data)
        };
        assert_eq!(fit(false).unwrap().report.steps, 2);
        let error = fit(true).unwrap_err();
        assert!(matches!(error, TrainError::MixedDtypes { dtype: "bf16", .. }), "stage {stage}: {error}");
    }
}

#[test]
fn an_optimizer_that_needs_whole_parameters_is_refused_where_they_are_sharded() {
    let fit = |stage| {
        let trainer = Trainer::new().over(World::threads(2)).with(Zero::stage(stage)).steps(2);
        let data = Data::new(Rows::ragged(8)).micro_batch(2);
        let lamb = burn::optim::LambConfig::new().init();
        trainer.fit(Bigram::new(&device().autodiff()), lamb, Schedule::constant(1e-3), data)
    };
    assert!(fit(0).is_ok());
    let error = fit(1).unwrap_err();
    assert!(
        matches!(&error, TrainError::NotElementwise { parameter } if parameter == "embedding.weight"),
        "{error}"
    );
}

#[test]
fn the_report_tells_what_each_rank_held_and_sent() {
    let setting = Setting { steps: 4, dropout: 0.0, ..Setting::default() };
    let (alone, ranks) = (setting.alone().report, 4);
    assert!(alone.ranks.is_empty());
    for stage in 0..=3 {
        let report = setting.run(ranks, 1, Zero::stage(stage).replicate_below(1)).report;
        assert_eq!(report.ranks.len(), ranks);
        for (rank, held) in report.ranks.iter().enumerate() {
            assert_eq!(held.rank, rank);
            assert_eq!(held.waited_seconds.len(), ranks);
            let (sent, received) = held.bytes_per_step();
            assert!(sent > 0.0 && received > 0.0, "{held:?}");
            let share = if stage == 0 { 1 } else { ranks };
            let optimizer = alone.optimizer_bytes / share;
            let within = optimizer..=optimizer + optimizer / 10;
            assert!(within.contains(&held.optimizer_bytes), "stage {stage}: {held:?}, {optimizer}");
        }
        let last = setting.run(ranks, 1, Zero::stage(stage).replicate_below(1)).steps.pop().unwrap();
        assert!(last.sent_bytes > 0 && last.received_bytes > 0);
        assert!(last.slowest_rank.is_some_and(|rank| rank < ranks), "{last:?}");
    }
}

/// The ranks gather each block together although their rows differ in length, with dropout.
#[test]
fn padding_that_ranks_keep_changes_no_more_than_rounding() {
    let setting = Setting { steps: 4, ..Setting::default() };
    for stage in [0, 3] {
        let run = |keeps: Option<KeepPadding>| {
            setting.run(2, 1, Composed::new().with(keeps).with(sharded(stage, 1)))
        };
        let [dropped, kept] = [run(None), run(Some(KeepPadding {}))];
        let (losses, parameters) = apart(&dropped, &kept);
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "stage {stage}: {losses:.1e} {parameters:.1e}");
    }
}

/// Skips the second step, on one rank or on all.
#[derive(Clone, Debug)]
struct SkipsOn {
    rank: Option<usize>,
    /// Whether it asks for the norm of each step first.
    reads: bool,
}

impl StrategyRecipe for SkipsOn {
    fn effects(&self) -> Effects {
        Effects::none("SkipsOn")
    }
}

impl<M: Module> Strategy<M> for SkipsOn {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let is_here = self.rank.is_none_or(|rank| rank == setup.world().rank());
        Ok(Stages::of(Skipping { is_here, reads: self.reads, steps: 0 }))
    }
}

struct Skipping {
    is_here: bool,
    reads: bool,
    steps: usize,
}

impl<M: Module> Stage<M> for Skipping {
    fn name(&self) -> &'static str {
        "SkipsOn"
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        self.steps += 1;
        if self.reads {
            grads.read_norm(master)?;
        }
        match self.steps == 2 && self.is_here {
            true => Ok(Outcome::Skip(SkipReason::Other("a whim".into()))),
            false => Ok(Outcome::Apply(grads)),
        }
    }
}

#[test]
fn what_a_strategy_skips_on_one_rank_all_skip() {
    fn same<S: Composition<Gpt>>(name: &str, strategies: impl Fn(SkipsOn) -> S) {
        let setting = Setting { steps: 5, ..Setting::default() };
        let run = |rank| setting.run(2, 1, strategies(SkipsOn { rank, reads: false }));
        let by_all = run(None);
        for (rank, reason) in [(0, "a whim"), (1, "a strategy of rank 1 skipped it")] {
            let found = run(Some(rank));
            assert_eq!((found.report.steps, found.report.skipped_steps), (5, 1), "{name}");
            assert_eq!(found.steps[1].skipped.as_deref(), Some(reason), "{name}");
            assert!(found.parameters == by_all.parameters, "{name}: rank {rank}");
        }
    }
    for stage in 0..=3 {
        let zero = || Zero::stage(stage).replicate_below(64);
        // It enters each norm into its own mean, and must not enter that of a step that another rank skips.
        let watched = || SkipOutliers::new(0.5).window(2);
        same(&format!("before stage {stage}"), |skips| {
            Composed::new().with(skips).with(zero()).with(watched())
        });
        same(&format!("behind stage {stage}"), |skips| Composed::new().with(zero()).with(skips));
        same(&format!("between stage {stage} and the norm"), |skips| {
            Composed::new().with(zero()).with(skips).with(Clip::norm(0.1)).with(watched())
        });
    }
}

#[test]
fn a_strategy_that_skips_on_one_rank_once_all_have_agreed_ends_the_run() {
    let data = Data::new(Rows::ragged(16)).micro_batch(2);
    let skips = SkipsOn { rank: Some(1), reads: true };
    let trainer = Trainer::new().over(World::threads(2)).with(Zero::stage(0)).with(skips).epochs(1);
    let error = bigram(trainer, data).unwrap_err().to_string();
    // Both ranks find the other.
    assert!(error.contains(" updates, and this rank ") && error.contains("after all had agreed"), "{error}");
}

#[test]
fn a_rank_that_only_takes_part_adds_nothing_not_even_what_is_no_number() {
    if !support::has_bf16() {
        return;
    }
    // The last global batch of an epoch has two rows for four ranks. The other ranks compute with the first row, whose
    // loss is NaN.
    let mut rows = Rows::ragged(18).0;
    rows[0] = vec![1, POISON, 3];
    for stage in 0..=3 {
        let data = Data::new(Rows(rows.clone())).micro_batch(2);
        let zero = Zero::stage(stage).replicate_below(16);
        let trainer = Trainer::new().over(World::threads(4)).with(zero).with(Amp::bf16()).epochs(2);
        let (_, skipped) = bigram(trainer, data).unwrap();
        assert_eq!(skipped, 2, "stage {stage}: the first step of each epoch");
    }
}

/// Stage 2 holds all parameters whole and gathers none in a pass. Stage 3 reads the same ones, whatever it keeps of them
/// from forward to backward and between the micro-batches of a step.
#[test]
fn what_stage_3_gathers_is_what_stage_2_holds() {
    fn same<S: Composition<Gpt>>(setting: &Setting, cut: [usize; 2], strategies: impl Fn(Zero) -> S) {
        let [ranks, micro_batches] = cut;
        let run = |stage| {
            // Both run their blocks again.
            let strategies = strategies(Zero::stage(stage).replicate_below(64));
            setting.run(ranks, micro_batches, Composed::new().with(Recompute::every_block()).with(strategies))
        };
        let [two, three] = [2, 3].map(run);
        let name = format!("{ranks} ranks, {micro_batches} micro-batches, {:?}", strategies(Zero::stage(3)));
        assert_eq!(three.losses, two.losses, "{name}");
        assert_eq!(three.report.valid_loss, two.report.valid_loss, "{name}");
        assert_eq!(three.report.skipped_steps, two.report.skipped_steps, "{name}");
        assert!(three.parameters == two.parameters, "{name}");
    }
    // Some global batches of an epoch are short, so ranks and micro-batches are without samples. It is evaluated between
    // steps.
    let setting = Setting { rows: 18, steps: 6, evaluated: true, ..Setting::default() };
    for cut in [[1, 2], [2, 1], [2, 3], [4, 2]] {
        let setting = setting.cut_for(cut[0], cut[1]);
        let sum = || accumulate(cut[1]);
        same(&setting, cut, |zero| Composed::new().with(zero).with(sum()));
        same(&setting, cut, |zero| Composed::new().with(zero).with(sum()).with(Ema::new(0.5)));
        same(&setting, cut, |zero| {
            Composed::new().with(SkipsOn { rank: Some(0), reads: false }).with(zero).with(sum())
        });
        same(&setting, cut, |zero| {
            Composed::new().with(Freeze::paths(["tokens", "blocks.0"])).with(zero).with(sum())
        });
        same(&setting, cut, |zero| {
            Composed::new().with(Lora::rank(2).also(["positions"])).with(zero).with(sum())
        });
        same(&setting, cut, |zero| Composed::new().with(zero).with(Offload::parameters()).with(sum()));
        if support::has_bf16() {
            same(&setting, cut, |zero| Composed::new().with(zero).with(Amp::bf16()).with(sum()));
        }
    }
}
