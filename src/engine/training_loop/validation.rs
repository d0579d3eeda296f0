//! Evaluations of the training loop.

use std::time::Instant;

use burn::tensor::Device;
use firebrick_datasets::{Batch, Batches, SampleError};
use firebrick_world::is_host;
use tracing::warn;

use super::TrainingLoop;
use crate::data::Stream;
use crate::engine::agreement::SumsOfAll;
use crate::engine::feed;
use crate::engine::late::Late;
use crate::engine::optional_batch::{Deal, Spare};
use crate::engine::session::checked;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress};
use crate::observe::observer::Observer;
use crate::score::{EvaluationSums, Scores};
use crate::{Evaluation, Objective, TrainError};

impl<M, B: Batch> TrainingLoop<M, B>
where
    M: Objective<B> + 'static,
{
    /// Computes the mean loss over all items of the validation data, and keeps the model if it is the best so far. Without
    /// items there is no loss: a warning says so. Returns false if the run was interrupted before the end of the evaluation.
    pub(super) fn evaluate(&mut self) -> Result<bool, TrainError> {
        let Some(valid) = self.data.valid.clone() else {
            return Ok(true);
        };
        let started = Instant::now();
        let Some((sums, scores)) = self.sums_of_validation(&valid)? else {
            self.is_interrupted();
            return Ok(false);
        };
        if sums.items == 0 {
            // There is no loss to compare. Training does not need one, so it goes on as without validation data. All
            // ranks have the same sums, so all of them return here.
            if self.session.world().rank() == 0 {
                let (step, samples) = (self.session.updates(), valid.samples(0));
                let place = "the validation data".to_string();
                let problem = SampleError::NoItems { place, samples };
                warn!("no evaluation after update {step}: {problem}");
            }
            return Ok(true);
        }
        let numbers = EvaluationNumbers {
            step: self.session.updates(),
            loss: sums.loss / sums.items as f64,
            items: sums.items,
            seconds: started.elapsed().as_secs_f64(),
            scores,
        };
        self.observers.evaluated(&numbers);
        if self.progress.evaluated(numbers, &self.plan.best_by) {
            self.keep_best()?;
        }
        Ok(true)
    }

    /// Computes the sums over the validation data and the scores from them; `None` if the run was interrupted.
    ///
    /// Each rank evaluates its part, and all ranks return the sums of the whole.
    fn sums_of_validation(
        &mut self,
        valid: &Stream<B>,
    ) -> Result<Option<(EvaluationSums, Scores)>, TrainError> {
        let world = self.session.world().clone();
        let (alone, samples) = (world.size() == 1, valid.samples(0));
        let model = self.session.evaluator()?;
        let pass = self.session.pass().evaluating(self.session.evaluation_dtype());
        let mut spare = Spare::new(valid.clone());
        let mut sums = EvaluationSums::default();
        let mut unread = Unread::new(self.session.device());
        let cut = feed::cut(&self.data, 1, self.session.share())?;
        let mut end = 0;
        while end < samples {
            let global = cut.global_batch(valid, 0, end, samples)?;
            end = global.end;
            for positions in cut.micro_batches(valid, 0, &global)? {
                let own = Deal(valid.clone()).batch(0, positions)?.0.filter(|batch| batch.items() > 0);
                let expected = own.as_ref().map_or(0, Batch::items);
                let batch = match own {
                    Some(batch) => batch,
                    None if pass.is_collective() => spare.batch()?,
                    None => continue,
                };
                let (entered, pass) = pass.clone().empty_batch(expected == 0).enter(&model)?;
                let Evaluation { loss, counts } = entered.evaluate(batch, &pass);
                self.session.having_read(pass.check().map_err(TrainError::from))?;
                if expected == 0 || !pass.adds_results() {
                    continue;
                }
                let loss = Late::new(checked(loss.sum, loss.items, expected)?.inner());
                // A batch whose tokens several ranks share counts once.
                let items = if pass.counts_batch() { expected } else { 0 };
                let batch = EvaluatedBatch { done: end, items, counts };
                if let Some(read) = unread.push(loss, batch)? {
                    self.add(read, &mut sums, samples);
                }
            }
            if alone && self.interrupter.should_stop() {
                return Ok(None);
            }
        }
        for read in [unread.next()?, unread.next()?] {
            self.add(read, &mut sums, samples);
        }
        if !alone {
            let stops = self.interrupter.should_stop();
            let of_all = SumsOfAll::agree(&world, &sums, stops)?;
            sums = of_all.sums;
            self.stops = of_all.stops;
            let loss = Some(sums.loss / sums.items.max(1) as f64);
            let items = sums.items;
            // A share of no samples is not a number.
            if samples > 0 {
                self.observers.evaluating(&EvaluationProgress { done: samples, samples, loss, items });
            }
        }
        let scores = self.scores.after(model.scores(&sums.counts), &sums);
        let scores = scores.into_iter().map(|score| (score.name.to_string(), score.value)).collect();
        Ok(Some((sums, scores)))
    }

    /// Adds batches to the sums, in order.
    fn add(&mut self, read: Vec<(f64, EvaluatedBatch)>, sums: &mut EvaluationSums, samples: usize) {
        let alone = self.session.world().size() == 1;
        for (loss, EvaluatedBatch { done, items, counts }) in read {
            sums.add(loss, items, &counts);
            let loss = alone.then_some(loss / items as f64);
            self.observers.evaluating(&EvaluationProgress { done, samples, loss, items });
        }
    }
}

/// What is known of a batch before its loss is read.
struct EvaluatedBatch {
    /// The samples up to its end.
    done: usize,
    items: usize,
    /// What the model counted in it.
    counts: Vec<f64>,
}

/// Batches whose losses are still on the device. A device's losses are read several at once, after as many more batches
/// have been submitted: it never runs out of work.
struct Unread {
    /// The batches since the last read began, and those of that read.
    batches: [(Vec<Late>, Vec<EvaluatedBatch>); 2],
    most: usize,
}

impl Unread {
    /// On the CPU a read costs nothing, so each batch is read at once.
    fn new(device: &Device) -> Self {
        Self { batches: Default::default(), most: if is_host(device) { 1 } else { 16 } }
    }

    /// Takes a batch, and returns earlier ones if it is time to read them.
    fn push(
        &mut self,
        loss: Late,
        batch: EvaluatedBatch,
    ) -> Result<Option<Vec<(f64, EvaluatedBatch)>>, TrainError> {
        let [(losses, batches), _] = &mut self.batches;
        losses.push(loss);
        batches.push(batch);
        if losses.len() < self.most {
            return Ok(None);
        }
        let begun = Late::begin(losses);
        let earlier = self.next()?;
        Ok(Some(if begun { earlier } else { earlier.into_iter().chain(self.next()?).collect() }))
    }

    /// Reads the batches whose read has begun, and moves up those after them.
    fn next(&mut self) -> Result<Vec<(f64, EvaluatedBatch)>, TrainError> {
        let [now, begun] = &mut self.batches;
        let (losses, batches) = std::mem::replace(begun, std::mem::take(now));
        Ok(Late::read_all(&losses)?.into_iter().zip(batches).collect())
    }
}
