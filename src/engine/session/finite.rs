//! Checks that the weights of a run are finite.

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;
use firebrick_strategies::learns;

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
        self.master().visit(&mut find);
        let broken = any(self.world(), "whether all weights are finite", find.0.is_some())?;
        if !broken {
            return Ok(());
        }
        let place = find.0.and_then(|id| self.layout().place(id));
        Err(TrainError::Weights { parameter: place.map(|place| place.path.clone()) })
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
