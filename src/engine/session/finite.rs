//! Checks that the weights of a run are finite.

use std::collections::HashSet;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use firebrick_kernels::sum_of_squares;
use firebrick_strategies::{Parked, learns};
use firebrick_world::numbers;

use super::Session;
use super::parked::{Parking, buckets};
use crate::TrainError;
use crate::engine::agreement::any;

impl<M: Module> Session<M> {
    /// Rejects trained weights that are infinite or not a number. They arise from a finite gradient times a learning
    /// rate that is much too large. Every rank calls it, and the result is shared by all ranks.
    ///
    /// # Errors
    ///
    /// [`TrainError::Weights`], or a lost rank.
    pub fn require_finite(&self) -> Result<(), TrainError> {
        let mut find = Find(None);
        let waits = |id| self.parking.as_ref().is_some_and(|parking| parking.params.has(id));
        let is_finite = all_finite(self.master(), waits)? && self.all_parked_finite()?;
        if !is_finite {
            self.master().visit(&mut find);
            self.check_disk()?;
        }
        let broken = any(self.world(), "whether all weights are finite", find.0.is_some())?;
        if !broken {
            return Ok(());
        }
        let place = find.0.and_then(|id| self.layout().place(id));
        Err(TrainError::Weights { parameter: place.map(|place| place.path.clone()) })
    }

    /// Returns true if all trained parameters that wait on the disk are finite, reading a few at a time.
    fn all_parked_finite(&self) -> Result<bool, TrainError> {
        let Some(Parking { params, .. }) = &self.parking else { return Ok(true) };
        let is_trained = |id: &ParamId| params.param(*id).is_some_and(|param| param.is_trained);
        for mut ids in buckets(params, self.master(), self.moves.unwrap_or(usize::MAX)) {
            ids.retain(is_trained);
            if ids.is_empty() {
                continue;
            }
            let values = params.read_masters(&ids)?.into_iter().map(|(_, value)| value.into_dispatch());
            if !numbers(vec![sum_of_squares(values.collect())])?[0].is_finite() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns true if all trained weights but those that wait on a disk are finite, with one wait for the device. It may return
/// false where they are: if their squares overflow, or if they are on several devices.
fn all_finite<M: Module>(master: &M, waits: impl Fn(ParamId) -> bool) -> Result<bool, TrainError> {
    struct Trained<F>(Vec<DispatchTensor>, HashSet<ParamId>, F);
    impl<F: Fn(ParamId) -> bool> ModuleVisitor for Trained<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !(self.2)(param.id) && learns(param) && self.1.insert(param.id) {
                self.0.push(param.base().inner().into_dispatch());
            }
        }
    }
    if master.devices().len() > 1 {
        return Ok(false);
    }
    let mut trained = Trained(Vec::new(), HashSet::new(), waits);
    master.visit(&mut trained);
    match trained.0.is_empty() {
        true => Ok(true),
        false => Ok(numbers(vec![sum_of_squares(trained.0)])?[0].is_finite()),
    }
}

/// Finds the first trainable parameter that is not finite.
struct Find(Option<ParamId>);

impl ModuleVisitor for Find {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.0.is_none() && learns(param) && !param.base().inner().is_finite().all().into_scalar::<bool>()
        {
            self.0 = Some(param.id);
        }
    }
}
