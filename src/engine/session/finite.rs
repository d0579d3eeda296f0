//! Checks that the weights of a run are finite.

use std::collections::HashSet;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use firebrick_kernels::sum_of_squares;
use firebrick_strategies::learns;
use firebrick_world::numbers;

use super::Session;
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
        if !all_finite(self.master())? {
            self.master().visit(&mut find);
        }
        let broken = any(self.world(), "whether all weights are finite", find.0.is_some())?;
        if !broken {
            return Ok(());
        }
        let place = find.0.and_then(|id| self.layout().place(id));
        Err(TrainError::Weights { parameter: place.map(|place| place.path.clone()) })
    }
}

/// Returns true if all trained weights are finite, with one wait for the device. It may return false where they are: if
/// their squares overflow, or if they are on several devices.
fn all_finite<M: Module>(master: &M) -> Result<bool, TrainError> {
    struct Trained(Vec<DispatchTensor>, HashSet<ParamId>);
    impl ModuleVisitor for Trained {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if learns(param) && self.1.insert(param.id) {
                self.0.push(param.base().inner().into_dispatch());
            }
        }
    }
    if master.devices().len() > 1 {
        return Ok(false);
    }
    let mut trained = Trained(Vec::new(), HashSet::new());
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
