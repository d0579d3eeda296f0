//! Finds the largest micro-batch that fits, by plan or by trial.

use std::ops::Range;

use burn::train::Interrupter;
use clap::ValueEnum;
use firebrick_datasets::{Batch, Batches, DataError};
use serde::Serialize;

use super::flops::Work;
use super::longest::{LOOKED_AT, Longest};
use super::trace::{Traced, Tracer};
use super::{Limit, Planner};
use crate::run::{Parts, Shape, shapes, sum};
use crate::{DataRun, PlanError, Run, RunError};
use firebrick::data::Stream;
use firebrick::engine::dry_run::caught;
use firebrick::{ByteSize, Schedule, TrainError};

/// What tells whether a micro-batch fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FindBy {
    /// The plan of the run with it.
    #[default]
    Plan,
    /// A real training step with it, on the run's device.
    Steps,
}

/// The largest micro-batch with which a training step of the run succeeds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundBatch {
    /// Samples in a micro-batch.
    pub micro: usize,
    /// Micro-batches in an update, chosen so that the global batch stays the same.
    pub accumulate: usize,
    /// What was tried, in order: the number of samples, and whether they fit.
    pub tried: Vec<(usize, bool)>,
}

impl Run {
    /// Finds the largest micro-batch that keeps the global batch and with which a training step stays within a rank's
    /// share of the device: `budget`, otherwise the run's `device_budget`, otherwise, on the CPU, the rank's share of
    /// the machine's memory.
    ///
    /// It tries the sizes that divide a rank's part of the global batch: first in growing strides, then by bisection,
    /// with the longest of the first micro-batches. Nothing is written.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), or with real steps those of [`launch`](Self::launch), and [`PlanError`].
    pub fn find_batch(
        &self,
        by: FindBy,
        budget: Option<ByteSize>,
        say: impl Fn(&str),
    ) -> Result<FoundBatch, RunError> {
        let (model, folder) = match by {
            FindBy::Plan => self.described_model()?,
            FindBy::Steps => self.named_model()?,
        };
        let Some(micro) = self.batch.micro else { return Err(PlanError::BoundedByTokens.into()) };
        let of_rank = micro.saturating_mul(DataRun::from(self).micro_batches());
        let mut parts = match by {
            FindBy::Plan => self.prepare_unbounded(model, folder, &say)?,
            FindBy::Steps => self.prepare(model, folder, &Interrupter::new(), &say)?,
        };
        parts.data.valid = None;
        let limit = Limit::of(self, budget, parts.device_name.starts_with("cpu"))?;
        if by == FindBy::Plan && limit.bytes.is_none() {
            return Err(PlanError::NoBudget { device: parts.device_name }.into());
        }
        let shapes = shapes(&parts.config, &self.strategies, &parts.fresh)?;
        let sizes = divisors(of_rank);
        let mut tried = Vec::new();
        let mut reason = String::new();
        let largest = largest(sizes.len(), |index| {
            let micro = sizes[index];
            let trial = Trial { run: self, parts: &parts, limit, micro, accumulate: of_rank / micro };
            let failed = match by {
                FindBy::Plan => trial.planned(&shapes, &say)?,
                FindBy::Steps => trial.make()?,
            };
            tried.push((micro, failed.is_none()));
            let outcome = if failed.is_none() { "fits" } else { "is too large" };
            say(&format!("a micro-batch of {micro} {outcome}"));
            reason = failed.unwrap_or(std::mem::take(&mut reason));
            Ok(tried.last().is_some_and(|(_, fits)| *fits))
        })?;
        match largest {
            Some(index) => Ok(FoundBatch { micro: sizes[index], accumulate: of_rank / sizes[index], tried }),
            None => {
                let budget = limit.bytes.map_or("what the device has".into(), |bytes| {
                    ByteSize(usize::try_from(bytes).unwrap_or(usize::MAX)).to_string()
                });
                Err(PlanError::NoBatchFits { budget, reason }.into())
            }
        }
    }

    /// Returns the same run with another micro-batch.
    fn with_batch(&self, micro: usize, accumulate: usize) -> Self {
        let mut run = self.clone();
        run.batch.micro = Some(micro);
        let mut is_listed = false;
        for strategy in &mut run.strategies {
            if let Some(sums) = strategy.effects().sums {
                (*strategy, is_listed) = (sum(accumulate, sums.dtype), true);
            }
        }
        if !is_listed {
            run.batch.accumulate = Some(accumulate);
        }
        run
    }
}

/// A micro-batch of this size.
struct Trial<'a> {
    run: &'a Run,
    parts: &'a Parts,
    limit: Limit,
    micro: usize,
    accumulate: usize,
}

