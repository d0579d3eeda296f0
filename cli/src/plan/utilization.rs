//! What a run's model FLOPs utilization is computed from.

use burn::tensor::FloatDType;

use super::flops::Work;
use super::longest::Longest;
use crate::run::{Parts, first_effect, shapes};
use crate::{DataRun, PlanError, Run, RunError};
use firebrick::{Utilization, device};

/// How many micro-batches tell how long the rows are. They are collated once more before the first step.
const LOOKED_AT: usize = 16;

impl Run {
    /// Returns the operations of the model per token, as `plan` counts them, and the peak of the run's device in the dtype
    /// that its passes compute in; `None` if the peak is not known.
    ///
    /// # Errors
    ///
    /// The data cannot be read.
    pub(crate) fn utilization(&self, parts: &Parts) -> Result<Option<Utilization>, RunError> {
        let casts = first_effect(&self.strategies, |effects| effects.casts);
        let dtype = casts.map_or(FloatDType::F32, |casts| casts.replica);
        let Some(peak_flops) = self.peak_flops.or_else(|| device::peak_flops(&parts.device, dtype)) else {
            return Ok(None);
        };
        let per_step = DataRun::from(self).micro_batches().saturating_mul(self.data_ranks());
        let longest = match Longest::of(&parts.data, per_step, LOOKED_AT) {
            // A run may begin with steps that it skips.
            Err(RunError::Plan(PlanError::NothingToLearn { .. })) => return Ok(None),
            longest => longest?,
        };
        let shapes = shapes(&parts.config, &self.strategies, &parts.fresh)?;
        let work = Work::of(&parts.config, &longest, 1.0);
        let flops_per_token = work.flops(&shapes, 0.0) / longest.mean_tokens.max(1.0);
        Ok(Some(Utilization { flops_per_token, peak_flops }))
    }
}
