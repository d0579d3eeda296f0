//! What `fit` does: checks, then each rank of this process on its own.

use burn::optim::ModuleOptimizer;
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::{BoxedStrategy, Strategy};

use super::for_rank::for_rank;
use super::{Destination, Length, Trained, Trainer, Watch};
use crate::checkpoint::{ResumeError, Shared};
use crate::ranks::each_rank;
use crate::report::process_start;
use crate::step::StepNumbers;
use crate::{Data, Objective, Schedule, TrainError};

impl<S> Trainer<S> {
    /// Trains `model` on `data`, and returns it whole.
    ///
    /// The model runs where its parameters are, or on the devices that the world [names](crate::World::on). One that
    /// no device can hold is made on the host: [`Zero`](crate::Zero) and [`Offload`](crate::Offload) take from it,
    /// one parameter after the other, what they keep. Where a strategy computes in a smaller dtype, the first
    /// batch is tried before the run, so that a model that mixes dtypes is told which parameter does not fit.
    ///
    /// # Errors
    ///
    /// A strategy, setting or order that cannot be; data that cannot be read; an objective whose
    /// count or dtype is wrong; a file that cannot be written; or nothing but skipped updates. Of many
    /// ranks: the first error of any, with [its number](TrainError::Rank); or
    /// [one that is late](firebrick_strategies::WorldError::Deadline).
    pub fn fit<M, B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
    ) -> Result<Trained<M>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        self.fit_watched(model, optimizer, schedule, data, |_| {})
    }

    /// [`fit`](Self::fit), with each step's numbers handed to `watch` as well.
    ///
    /// # Errors
    ///
    /// Those of [`fit`](Self::fit).
    pub fn fit_watched<M, B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
        watch: impl FnMut(&StepNumbers) + Send + 'static,
    ) -> Result<Trained<M>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        // What follows is compiled once for a model and its batches, however they are trained.
        let trained = self.map_strategies(BoxedStrategy::new).fit_boxed(
            model,
            optimizer,
            schedule,
            data,
            Box::new(watch),
        );
        trained?.ok_or(TrainError::NoModel)
    }

    /// [`fit`](Self::fit) where only the process of the first rank wants the model, which no other one holds whole.
    pub(crate) fn fit_for_first<M, B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
    ) -> Result<Option<Trained<M>>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        let boxed = self.map_strategies(BoxedStrategy::new);
        boxed.fit_boxed(model, optimizer, schedule, data, Box::new(|_| {}))
    }

    fn check(&self) -> Result<(), TrainError> {
        let (length, found) = match self.length {
            Length::Steps(updates) => ("steps", updates),
            Length::Epochs(epochs) => ("epochs", epochs),
        };
        if let Some(setting) = self.checkpoints.and_then(|policy| policy.out_of_range()) {
            return Err(TrainError::Setting { setting, expected: "at least 1", found: "0".into() });
        }
        if (self.checkpoints.is_some() || self.resume.is_some()) && self.output.is_none() {
            return Err(ResumeError::NoOutput.into());
        }
        if !(0.0..1.0).contains(&self.label_smoothing) {
            return Err(TrainError::Setting {
                setting: "label_smoothing",
                expected: "at least 0 and below 1",
                found: self.label_smoothing.to_string(),
            });
        }
        let settings = [
            (length, found),
            ("device_budget", self.device_budget.unwrap_or(1) as u64),
            ("evaluate_every", self.evaluate_every.unwrap_or(1)),
            ("early_stopping", self.patience.unwrap_or(1) as u64),
        ];
        match settings.into_iter().find(|(_, value)| *value == 0) {
            None => Ok(()),
            Some((setting, _)) => {
                Err(TrainError::Setting { setting, expected: "at least 1", found: "0".into() })
            }
        }
    }
}

impl<M: 'static> Trainer<BoxedStrategy<M>> {
    fn fit_boxed<B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
        watch: Watch,
    ) -> Result<Option<Trained<M>>, TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        process_start();
        self.check()?;
        if data.valid.as_ref().is_some_and(|valid| valid.samples(0) == 0) {
            return Err(DataError::EmptyEpoch { epoch: 0 }.into());
        }
        let world = self.world()?;
        let mut ranks = world.join()?;
        let shared = Shared::default();
        if let Some(alone) = ranks.pop_if(|rank| rank.size() == 1) {
            let device = world.device(0).cloned();
            let model = for_rank(model, device.as_ref());
            return self.train(alone, (model, device), optimizer, schedule, data, watch, Some(0), &shared);
        }
        let root = self.root(ranks.len(), ranks[0].size());
        let mut watch = Some(watch);
        let jobs = ranks.into_iter().map(|rank| {
            let own = model.devices().first().cloned();
            let device = world.device(rank.local_rank()).cloned().or(own);
            // Ranks that shared a leaf would share its graph, and wait for each other in the backward pass.
            let own = for_rank(model.clone(), device.as_ref());
            let watch = watch.take_if(|_| rank.rank() == 0).unwrap_or_else(|| Box::new(|_| {}));
            (rank, (self.clone(), (own, device), optimizer.clone(), data.clone(), watch))
        });
        let jobs: Vec<_> = jobs.collect();
        // Each rank has its own: what was given would be held through the whole run.
        drop((model, optimizer, data));
        each_rank(jobs, world.limit(), move |rank, (trainer, model, optimizer, data, watch)| {
            trainer.train(rank, model, optimizer, schedule, data, watch, root, &shared)
        })
    }

    /// The only rank that is to have the model at the end; `None`: each. In one process it is wanted once, and of
    /// several by the one that owns the output folder, where the others know of it.
    fn root(&self, here: usize, all: usize) -> Option<usize> {
        let is_led = matches!(&self.output, Some(Destination::Claimed(_) | Destination::Elsewhere(_)));
        (here == all || is_led).then_some(0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn of_several_processes_only_the_first_holds_the_model_that_the_program_writes() {
        let trainer = || Trainer::new().map_strategies(BoxedStrategy::<()>::new);
        assert_eq!(trainer().root(4, 4), Some(0));
        // Each of them has called `fit`, which returns it.
        assert_eq!(trainer().root(2, 4), None);
        assert_eq!(trainer().output("run").root(2, 4), None);
        assert_eq!(trainer().saved_elsewhere(Path::new("run")).root(2, 4), Some(0));
    }
}
