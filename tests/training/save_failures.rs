//! A failed save is reported and retried, and does not disturb training.

use std::cell::Cell;
use std::fs;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::support;
use burn::module::Module;
use firebrick::checkpoints::{Checkpoint, Folder};
use firebrick::datasets::{Batches, DataError, TokenBatch};
use firebrick::{
    Checkpoints, Data, Loss, Objective, Offload, Pass, Report, Schedule, StepNumbers, TrainError, Trainer,
    World, Zero,
};
use firebrick_models::Gpt;

/// Runs 8 updates and saves every second one. `before` gets the number of updates before the next one.
fn run(
    output: &Path,
    ranks: usize,
    policy: Checkpoints,
    mut before: impl FnMut(u64) + Send + 'static,
) -> (Report, Vec<f32>) {
    let device = support::device().autodiff();
    let data = Data::new(support::Rows::ragged(21)).micro_batch(8 / ranks);
    let trainer = Trainer::new().over(World::threads(ranks)).with(Zero::stage(1)).steps(8).output(output);
    let trained = trainer
        .checkpoints(policy)
        .observe(move |step: &StepNumbers| {
            before(step.step);
        })
        .fit(support::gpt(0.1, &device), support::adamw(), Schedule::constant(1e-3), data)
        .unwrap();
    (trained.report, support::parameters(&trained.model))
}

/// Returns the saves in the log: step, and whether the save failed.
fn saves(output: &Path) -> Vec<(u64, bool)> {
    let log = fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let saves = lines.filter(|line| line["kind"] == "checkpoint");
    saves.map(|line| (line["step"].as_u64().unwrap(), line["error"].is_string())).collect()
}

#[test]
fn a_folder_that_cannot_be_made_costs_saves_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let policy = Checkpoints::every(2).keep_every(1);
    for ranks in [1, 2] {
        let (_, expected) = run(&folder.path().join(format!("whole-{ranks}")), ranks, policy, |_| {});
        let output = folder.path().join(format!("run-{ranks}"));
        // A file stands in the place of the folder, from before the first save until after the fourth update.
        let place = output.join("checkpoints");
        let (report, found) = run(&output, ranks, policy, move |step| match step {
            1 => fs::write(&place, "").unwrap(),
            5 => fs::remove_file(&place).unwrap(),
            _ => {}
        });
        assert!(found == expected, "{ranks} ranks");
        let saves = saves(&output);
        assert_eq!(saves[0], (2, true), "{saves:?}");
        assert!(saves.iter().filter(|(_, failed)| *failed).count() >= 2, "tried again: {saves:?}");
        assert_eq!(saves.last(), Some(&(8, false)), "{saves:?}");
        assert_eq!((report.checkpoint_step, &report.checkpoint_error), (Some(8), &None));
        let kept = Folder::new(output.join("checkpoints")).list().unwrap();
        for saved in &kept {
            Checkpoint::open(&saved.path).unwrap();
        }
        let steps: Vec<_> = kept.iter().map(|saved| saved.step).collect();
        let written: Vec<_> = saves.iter().filter(|(_, failed)| !failed).map(|(step, _)| *step).collect();
        assert_eq!(steps, written);
    }
}

#[test]
fn a_run_whose_last_save_failed_says_so_and_keeps_the_older_ones() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let place = output.join("checkpoints");
    let (report, _) = run(&output, 1, Checkpoints::every(2).keep_every(1).retries(1), move |step| {
        if step == 5 {
            // Complete checkpoints are moved away, and no new one can be staged.
            fs::rename(&place, place.with_file_name("aside")).unwrap();
            fs::write(&place, "").unwrap();
        }
    });
    assert_eq!(report.steps, 8);
    let saves = saves(&output);
    // Each save that is due fails, and one retry: that of step 6 at the next boundary, unless the next save is due by
    // then; that of step 8 at once. The save of step 4 may still be in progress when its folder is moved.
    let failed = saves.iter().filter(|(step, failed)| *failed && *step > 4).map(|(step, _)| *step);
    let failed: Vec<_> = failed.collect();
    assert!(matches!(failed[..], [6, 7, 8, 8] | [6, 8, 8]), "{saves:?}");
    let error = report.checkpoint_error.unwrap();
    assert!(error.contains("checkpoints"), "{error}");
    let kept = Folder::new(output.join("aside")).list().unwrap();
    assert!(kept.iter().any(|saved| saved.step == 2), "{kept:?}");
    for saved in kept {
        Checkpoint::open(&saved.path).unwrap();
    }
}

