//! Frozen parameters keep every bit, and the others train as if the model had frozen them itself.

use crate::support::many::{Setting, accumulate, apart, optimizer};
use crate::support::*;
use burn::module::Module;
use firebrick::strategies::{Composed, Paths, StrategyError, trained};
use firebrick::{Amp, Clip, Data, Ema, Freeze, Schedule, TrainError, Trainer, Zero};
use firebrick_models::Gpt;

/// The embedding is tied to the head, so it is a part of it.
const FROZEN: [&str; 2] = ["tokens", "blocks.1"];

fn freeze() -> Freeze {
    Freeze::paths(FROZEN)
}

/// Returns whether each parameter is unchanged, with its path.
fn unchanged(found: &[f32], given: &Gpt) -> Vec<(String, bool)> {
    let mut start = 0;
    let sizes = trained(&given.clone().train());
    let places = Paths::of(given);
    let places = places.places().iter().zip(sizes).map(|(place, one)| {
        let part = start..start + one.shape.iter().product::<usize>();
        start = part.end;
        (place.path.clone(), found[part.clone()] == parameters(given)[part])
    });
    places.collect()
}

fn is_frozen(path: &str) -> bool {
    FROZEN.iter().any(|frozen| path.starts_with(&format!("{frozen}.")))
}

#[test]
fn they_stay_to_the_bit_with_weight_decay_and_hold_no_state() {
    let setting = Setting { dropout: 0.0, ..Setting::default() };
    // The optimizer decays weights.
    let found = setting.run(1, 1, freeze());
    let given = gpt(0.0, &device());
    let of = unchanged(&found.parameters, &given);
    assert!(of.iter().any(|(_, is)| *is) && of.iter().any(|(_, is)| !is));
    for (path, is_unchanged) in of {
        assert_eq!(is_unchanged, is_frozen(&path), "{path}");
    }
    let places = Paths::of(&given);
    let sizes = trained(&given.train());
    let numbers: usize = places
        .places()
        .iter()
        .zip(sizes)
        .filter(|(place, _)| !is_frozen(&place.path))
        .map(|(_, one)| one.shape.iter().product::<usize>())
        .sum();
    assert_eq!((found.report.gradient_bytes, found.report.optimizer_bytes), (4 * numbers, 8 * numbers));
}

#[test]
fn ranks_share_what_is_trained() {
    for stage in 0..=3 {
        let setting = Setting::default().cut_for(2, 2);
        let zero = || Zero::stage(stage).replicate_below(64);
        let (first, last) = if stage < 2 { (None, Some(zero())) } else { (Some(zero()), None) };
        let strategies = Composed::new().with(first).with(accumulate(2)).with(last).with(freeze());
        let found = setting.run(2, 2, strategies);
        let (losses, parameters) = apart(&found, &setting.run(1, 1, freeze()));
        assert!(losses < 2e-6 && parameters < 2e-6, "stage {stage}: {losses:e} {parameters:e}");
        for (path, is_unchanged) in unchanged(&found.parameters, &gpt(0.0, &device())) {
            assert_eq!(is_unchanged, is_frozen(&path), "stage {stage}: {path}");
        }
    }
}

fn fit(freeze: Freeze) -> Result<Gpt, TrainError> {
    let data = Data::new(Rows::ragged(21)).micro_batch(8);
    let model = gpt(0.0, &device().autodiff());
    let amp = has_bf16().then(Amp::bf16);
    let trainer = Trainer::new().with(amp).with(Ema::new(0.9)).with(freeze).steps(2);
    trainer.fit(model, optimizer(), Schedule::constant(1e-2), data).map(|trained| trained.model)
}

#[test]
fn what_is_returned_is_trained_where_it_was() {
    let model = fit(freeze()).unwrap();
    assert_eq!(trained(&model.train()).len(), trained(&gpt(0.0, &device().autodiff())).len());
}

#[test]
fn a_pattern_of_nothing_and_one_of_everything_are_refused() {
    let error = fit(Freeze::paths(["block.0"])).unwrap_err();
    assert!(
        matches!(&error, TrainError::Strategy(StrategyError::Path { strategy: "Freeze", .. })),
        "{error}"
    );
    assert!(error.to_string().contains("`blocks.0"), "{error}");
    let error = fit(Freeze::paths(["*"])).unwrap_err();
    assert!(matches!(error, TrainError::NothingTrained), "{error}");
    let none = Trainer::new().with(None::<Clip>).steps(1);
    let frozen = gpt(0.0, &device().autodiff()).no_grad();
    let data = Data::new(Rows::ragged(21));
    let error = none.fit(frozen, optimizer(), Schedule::constant(1e-2), data).unwrap_err();
    assert!(matches!(error, TrainError::NothingTrained), "{error}");
}
