//! When a rank fails, is stuck, or is asked to stop, all ranks end, and the error names the rank.

use std::ops::Range;

use crate::support::{Bigram, POISON, Rows, adamw, device, gpt};
use burn::module::Module;
use firebrick::datasets::{Batches, DataError, TokenBatch};
use firebrick::strategies::{StrategyError, WorldError};
use firebrick::{
    Data, Interrupter, Loss, Mesh, Objective, Pass, Schedule, StepNumbers, TrainError, Trainer, World, Zero,
};
use firebrick_models::Gpt;

#[test]
fn a_run_that_diverges_on_one_rank_ends_with_its_number() {
    let mut rows = Rows::ragged(8).0;
    rows[5] = vec![1, POISON, 3];
    let data = Data::new(Rows(rows)).micro_batch(2);
    let trainer = Trainer::new().over(World::threads(4)).with(Zero::stage(0)).steps(1000);
    let model = Bigram::new(&device().autodiff());
    let error = trainer.fit(model, adamw(), Schedule::constant(1e-2), data).unwrap_err();
    assert!(error.to_string().contains("first on rank 2"), "{error}");
    assert!(matches!(error, TrainError::OnlySkips { count: 100, first: Some(2), .. }), "{error}");
}

/// Trains several ranks, one of which fails.
fn fails<B: Batches<Batch = TokenBatch>, M: Objective<TokenBatch> + 'static>(
    model: M,
    train: B,
    (stage, context): (u8, usize),
    valid: Option<Rows>,
) -> TrainError {
    let data = Data::new(train).micro_batch(2).workers(0);
    let data = match valid {
        Some(valid) => data.valid(valid),
        None => data,
    };
    // A deadline beyond all time is none.
    let world = World::threads(4).deadline(std::time::Duration::MAX);
    let mesh = Mesh::new().context(context);
    let trainer = Trainer::new().over(world).with(mesh).with(Zero::stage(stage)).steps(50);
    match trainer.fit(model, adamw(), Schedule::constant(1e-2), data) {
        Err(error) => error,
        Ok(_) => panic!("a rank fails"),
    }
}

/// Panics on the rank of this number.
#[derive(Module, Debug)]
struct PanicsOn {
    inner: Gpt,
    rank: usize,
    evaluating: bool,
}

impl Objective<TokenBatch> for PanicsOn {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let name = format!("rank {}", self.rank);
        let is_here = std::thread::current().name() == Some(&name);
        assert!(!is_here || pass.is_training() == self.evaluating, "out of tune");
        self.inner.loss(batch, pass)
    }
}

#[test]
fn a_rank_that_panics_brings_all_down_and_is_named() {
    let cases = [(0, 2, false), (1, 0, false), (1, 3, true), (0, 0, true)];
    for ((stage, rank, evaluating), context) in
        cases.into_iter().flat_map(|case| [1, 2, 4].map(|c| (case, c)))
    {
        let model = PanicsOn { inner: gpt(0.0, &device().autodiff()), rank, evaluating };
        let valid = evaluating.then(|| Rows::ragged(9));
        let error = fails(model, Rows::ragged(16), (stage, context), valid);
        let TrainError::Rank { rank: named, reason } = &error else { panic!("{error}") };
        assert!(*named == rank && matches!(**reason, TrainError::Panicked(_)), "{error}");
        assert_eq!(error.to_string(), format!("rank {rank}: panicked: out of tune"));
    }
}

/// Rows with one that cannot be read.
struct Damaged(Rows, usize);

impl Batches for Damaged {
    type Batch = TokenBatch;

    fn samples(&self, epoch: u64) -> usize {
        self.0.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        match positions.contains(&self.1) {
            true => Err(DataError::EmptyText { place: "the damaged row".into() }),
            false => self.0.batch(epoch, positions),
        }
    }
}

#[test]
fn a_rank_that_cannot_read_its_part_brings_all_down_and_is_named() {
    // In global batches of eight rows for four ranks, row 13 belongs to the third rank.
    let error = fails(gpt(0.0, &device().autodiff()), Damaged(Rows::ragged(16), 13), (1, 1), None);
    assert!(
        matches!(&error, TrainError::Rank { rank: 2, reason } if matches!(**reason, TrainError::Data(_)))
    );
    assert!(error.to_string().starts_with("rank 2: "), "{error}");
}