/// Runs 8 updates, and evaluates after each. `before` gets the number of updates before the next one.
fn evaluated(
    output: &Path,
    ranks: usize,
    mut before: impl FnMut(u64) + Send + 'static,
) -> (Report, Vec<f32>) {
    let device = support::device().autodiff();
    let data = Data::new(support::Rows::ragged(21)).micro_batch(8 / ranks);
    let data = data.valid(support::Rows::ragged(4));
    let trainer = Trainer::new().over(World::threads(ranks)).with(Zero::stage(3)).steps(8).output(output);
    let trainer = trainer.evaluate_every(1).checkpoints(Checkpoints::every(4));
    let model = support::gpt(0.0, &device);
    let trained = trainer
        .observe(move |step: &StepNumbers| before(step.step))
        .fit(model, support::adamw(), Schedule::constant(1e-3), data)
        .unwrap();
    (trained.report, support::parameters(&trained.model))
}

/// Returns names and values in the metric files.
fn metrics(output: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![output.join("metrics")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                // Times differ in each run.
                false if path.ends_with("Loss.log") || path.to_string_lossy().contains("Learning") => {
                    let name = path.strip_prefix(output).unwrap().display().to_string();
                    found.push((name, fs::read_to_string(&path).unwrap()));
                }
                false => {}
            }
        }
    }
    found.sort();
    found
}

#[test]
fn files_that_cannot_be_written_are_tried_again_until_they_are_whole() {
    let folder = tempfile::tempdir().unwrap();
    for ranks in [1, 2] {
        let at = |name: &str| folder.path().join(format!("{name}-{ranks}"));
        let (report, expected) = evaluated(&at("whole"), ranks, |_| {});
        assert!(report.failed_writes.is_empty(), "{report:?}");
        let output = at("run");
        // Blocks the best model and the metric files until after the fifth update.
        let (best, files) = (output.join("best.safetensors"), output.join("metrics"));
        fs::create_dir_all(best.join("in the way")).unwrap();
        fs::write(output.join(".firebrick.lock"), "").unwrap();
        fs::write(&files, "in the way").unwrap();
        let (report, found) = evaluated(&output, ranks, move |step| {
            if step == 5 {
                // Threads write both, and the system decides how often they retry until now. Unit tests count attempts.
                thread::sleep(Duration::from_millis(300));
                fs::remove_dir_all(&best).unwrap();
                fs::remove_file(&files).unwrap();
            }
        });
        assert!(found == expected, "{ranks} ranks");
        assert!(!report.failed_writes.is_empty(), "{report:?}");
        assert!(report.failed_writes.iter().all(|failed| failed.error.is_none()), "{report:?}");
        let best = |name: &str| fs::read(at(name).join("best.safetensors")).unwrap();
        // Skips the metadata, whose order is random.
        assert!(best("run")[100..] == best("whole")[100..]);
        assert!(!metrics(&output).is_empty());
        assert_eq!(metrics(&output), metrics(&at("whole")));
    }
}

/// Rows of which one cannot be read.
struct Damaged {
    rows: support::Rows,
    at: usize,
}

impl Batches for Damaged {
    type Batch = TokenBatch;

    fn samples(&self, epoch: u64) -> usize {
        self.rows.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        match positions.contains(&self.at) {
            true => Err(DataError::EmptyText { place: "the damaged row".into() }),
            false => self.rows.batch(epoch, positions),
        }
    }
}

/// Panics in the fourth step of a thread.
#[derive(Module, Debug)]
struct Panics {
    inner: Gpt,
}

impl Objective<TokenBatch> for Panics {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        thread_local! {
            static LOSSES: Cell<u32> = const { Cell::new(0) };
        }
        LOSSES.set(LOSSES.get() + 1);
        assert!(LOSSES.get() < 4, "out of tune");
        self.inner.loss(batch, pass)
    }
}

/// Trains on global batches of 8 rows, and saves after the third update. No boundary of a step comes after that: what
/// fails in the fourth step meets a save that nothing has published.
fn fails<M: Objective<TokenBatch> + 'static>(
    output: &Path,
    ranks: usize,
    model: M,
    train: impl Batches<Batch = TokenBatch>,
) -> TrainError {
    let scratch = tempfile::tempdir().unwrap();
    let data = Data::new(train).micro_batch(8 / ranks).workers(0);
    let trainer = Trainer::new().over(World::threads(ranks)).with((ranks > 1).then(|| Zero::stage(1)));
    let trainer = trainer.steps(8).with(Offload::parameters().on(scratch.path())).output(output);
    let trainer = trainer.checkpoints(Checkpoints::every(3));
    trainer.fit(model, support::adamw(), Schedule::constant(1e-3), data).map(drop).unwrap_err()
}

