//! A resumed run equals an uninterrupted one, to the bit: losses, weights, moments, averages, the order of samples and
//! dropout, from any step boundary, under every strategy.
//!
//! The run crosses the ends of epochs, whose last global batch is ragged, evaluates there, and its learning rate
//! follows a cosine. On a GPU it is within 1e-5 of the largest weight, because autotuning may select another kernel.

use crate::support;
use crate::support::many::{accumulate, grouped};
use crate::support::resuming::*;
use crate::support::{difference, is_cpu};
use firebrick::strategies::{Composed, Composition};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Ema, Freeze, Lora, LossScale, Offload, Recompute, Resume,
    ResumeError, TrainError, Zero,
};
use firebrick_models::Gpt;

/// Compares the run, saved after every update, with its continuations from these steps.
fn continues<S: Composition<Gpt> + Clone>(ranks: usize, micro_batches: usize, strategies: S, from: &[u64]) {
    continues_on(Way::on(ranks, micro_batches), strategies, from);
}

/// The same for another run.
pub fn continues_on<S: Composition<Gpt> + Clone>(way: Way, strategies: S, from: &[u64]) {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let expected = way.train(&whole, strategies.clone()).unwrap();
    assert_eq!(expected.losses.len() as u64, STEPS);
    for &step in from {
        let part = folder.path().join(format!("from-{step}"));
        let found = way.clone().from(Resume::Path(saved(&whole, step))).train(&part, strategies.clone());
        let found = found.unwrap_or_else(|error| panic!("{strategies:?} from {step}: {error}"));
        let losses = &expected.losses[step as usize..];
        let apart = difference(&found.parameters, &expected.parameters);
        if !is_cpu() {
            // Autotuning may select another kernel.
            assert!(
                apart < 1e-5 && found.losses.len() == losses.len(),
                "{strategies:?} from {step}: {apart}"
            );
            continue;
        }
        assert_eq!(found.losses, losses, "{strategies:?} from {step}");
        assert!(found.parameters == expected.parameters, "{strategies:?} from {step}: {apart}");
        let of = |report: &firebrick::Report| {
            (report.steps, report.train_loss, report.valid_loss, report.best_valid_loss, report.best_step)
        };
        assert_eq!(of(&found.report), of(&expected.report), "{strategies:?} from {step}");
        if step < STEPS {
            assert_eq!(sums(&saved(&part, STEPS)), sums(&saved(&whole, STEPS)), "{strategies:?} from {step}");
        }
    }
}

/// Before and after the end of an epoch, and at the end.
pub const SOME: [u64; 4] = [1, 3, 4, 8];

#[test]
fn from_any_step_without_a_strategy() {
    let every: Vec<u64> = (1..=STEPS).collect();
    continues(1, 1, None::<Clip>, if is_cpu() { &every } else { &SOME[1..2] });
}

/// Reading a large checkpoint takes seconds, and a stop request ends it.
#[test]
fn a_run_that_is_interrupted_while_it_reads_its_checkpoint_ends_and_changes_nothing() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let way = Way { steps: 2, ..Way::on(ranks, 1) };
        let strategies = Zero::stage(1);
        way.train(folder.path(), strategies.clone()).unwrap();
        let log = || std::fs::read(folder.path().join("metrics.jsonl")).unwrap();
        let before = log();
        let stopped = Way { steps: 3, stop_at: Some(0), ..way.from(Resume::Latest) };
        let error = stopped.train(folder.path(), strategies).map(drop).unwrap_err();
        assert!(error.is_interruption(), "{ranks} ranks: {error}");
        assert_eq!(log(), before);
    }
}

#[test]
fn with_a_loss_scale_that_grows() {
    let scale = LossScale::dynamic(1024.0).interval(3);
    let strategies =
        Composed::new().with(Amp::f16().scaled_by(scale)).with(Accumulate(2)).with(Clip::norm(1.0));
    continues(1, 2, strategies, if is_cpu() { &SOME } else { &SOME[1..2] });
}

#[test]
fn with_an_average() {
    let strategies = Composed::new().with(Recompute::every_block()).with(Clip::norm(0.5)).with(Ema::new(0.9));
    continues(1, 1, strategies, &SOME);
}

#[test]
fn on_the_host() {
    let strategies = Composed::new().with(Offload::parameters()).with(Accumulate(4));
    continues(1, 4, strategies, &SOME[..2]);
    continues(1, 1, Composed::new().with(Offload::optimizer()).with(Clip::norm(1.0)), &SOME[..2]);
}