#[test]
fn a_mistake_in_what_all_are_given_is_told_once_and_of_no_rank() {
    let model = || Bigram::new(&device().autodiff());
    let fit = |trainer: Trainer<Bigram>| {
        let data = Data::new(Rows::ragged(8));
        trainer.fit(model(), adamw(), Schedule::constant(1e-2), data).unwrap_err().to_string()
    };
    let four = || Trainer::new().over(World::threads(4)).steps(3);
    let error = fit(four().with(Zero::stage(7)));
    assert_eq!(error, "Zero: `stage` must be 0, 1, 2 or 3, found 7");
    let error = fit(four().with(Zero::stage(0).over(World::threads(2))));
    assert!(error.contains("define them once"), "{error}");
    let alone = four().fit(model(), adamw(), Schedule::constant(1e-2), Data::new(Rows::ragged(8)));
    let error = alone.unwrap_err().to_string();
    assert!(error.contains("4 ranks train") && error.contains(".with(Zero::stage(0))"), "{error}");
    let warmup = four().with(Zero::stage(0)).fit(
        model(),
        adamw(),
        Schedule::constant(1e-2).warmup(5),
        Data::new(Rows::ragged(8)),
    );
    let TrainError::Schedule(error) = warmup.unwrap_err() else { panic!("another error") };
    assert_eq!(error, firebrick::ScheduleError::Warmup { field: "warmup", warmup: 5, total: 3 });
}

/// Rows whose first batch on the rank of this number waits for a signal.
struct Stuck {
    rows: Rows,
    rank: &'static str,
    go_on: std::sync::Arc<std::sync::Barrier>,
}

impl Batches for Stuck {
    type Batch = TokenBatch;

    fn samples(&self, epoch: u64) -> usize {
        self.rows.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        if std::thread::current().name() == Some(self.rank) {
            self.go_on.wait();
        }
        self.rows.batch(epoch, positions)
    }
}

#[test]
fn a_rank_that_is_stuck_is_named_when_the_deadline_has_passed() {
    for (rank, number) in [("rank 1", 1), ("rank 0", 0)] {
        let go_on = std::sync::Arc::new(std::sync::Barrier::new(2));
        let stuck = Stuck { rows: Rows::ragged(16), rank, go_on: go_on.clone() };
        let world = World::threads(3).deadline(std::time::Duration::from_millis(200));
        let trainer = Trainer::new().with(Zero::stage(0).over(world)).steps(5);
        let data = Data::new(stuck).micro_batch(2).workers(0);
        let result = trainer.fit(Bigram::new(&device().autodiff()), adamw(), Schedule::constant(1e-2), data);
        let error = result.unwrap_err();
        let TrainError::Strategy(StrategyError::World(WorldError::Deadline { ranks, .. })) = &error else {
            panic!("{error}")
        };
        assert_eq!(*ranks, [number], "{error}");
        // The stuck thread may end now, and nobody receives its result.
        go_on.wait();
    }
}

#[test]
fn an_interrupt_ends_all_ranks_at_the_same_step() {
    let interrupter = Interrupter::new();
    let stop = interrupter.clone();
    let trainer = Trainer::new().over(World::threads(3)).with(Zero::stage(1)).steps(100);
    let trained = trainer
        .interrupter(interrupter)
        .observe(move |step: &StepNumbers| {
            if step.step == 4 {
                stop.stop(Some("enough"));
            }
        })
        .fit(
            Bigram::new(&device().autodiff()),
            adamw(),
            Schedule::constant(1e-2),
            Data::new(Rows::ragged(30)).micro_batch(2),
        )
        .unwrap();
    let steps = trained.report.steps;
    assert!((5..10).contains(&steps), "{steps}");
    assert_eq!(trained.report.stopped.as_deref(), Some("enough"));
    assert_eq!(trained.last_step.step, steps);
}