/// Returns the steps of the checkpoints, which are whole.
fn whole(output: &Path) -> Vec<u64> {
    let kept = Folder::new(output.join("checkpoints")).list().unwrap();
    kept.iter().for_each(|saved| drop(Checkpoint::open(&saved.path).unwrap()));
    kept.iter().map(|saved| saved.step).collect()
}

#[test]
fn an_error_of_the_next_step_does_not_cost_the_save_in_progress() {
    let output = tempfile::tempdir().unwrap();
    let model = support::gpt(0.0, &support::device().autodiff());
    let rows = Damaged { rows: support::Rows::ragged(32), at: 24 };
    let error = fails(output.path(), 1, model, rows);
    assert!(matches!(error, TrainError::Data(DataError::EmptyText { .. })), "{error}");
    assert_eq!(whole(output.path()), [3]);
    assert_eq!(saves(output.path()), [(3, false)]);
}

#[test]
fn a_panic_in_the_next_step_does_not_cost_the_save_in_progress() {
    let output = tempfile::tempdir().unwrap();
    let model = Panics { inner: support::gpt(0.0, &support::device().autodiff()) };
    let run = || fails(output.path(), 1, model, support::Rows::ragged(32));
    let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"out of tune"));
    assert_eq!(whole(output.path()), [3]);
    assert_eq!(saves(output.path()), [(3, false)]);
}

#[test]
fn a_save_that_the_ranks_cannot_agree_on_any_more_leaves_nothing() {
    let output = tempfile::tempdir().unwrap();
    let model = support::gpt(0.0, &support::device().autodiff());
    // Of the fourth global batch, the second rank has the rows from 28 on.
    let rows = Damaged { rows: support::Rows::ragged(32), at: 28 };
    let error = fails(output.path(), 2, model, rows);
    let TrainError::Rank { rank: 1, reason } = &error else { panic!("{error}") };
    assert!(matches!(**reason, TrainError::Data(DataError::EmptyText { .. })), "{error}");
    // The first rank may learn of the error before it begins the save.
    assert!(matches!(saves(output.path())[..], [] | [(3, true)]));
    let left: Vec<_> = fs::read_dir(output.path().join("checkpoints")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Each write names the removed folder and none makes another one, in which nothing else would be. If the user makes one,
/// it gets the model.
#[test]
fn a_folder_that_is_removed_during_the_run_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for is_made_again in [false, true] {
        let output = folder.path().join(format!("run-{is_made_again}"));
        let place = output.clone();
        let device = support::device().autodiff();
        let data = Data::new(support::Rows::ragged(21)).valid(support::Rows::ragged(4)).micro_batch(8);
        let trainer = Trainer::new().steps(8).output(&output).evaluate_every(2);
        let trainer =
            trainer.checkpoints(Checkpoints::every(2).retries(0)).observe(move |step: &StepNumbers| {
                if step.step == 3 {
                    // Until the checkpoint and the weights of the second update are written.
                    thread::sleep(Duration::from_millis(300));
                    while place.exists() {
                        let _ = fs::remove_dir_all(&place);
                    }
                }
                if step.step == 6 && is_made_again {
                    assert!(!place.exists(), "only the user makes it again");
                    fs::create_dir(&place).unwrap();
                }
            });
        let model = support::gpt(0.1, &device);
        let trained = trainer.fit(model, support::adamw(), Schedule::constant(1e-3), data);
        if !is_made_again {
            let error = trained.err().unwrap().to_string();
            let named = format!("the folder {} does not exist, or was removed", output.display());
            assert!(error.contains(&named) && error.contains("create it again"), "{error}");
            assert!(!output.exists());
            continue;
        }
        let report = trained.unwrap().report;
        assert!(output.join("model.safetensors").is_file());
        let log = report.failed_writes.iter().find(|failed| failed.file == "metrics.jsonl").unwrap();
        assert!(log.error.as_ref().unwrap().contains("it was removed, alone or with its folder"), "{log:?}");
    }
}