impl Trial<'_> {
    /// Plans the run with it, and returns why it does not fit, if it does not.
    fn planned(&self, shapes: &[Shape], say: &dyn Fn(&str)) -> Result<Option<String>, RunError> {
        let run = self.run.with_batch(self.micro, self.accumulate);
        let data = self.parts.data.clone().micro_batch(self.micro);
        let per_step = self.accumulate.saturating_mul(run.data_ranks());
        let longest = Longest::of(&data, per_step, LOOKED_AT)?;
        let work = Work::of(&self.parts.config, &longest, 1.0);
        let (parts, limit, rows, tokens) = (self.parts, self.limit, self.micro, longest.mean_tokens);
        let tracer = Tracer::new(&run, parts, Traced::Run(longest));
        let mut planner = Planner { run: &run, parts, shapes, tracer, rows, work, tokens, limit, say };
        let planned = planner.plan(&run.strategies, &run.composed())?;
        let needs = ByteSize(usize::try_from(planned.peak_bytes).unwrap_or(usize::MAX));
        Ok((planned.fits != Some(true)).then(|| format!("a rank needs {needs} at the peak")))
    }

    /// Makes a training step with it, and returns why it does not fit, if it does not.
    fn make(&self) -> Result<Option<String>, RunError> {
        // With more than two micro-batches, the sum of the gradients is no larger.
        let run = self.run.with_batch(self.micro, self.accumulate.min(2));
        let data = self.parts.data.clone().micro_batch(self.micro);
        let per_step = self.accumulate.saturating_mul(run.data_ranks());
        let longest = Longest::of(&data, per_step, LOOKED_AT)?;
        let train = From { stream: data.train.clone(), start: longest.start() };
        let data = data.train_on(std::sync::Arc::new(train));
        let (model, optimizer) = run.fresh(self.parts, |_| {})?;
        let trainer = run.trainer(self.parts).steps(1);
        let trainer = match self.limit.bytes {
            Some(bytes) => trainer.device_budget(usize::try_from(bytes).unwrap_or(usize::MAX)),
            None => trainer,
        };
        let schedule = Schedule::constant(run.schedule.peak());
        // A failing allocator ends the step with a panic.
        match caught(|| trainer.fit(model, optimizer, schedule, data)) {
            Ok(Ok(_)) => Ok(None),
            Ok(Err(error)) if is_too_large(&error) => Ok(Some(error.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(panic) => Ok(Some(panic.message)),
        }
    }
}

fn is_too_large(error: &TrainError) -> bool {
    match error {
        TrainError::OverBudget(_) | TrainError::Panicked(_) => true,
        TrainError::Rank { reason, .. } => is_too_large(reason),
        _ => false,
    }
}

/// A stream that begins at a later position.
struct From<B> {
    stream: Stream<B>,
    start: usize,
}

impl<B: Batch> From<B> {
    fn later(&self, positions: Range<usize>) -> Range<usize> {
        positions.start.saturating_add(self.start)..positions.end.saturating_add(self.start)
    }
}

impl<B: Batch> Batches for From<B> {
    type Batch = B;

    fn samples(&self, epoch: u64) -> usize {
        self.stream.samples(epoch).saturating_sub(self.start)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<B, DataError> {
        self.stream.batch(epoch, self.later(positions))
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.stream.padded_tokens(epoch, self.later(positions))
    }
}

/// Returns all divisors of a number, in ascending order.
fn divisors(number: usize) -> Vec<usize> {
    let small: Vec<usize> =
        (1..).take_while(|i| i * i <= number).filter(|i| number.is_multiple_of(*i)).collect();
    let large = small.iter().rev().map(|i| number / i).filter(|large| large * large != number);
    small.iter().copied().chain(large).collect()
}

/// Returns the last of `count` indices that fits, provided that all before it fit too: doubles the index, then bisects.
pub(super) fn largest(
    count: usize,
    mut fits: impl FnMut(usize) -> Result<bool, RunError>,
) -> Result<Option<usize>, RunError> {
    let (mut below, mut next) = (None, 0);
    let mut above = loop {
        if next >= count {
            break count;
        }
        if !fits(next)? {
            break next;
        }
        below = Some(next);
        next = 2 * next + 1;
    };
    let Some(mut largest) = below else { return Ok(None) };
    while largest + 1 < above {
        let middle = largest.midpoint(above);
        if fits(middle)? { largest = middle } else { above = middle }
    }
    Ok(Some(largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_fits_is_found_wherever_it_is() {
        for count in 1..20 {
            for last in 0..=count {
                let found = largest(count, |index| {
                    assert!(index < count);
                    Ok(index < last)
                });
                assert_eq!(found.unwrap(), last.checked_sub(1), "{last} of {count}");
            }
        }
    }

    #[test]
    fn the_global_batch_stays_what_it_was() {
        assert_eq!(divisors(12), [1, 2, 3, 4, 6, 12]);
        assert_eq!(divisors(16), [1, 2, 4, 8, 16]);
        assert_eq!((divisors(1), divisors(7)), (vec![1], vec![1, 7]));
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        for set in ["batch=(micro: 6, accumulate: 2)", "strategies=[Accumulate(3)]"] {
            let run = Run::parse("file", file, &[set]).unwrap().with_batch(4, 3);
            assert_eq!((run.batch.micro, DataRun::from(&run).micro_batches()), (Some(4), 3));
        }
    }
}