#[test]
fn among_ranks() {
    for stage in 0..=3 {
        for (ranks, micro_batches) in [(2, 1), (4, 2)] {
            let zero = Zero::stage(stage).replicate_below(64);
            let then =
                Composed::new().with(accumulate(micro_batches)).with(Clip::norm(1.0)).with(Ema::new(0.8));
            continues(ranks, micro_batches, Composed::new().with(zero).with(then), &SOME[1..3]);
        }
        let zero = Composed::new().with(Zero::stage(stage).replicate_below(64)).with(Offload::optimizer());
        continues(2, 2, Composed::new().with(zero).with(Accumulate(2)), &SOME[1..2]);
        if stage > 0 {
            continues(
                4,
                2,
                Composed::new().with(Zero::stage(stage).replicate_below(64).within(2)).with(accumulate(2)),
                &SOME[1..2],
            );
        }
    }
}

#[test]
fn with_groups_of_parameters() {
    let way = |ranks, micro_batches| Way { optimizer: grouped, ..Way::on(ranks, micro_batches) };
    continues_on(
        way(1, 2),
        Composed::new().with(Amp::bf16()).with(Accumulate(2)).with(Clip::norm(1.0)),
        &SOME,
    );
    for stage in [0, 2, 3] {
        continues_on(way(2, 1), Zero::stage(stage).replicate_below(64), &SOME[1..2]);
    }
}

#[test]
fn interrupted_twice_in_a_row_and_once_between_a_round_and_its_evaluation() {
    let folder = tempfile::tempdir().unwrap();
    let strategies = || Composed::new().with(Accumulate(2)).with(Clip::norm(1.0));
    let way = Way { checkpoints: Checkpoints::when_stopped(), ..Way::on(1, 2) };
    let expected = way.train(&folder.path().join("whole"), strategies()).unwrap();
    let output = folder.path().join("parts");
    let mut losses = Vec::new();
    // An epoch has three updates.
    for stop_at in [Some(3), Some(5), Some(8), None] {
        let way = Way { stop_at, ..way.clone() };
        let way = if losses.is_empty() { way } else { way.from(Resume::Latest) };
        let part = way.train(&output, strategies()).unwrap();
        losses.extend(part.losses);
        if stop_at == Some(3) {
            // Between the last step of an epoch and its evaluation.
            assert_eq!((part.report.checkpoint_step, part.report.valid_loss), (stop_at, None));
        }
        assert_eq!(part.report.stopped.as_deref(), stop_at.map(|_| "enough"));
        assert_eq!(part.report.checkpoint_step.is_some(), stop_at.is_some());
        if stop_at.is_none() {
            assert!(part.parameters == expected.parameters);
            assert_eq!(part.report.best_valid_loss, expected.report.best_valid_loss);
        }
    }
    assert_eq!(losses, expected.losses);
    // One log, as of an uninterrupted run, except for the saves.
    let steps = |folder: &std::path::Path| -> Vec<(String, u64)> {
        let log = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let of = |line: serde_json::Value| (line["kind"].to_string(), line["step"].as_u64().unwrap());
        lines.map(of).filter(|(kind, _)| kind != "\"checkpoint\"").collect()
    };
    assert_eq!(steps(&output), steps(&folder.path().join("whole")));
}

#[test]
fn a_longer_run_goes_on_from_the_end_of_a_shorter_one() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let short = Way { steps: 4, ..Way::on(1, 1) };
    // No checkpoint exists yet.
    short.clone().from(Resume::Auto).train(&output, None::<Clip>).unwrap();
    let done = short.clone().from(Resume::Latest).train(&output, None::<Clip>).unwrap();
    assert_eq!((done.losses.len(), done.report.steps), (0, 4), "it is over already");
    let longer = Way { steps: 6, ..short }.from(Resume::Latest).train(&output, None::<Clip>).unwrap();
    assert_eq!((longer.losses.len(), longer.report.steps), (2, 6));
}

