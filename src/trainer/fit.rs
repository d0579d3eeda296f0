//! `fit`: checks the settings, then trains each rank of this process.

use std::sync::Arc;

use firebrick_datasets::{Batch, DataError, SampleError};
use firebrick_kernels::product_library;
use firebrick_strategies::SettingError;
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_world::is_host;
use tracing::info;

use super::for_rank::for_rank;
use super::{Destination, Trained, Trainer};
use crate::checkpoint::Shared;
use crate::engine::ranks::each_rank;
use crate::observe::report::process_start;
use crate::{Data, LrSchedule, Objective, ResumeError, TrainError, Utilization};

impl<M: 'static> Trainer<M> {
    /// Trains `model` on `data` and returns the whole model.
    ///
    /// The optimizer is one of [`optim`](crate::optim), or any of Burn's in a [`ModuleOptimizer`](burn::optim::ModuleOptimizer).
    ///
    /// The model runs where its parameters are, or on the devices that the world [names](crate::World::on). If the
    /// model is too large for a device, create it on the host: [`Zero`](crate::Zero) and [`Offload`](crate::Offload)
    /// then take the parts that they keep from it, one parameter at a time. If a strategy computes in a smaller
    /// dtype, a trial pass on the first batch runs before the run starts, and the error for a model that mixes dtypes
    /// names the parameter that does not fit.
    ///
    /// # Errors
    ///
    /// An invalid strategy, setting or order; data that cannot be read; an objective whose count or dtype is wrong; a
    /// file that cannot be written; or too many skipped steps. With several ranks, the first error of
    /// any rank, with [its number](TrainError::Rank), or a [missed
    /// deadline](firebrick_world::WorldError::Deadline).
    pub fn fit<B>(
        self,
        model: M,
        optimizer: impl Into<ModelOptimizer>,
        schedule: impl LrSchedule + 'static,
        data: Data<B>,
    ) -> Result<Trained<M>, TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        // Compiled once for all kinds of optimizers.
        let optimizer: ModelOptimizer = optimizer.into();
        self.fit_for_first(model, optimizer, schedule, data)?.ok_or(TrainError::NoModel)
    }

    /// Like [`fit`](Self::fit), but only the process of the first rank returns the model; no other process holds it
    /// whole.
    pub fn fit_for_first<B>(
        self,
        model: M,
        optimizer: impl Into<ModelOptimizer>,
        schedule: impl LrSchedule + 'static,
        data: Data<B>,
    ) -> Result<Option<Trained<M>>, TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        let (optimizer, schedule): (ModelOptimizer, Arc<dyn LrSchedule>) =
            (optimizer.into(), Arc::new(schedule));
        process_start();
        self.check()?;
        self.require_scores(&data)?;
        let world = self.world()?;
        let mut ranks = world.join()?;
        let shared = Shared::default();
        let first = world.device(0).cloned().or_else(|| model.devices().first().cloned());
        if let Some(library) = first.as_ref().and_then(product_library).filter(|_| ranks[0].rank() == 0) {
            match library {
                Ok(library) => info!("matrices are multiplied by {library}"),
                Err(why) => info!("matrices are multiplied by CubeCL's kernels, which are slower: {why}"),
            }
        }
        if let Some(alone) = ranks.pop_if(|rank| rank.size() == 1) {
            let device = world.device(0).cloned();
            let model = for_rank(model, device.as_ref());
            return self.train(alone, (model, device), optimizer, schedule, data, Some(0), &shared);
        }
        if let Some(why) = ranks[0].through_host().filter(|_| ranks[0].rank() == 0)
            && world.device(0).is_some_and(|device| !is_host(device))
        {
            info!("the ranks exchange through the host's memory: {why}");
        }
        let root = self.root(ranks.len(), ranks[0].size());
        let jobs = ranks.into_iter().map(|rank| {
            let own = model.devices().first().cloned();
            let device = world.device(rank.local_rank()).cloned().or(own);
            // Ranks that shared a leaf would also share its graph and wait for each other in the backward pass.
            let own = for_rank(model.clone(), device.as_ref());
            (rank, (self.clone(), (own, device), optimizer.clone(), data.clone()))
        });
        let jobs: Vec<_> = jobs.collect();
        // Each rank has its own copy; keeping the originals would hold them through the whole run.
        drop((model, optimizer, data));
        each_rank(jobs, world.limit(), move |rank, (trainer, model, optimizer, data)| {
            trainer.train(rank, model, optimizer, schedule.clone(), data, root, &shared)
        })
    }

    fn check(&self) -> Result<(), TrainError> {
        self.settings.check().map_err(TrainError::Setting)?;
        if let Some(setting) = self.checkpoints.and_then(|policy| policy.out_of_range()) {
            SettingError::require(false, setting, "at least 1", 0).map_err(TrainError::Setting)?;
        }
        if (self.checkpoints.is_some() || self.resume.is_some()) && self.output.is_none() {
            return Err(ResumeError::NoOutput.into());
        }
        if let Some(Utilization { flops_per_token, peak_flops }) = self.utilization {
            for (setting, flops) in
                [("utilization.flops_per_token", flops_per_token), ("utilization.peak_flops", peak_flops)]
            {
                let possible = flops > 0.0 && flops.is_finite();
                SettingError::require(possible, setting, "finite and above 0", flops)
                    .map_err(TrainError::Setting)?;
            }
        }
        Ok(())
    }

    /// Rejects validation data without items if a score of it selects the best model: no evaluation would ever have one.
    fn require_scores<B: Batch>(&self, data: &Data<B>) -> Result<(), TrainError> {
        let (Some(score), Some(valid)) = (&self.settings.best_by, &data.valid) else { return Ok(()) };
        let samples = valid.samples(0);
        for position in 0..samples {
            if valid.batch(0, position..position + 1)?.items() > 0 {
                return Ok(());
            }
        }
        let place = format!("the validation data, whose {score} selects the best model,");
        Err(DataError::Sample(SampleError::NoItems { place, samples }).into())
    }

    /// The only rank that returns the model at the end; `None` means every rank. Within one process, one copy is
    /// enough. Of several processes, only the one that owns the output folder needs the model, if the others know
    /// about that folder.
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
        let trainer = Trainer::<()>::new;
        assert_eq!(trainer().root(4, 4), Some(0));
        // Each process called `fit`, which returns the model.
        assert_eq!(trainer().root(2, 4), None);
        assert_eq!(trainer().output("run").root(2, 4), None);
        assert_eq!(trainer().saved_elsewhere(Path::new("run")).root(2, 4), Some(0));
    }
}
