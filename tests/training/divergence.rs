//! A run that diverges ends with an error in every precision, and leaves its sound checkpoints.

use std::fs;
use std::path::Path;

use crate::support::resuming::Way;
use crate::support::{Bigram, POISON, Rows, adamw, device, gpt};
use firebrick::checkpoints::Folder;
use firebrick::{Checkpoints, Clip, Data, Resume, Schedule, TrainError, Trainer, World, Zero};

const RATE: f64 = 1e-2;

#[test]
fn a_rate_that_is_much_too_large_ends_the_run_and_nothing_is_exported() {
    let folder = tempfile::tempdir().unwrap();
    for (ranks, steps) in [(1, 1), (1, 2), (1, 1000), (2, 2), (2, 1000)] {
        let output = folder.path().join(format!("{ranks}-{steps}"));
        let data = Data::new(Rows::ragged(16)).micro_batch(8 / ranks);
        let trainer = Trainer::new().over(World::threads(ranks)).with((ranks > 1).then(|| Zero::stage(1)));
        let trainer = trainer.steps(steps).output(&output);
        let model = gpt(0.0, &device().autodiff());
        // This rate overflows f32: the first update makes infinite weights from finite gradients.
        let error = trainer.fit(model, adamw(), Schedule::constant(1e39), data).unwrap_err();
        match steps {
            1000 => assert!(matches!(error, TrainError::OnlySkips { count: 100, .. }), "{error}"),
            1 => assert!(matches!(error, TrainError::Weights { parameter: Some(_) }), "{error}"),
            // The second step makes no update, so the run reaches the same end.
            _ => assert!(matches!(error, TrainError::OnlySkips { count: 100, .. }), "{error}"),
        }
        assert!(!output.join("model.safetensors").exists());
    }
}

#[test]
fn early_stopping_tells_a_divergence_from_a_loss_that_no_longer_falls() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let output = folder.path().join(format!("{ranks}"));
        let mut valid = Rows::ragged(4).0;
        valid.push(vec![1, POISON, 2]);
        let data = Data::new(Rows::ragged(8)).valid(Rows(valid)).micro_batch(4 / ranks);
        let trainer = Trainer::new().over(World::threads(ranks)).with((ranks > 1).then(|| Zero::stage(0)));
        let trainer = trainer.evaluate_every(1).early_stopping(2).steps(50).output(&output);
        let model = Bigram::new(&device().autodiff());
        let error = trainer.fit(model, adamw(), Schedule::constant(RATE), data).unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { step: 2, .. }), "{error}");
        // A run may choose the best evaluation by a score.
        let diverged = TrainError::Diverged { updates: 100, first: None };
        for error in [&error, &diverged] {
            assert!(
                error.to_string().contains("The weights of the best evaluation, if there was one"),
                "{error}"
            );
        }
        assert!(error.to_string().contains("the validation loss is NaN after update 2"), "{error}");
        assert!(!output.join("best.safetensors").exists());
    }
}

#[test]
fn a_run_of_epochs_whose_last_steps_were_all_skipped_is_refused() {
    let rows = |poisoned: usize| {
        let mut rows = Rows::ragged(40).0;
        rows.iter_mut().rev().take(poisoned).for_each(|row| *row = vec![1, POISON, 2]);
        Data::new(Rows(rows)).micro_batch(2)
    };
    let run = |data| {
        let trainer = Trainer::new().with(Clip::norm(1.0)).epochs(1);
        trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(RATE), data)
    };
    // One bad step at the end may be a bad sample.
    assert_eq!(run(rows(1)).unwrap().report.skipped_steps, 1);
    let error = run(rows(20)).unwrap_err();
    assert!(matches!(error, TrainError::OnlySkips { count: 10, .. }), "{error}");
    // A run without any update has not trained.
    let error = run(Data::new(Rows(vec![vec![1, POISON]])).micro_batch(1)).unwrap_err();
    assert!(matches!(error, TrainError::OnlySkips { count: 1, .. }), "{error}");
}

/// Returns the steps of the complete checkpoints, and whether each is sound.
fn saved(output: &Path) -> Vec<(u64, bool)> {
    let all = Folder::new(output.join("checkpoints")).list().unwrap();
    all.iter().map(|saved| (saved.step, saved.sound)).collect()
}

#[test]
fn weights_that_are_not_finite_evict_no_sound_checkpoint() {
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("run");
        let way = Way { checkpoints: Checkpoints::every(1).keep_last(2), ..Way::on(ranks, 1) };
        let way = Way { schedule: Schedule::constant(1e-3), ..way };
        let zero = || (ranks > 1).then(|| Zero::stage(1).replicate_below(64));
        Way { steps: 4, ..way.clone() }.train(&output, zero()).unwrap();
        assert_eq!(saved(&output), [(3, true), (4, true)]);

        // From here on each update makes non-finite weights and is saved.
        let broken = Way { schedule: Schedule::constant(1e39), allow_changes: true, ..way.clone() };
        for _ in 0..2 {
            let error = broken.clone().from(Resume::Auto).train(&output, zero()).err().unwrap();
            assert!(matches!(error, TrainError::OnlySkips { .. }), "{error}");
            assert_eq!(saved(&output), [(3, true), (4, true), (5, false)]);
            assert_eq!(fs::read_to_string(output.join("checkpoints/latest")).unwrap(), "step-00000004\n");
        }

        // At the earlier rate the run resumes from the last sound checkpoint, and the others are removed.
        let part = Way { allow_changes: true, ..way }.from(Resume::Auto).train(&output, zero()).unwrap();
        assert_eq!(part.losses.len(), 6);
        assert!(part.losses.iter().all(|loss| loss.is_finite()));
        assert_eq!(saved(&output), [(9, true), (10, true)]);
    }
}
