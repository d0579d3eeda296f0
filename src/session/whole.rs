//! The model that a session gives back: whole, and as it was given.

use burn::module::Module;
use firebrick_strategies::{LowRank, Stage};

use super::Session;
use crate::{Adapters, TrainError};

impl<M: Module, S: Stage<M>> Session<M, S> {
    /// The master as one whole model, outside autodiff, with what strategies have attached to it: on `root` alone,
    /// or on every rank. Every rank calls it.
    pub fn adapted(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let master = self.weights.pair().0.clone();
        Ok(self.stage.whole(master, root)?.map(|master| master.valid()))
    }

    /// The same as the model was given: factors are merged into their matrices.
    pub fn whole(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        Ok(self.adapted(root)?.map(|master| self.given_back(master)))
    }

    /// A whole model as it was given.
    pub fn given_back(&self, adapted: M) -> M {
        self.adaptation.give_back(adapted)
    }

    /// The factors of a whole model, with what is trained whole beside them, where there are some.
    pub fn adapters(&self, adapted: &M) -> Option<Adapters> {
        Adapters::of(adapted, &self.adaptation)
    }

    /// The factors of low rank that are trained, if any are.
    pub fn low_rank(&self) -> Option<LowRank> {
        self.adaptation.low_rank()
    }

    /// Whether a strategy averages the master.
    pub fn is_averaged(&self) -> bool {
        self.stage.averaged().is_some()
    }

    /// The weights to keep instead of the master, where a strategy averages it, as [`whole`](Self::whole).
    pub fn whole_average(&mut self, root: Option<usize>) -> Result<Option<M>, TrainError> {
        let Some(averaged) = self.stage.averaged() else { return Ok(None) };
        let whole = self.stage.whole(averaged, root)?;
        Ok(whole.map(|averaged| self.given_back(averaged.valid())))
    }
}