#[test]
fn early_stopping_counts_across_a_stop() {
    // At a rate this high nothing is learned, so the first evaluation stays the best.
    use firebrick::{Data, Schedule, Trainer};
    use firebrick_models as models;
    let folder = tempfile::tempdir().unwrap();
    let fit = |output: &str, steps, resume: Option<Resume>| {
        let device = support::device().autodiff();
        let data = Data::new(support::Rows::ragged(8)).valid(support::Rows::ragged(8)).micro_batch(8);
        let trainer = Trainer::new().steps(steps).early_stopping(3).output(folder.path().join(output));
        let trainer = trainer.checkpoints(Checkpoints::every(1).keep_every(1)).allow_changes(true);
        let trainer = match resume {
            Some(resume) => trainer.resume(resume),
            None => trainer,
        };
        let model: models::Gpt = support::gpt(0.0, &device);
        trainer.fit(model, support::adamw(), Schedule::constant(0.5), data).unwrap().report
    };
    let whole = fit("whole", 40, None);
    assert_eq!(whole.stopped.as_deref(), Some("the validation loss no longer falls"));
    assert!(whole.steps > 3 && whole.steps < 40, "{}", whole.steps);
    fit("parts", whole.steps - 1, None);
    let parts = fit("parts", 40, Some(Resume::Latest));
    assert_eq!((parts.steps, parts.stopped), (whole.steps, whole.stopped.clone()));
    assert_eq!(fit("parts", 40, Some(Resume::Latest)).steps, whole.steps, "it stays stopped");
}

#[test]
fn with_factors_of_low_rank_and_frozen_parameters() {
    let lora = || Lora::rank(4).alpha(16.0).also(["norm"]);
    continues(1, 1, lora(), &SOME);
    continues(1, 1, lora().rank_stabilized().on_all_linear(), &SOME[1..3]);
    continues(1, 1, lora().dropout(0.2), &SOME[1..3]);
    continues(1, 1, lora().dora(), &SOME[1..3]);
    continues(
        2,
        1,
        Composed::new().with(Zero::stage(3).replicate_below(64)).with(lora().dora().dropout(0.2)),
        &SOME[1..3],
    );
    continues(1, 2, Composed::new().with(lora()).with(Accumulate(2)).with(Ema::new(0.9)), &SOME[1..3]);
    for stage in [1, 3] {
        let zero = Zero::stage(stage).replicate_below(64);
        continues(2, 1, Composed::new().with(zero).with(Clip::norm(1.0)).with(lora()), &SOME[1..3]);
    }
    continues(1, 1, Freeze::paths(["tokens", "blocks.1"]), &SOME[1..3]);
}

#[test]
fn factors_of_another_run_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    Way { steps: 2, ..Way::on(1, 1) }.train(&output, Lora::rank(4).alpha(16.0)).unwrap();
    let from = saved(&output, 2);
    let of = |lora: Option<Lora>| refused(Way::on(1, 1), &from, lora).to_string();
    let rank = of(Some(Lora::rank(2)));
    assert!(rank.contains("`blocks.0.attention.query_key_value.weight.lora.a` is [16, 4] in it"), "{rank}");
    let none = of(None);
    assert!(none.contains("the model has no `blocks.0.attention.output.weight.lora.a`"), "{none}");
    let way = Way::on(1, 1).from(Resume::Path(from.clone()));
    let plain = refused(Way::on(1, 1), &from, Lora::rank(4).alpha(16.0).dora()).to_string();
    assert!(plain.contains("`blocks.0.attention.query_key_value.weight.lora.magnitude`"), "{plain}");
    let scale = way.train(&folder.path().join("other"), Lora::rank(4)).err().unwrap().to_string();
    assert!(scale.contains("alpha 4 of rank 4, where it was 16 of 4"), "{scale}");
}

fn refused(way: Way, from: &std::path::Path, strategies: impl Composition<Gpt>) -> ResumeError {
    let folder = tempfile::tempdir().unwrap();
    match way.from(Resume::Path(from.into())).train(&folder.path().join("run"), strategies) {
        Err(TrainError::Resume(error)) => *error,
        Err(TrainError::Rank { reason, .. }) => match *reason {
            TrainError::Resume(error) => *error,
            other => panic!("{other}"),
        },
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it went on"),
    }
}

#[test]
fn what_would_change_the_result_is_refused_by_name_and_may_be_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    Way { steps: 2, ..Way::on(1, 1) }.train(&output, None::<Clip>).unwrap();
    let from = saved(&output, 2);
    let other_seed = Way { seed: 12, ..Way::on(1, 1) };
    let error = refused(other_seed.clone(), &from, None::<Clip>).to_string();
    assert!(error.contains("`seed` was 11, and is 12") && error.contains("allow"), "{error}");
    let larger = refused(Way::on(1, 1), &from, Accumulate(2)).to_string();
    assert!(larger.contains("`global batch` was Samples(8), and is Samples(16)"), "{larger}");
    let allowed = Way { allow_changes: true, ..other_seed }.from(Resume::Path(from));
    assert_eq!(
        allowed.train(&folder.path().join("other"), None::<Clip>).unwrap().losses.len() as u64,
        STEPS - 2
    );
}

