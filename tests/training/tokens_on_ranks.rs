//! Micro-batches bounded by tokens on several ranks: a rank's part of a global batch may take several of them.

use std::ops::Range;
use std::sync::mpsc;

use crate::support::many::optimizer;
use crate::support::{Rows, device, difference, gpt, parameters};
use firebrick::datasets::{Batches, DataError, TokenBatch};
use firebrick::strategies::{Composed, Composition};
use firebrick::{Accumulate, Clip, Data, Schedule, StepNumbers, TrainError, Trainer, World, Zero};
use firebrick_models::Gpt;

/// Ragged rows that count padded tokens.
struct Counted(Rows);

impl Batches for Counted {
    type Batch = TokenBatch;

    fn samples(&self, epoch: u64) -> usize {
        self.0.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        self.0.batch(epoch, positions)
    }

    fn padded_tokens(&self, _: u64, positions: Range<usize>) -> Result<usize, DataError> {
        let rows = &self.0.0[positions];
        Ok(rows.len() * rows.iter().map(Vec::len).max().unwrap_or(0))
    }
}

/// Returns gradient norms and parameters of a run with global batches of at most 64 tokens.
fn run<S: Composition<Gpt>>(ranks: usize, strategies: S) -> Result<(Vec<f64>, Vec<f32>), TrainError> {
    let data = Data::new(Counted(Rows::ragged(40))).micro_tokens(64 / ranks);
    let (sender, norms) = mpsc::channel();
    let trainer = Trainer::new().over(World::threads(ranks)).with(strategies).steps(6);
    let model = gpt(0.0, &device().autodiff());
    let trained = trainer
        .observe(move |step: &StepNumbers| {
            sender.send(step.gradient_norm).unwrap();
        })
        .fit(model, optimizer(), Schedule::constant(2e-3), data)?;
    Ok((norms.into_iter().collect(), parameters(&trained.model)))
}

#[test]
fn ranks_sum_all_micro_batches_of_a_step() {
    let (norms, expected) = run(1, None::<Clip>).unwrap();
    for stage in 0..=3 {
        let zero = Zero::stage(stage).replicate_below(64);
        let (found, parameters) = run(4, Composed::new().with(zero).with(Accumulate(1))).unwrap();
        assert_eq!(found.len(), norms.len());
        for (found, norm) in found.iter().zip(&norms) {
            assert!((found - norm).abs() < 1e-5 * norm, "stage {stage}: {found} instead of {norm}");
        }
        let apart = difference(&parameters, &expected);
        assert!(apart < 1e-5, "stage {stage}: parameters differ by {apart:e}");
    }
}

#[test]
fn without_a_sum_they_are_refused_before_the_run() {
    for ranks in [2, 4] {
        let error = run(ranks, Zero::stage(0)).unwrap_err();
        assert!(matches!(error, TrainError::NotSummed), "{error}");
    }
    run(1, None::<Clip>).unwrap();
}