#[test]
fn other_data_is_noticed_by_the_fingerprint_that_it_is_given() {
    use firebrick::datasets::{Fingerprint, Tokenizer};
    use firebrick::{Data, Schedule, Trainer};
    let folder = tempfile::tempdir().unwrap();
    let fit = |output: &str, from: Option<&str>, allowed, known: &dyn Fn(Data<_>) -> Data<_>| {
        let device = support::device().autodiff();
        let data = Data::new(support::Rows::ragged(21)).valid(support::Rows::ragged(8)).micro_batch(8);
        let trainer = Trainer::new().steps(2).seed(11).output(folder.path().join(output));
        let trainer = trainer.checkpoints(Checkpoints::every(1)).allow_changes(allowed);
        let trainer = match from {
            Some(from) => trainer.resume(Resume::Path(saved(&folder.path().join(from), 2))),
            None => trainer,
        };
        let trained =
            trainer.fit(support::gpt(0.0, &device), support::adamw(), Schedule::constant(1e-3), known(data));
        trained.map(drop).map_err(|error| error.to_string())
    };
    let tokenizer = |text: &str| Tokenizer::characters(text).unwrap();
    let known = |data: Data<_>| {
        let data = data.fingerprint(Fingerprint::of("train")).valid_fingerprint(Fingerprint::of("valid"));
        data.tokenizer(&tokenizer("abc")).unwrap()
    };
    let other_train = |data: Data<_>| known(data).fingerprint(Fingerprint::of("other"));
    let other_valid = |data: Data<_>| known(data).valid_fingerprint(Fingerprint::of("other"));
    let other_tokens = |data: Data<_>| known(data).tokenizer(&tokenizer("abd")).unwrap();
    fit("first", None, false, &known).unwrap();
    fit("same", Some("first"), false, &known).unwrap();
    // Data without a fingerprint, here or in the checkpoint, is not compared.
    fit("unknown", Some("first"), false, &|data| data).unwrap();
    fit("old", None, false, &|data| data).unwrap();
    fit("new", Some("old"), false, &known).unwrap();
    for (output, part, other) in [
        ("train", "`training data` was 21 samples with", &other_train as &dyn Fn(Data<_>) -> Data<_>),
        ("valid", "`validation data` was data with", &other_valid),
    ] {
        let error = fit(output, Some("first"), false, other).unwrap_err();
        assert!(error.contains(part) && error.contains("allow_changes"), "{error}");
        fit(output, Some("first"), true, other).unwrap();
    }
    let error = fit("impossible", Some("first"), true, &other_tokens).unwrap_err();
    assert!(error.contains("`tokenizer` was one with the fingerprint"), "{error}");
}

#[test]
fn a_checkpoint_that_is_not_there_is_told_with_those_that_are() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let from = |resume| Way::on(1, 1).from(resume).train(&output, None::<Clip>).err().unwrap().to_string();
    let error = from(Resume::Latest);
    assert!(error.contains("no complete checkpoint") && error.contains("auto"), "{error}");
    Way { steps: 2, ..Way::on(1, 1) }.train(&output, None::<Clip>).unwrap();
    let error = from(Resume::Step(7));
    assert!(error.contains("step 7") && error.contains("[1, 2]"), "{error}");
}

#[test]
fn the_state_of_another_optimizer_or_model_is_refused() {
    use burn::optim::SgdConfig;
    use firebrick::{Data, Schedule, Trainer};
    use firebrick_models::GptConfig;
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    Way { steps: 2, ..Way::on(1, 1) }.train(&output, None::<Clip>).unwrap();
    let device = support::device().autodiff();
    let data = || Data::new(support::Rows::ragged(21)).micro_batch(8);
    let trainer = |name: &str| {
        let trainer = Trainer::new().steps(3).seed(11).allow_changes(true).output(folder.path().join(name));
        trainer.resume(Resume::Path(saved(&output, 2)))
    };
    let schedule = Schedule::constant(1e-3);
    let momentum = burn::optim::momentum::MomentumConfig::new();
    let sgd = SgdConfig::new().with_momentum(Some(momentum)).init();
    let error = trainer("sgd").fit(support::gpt(0.1, &device), sgd, schedule.clone(), data()).err().unwrap();
    assert!(error.to_string().contains("kind of optimizer"), "{error}");
    let config = GptConfig { layers: 4, heads: 2, width: 24, dropout: 0.1, bias: true, tied: false };
    let other = config.init(support::VOCABULARY, 9, &device);
    let error = trainer("gpt").fit(other, support::adamw(), schedule, data()).err().unwrap().to_string();
    for part in ["another model", "is [11, 16] in it and [11, 24] in the model", "more"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}
