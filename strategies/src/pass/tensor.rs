//! What layers exchange that the ranks of a tensor axis compute together: see [`TensorPlan`](crate::TensorPlan).

use burn::tensor::Tensor;
use firebrick_world::Communicator;

use super::Pass;
use super::segment::graft;

impl Pass {
    /// Returns `x`, which column-parallel layers read, whole on each rank. Backward, the gradients of the ranks' shares are summed
    /// (the operation *f* of Shoeybi et al., 2019, arXiv:1909.08053, section 3). All ranks that share a layer call it together.
    ///
    /// If another rank is gone, its gradient is 0, and [`check`](Self::check) returns the error.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::Pass;
    ///
    /// // On one rank, it does nothing.
    /// let x = Tensor::<2>::ones([2, 3], &Device::flex());
    /// assert_eq!(Pass::train(&Device::flex()).before_columns(x.clone()).into_data(), x.into_data());
    /// ```
    pub fn before_columns<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let (Some(ranks), Some(strategy)) =
            (self.plan.tensor(), x.device().gradient_checkpointing_strategy())
        else {
            return x;
        };
        let value = Tensor::from_inner(x.clone().inner()).with_gradient_checkpointing_strategy(strategy);
        let (pass, ranks) = (self.clone(), ranks.clone());
        graft(x, value, move |grad| pass.sum_of_ranks(grad, &ranks))
    }

    /// Sums what a row-parallel layer returns of the ranks' shares of its input, without its bias. Backward, each rank has the
    /// gradient of the sum (the operation *g* of Shoeybi et al., 2019). All ranks that share a layer call it together.
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    pub fn after_rows<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(ranks) = self.plan.tensor() else { return x };
        let sum = self.sum_of_ranks(x.clone().inner(), ranks);
        let Some(strategy) = x.device().gradient_checkpointing_strategy() else { return sum };
        graft(x, Tensor::from_inner(sum).with_gradient_checkpointing_strategy(strategy), |grad| grad)
    }

    /// Returns this rank's share of the heads or features of a layer: all of them, unless ranks share the layer.
    ///
    /// # Panics
    ///
    /// If the ranks do not divide `all`.
    pub fn share_of(&self, all: usize) -> usize {
        let ranks = self.plan.tensor().map_or(1, Communicator::size);
        assert!(
            all.is_multiple_of(ranks),
            "Pass: {ranks} ranks do not divide {all} heads or features of a layer"
        );
        all / ranks
    }

    /// Returns the same pass for tensors with so many heads or features, which are this rank's [share](Self::share_of) of a
    /// layer's. Random numbers are those of the whole layer.
    pub fn of_share(&self, own: usize) -> Self {
        let rank = self.plan.tensor().map_or(0, Communicator::rank);
        Self { first_of_share: rank * own, ..self.clone() }
    }

    /// Returns whether ranks compute layers together.
    pub fn shares_layers(&self) -> bool {
        self.plan.tensor().is_some()
    }

    /// Returns whether this rank adds what it computes of a batch to the results of all ranks: the first of those that share
    /// layers, which all compute the same. Of the ranks of a pipeline, the last one alone has a loss in training; in an
    /// evaluation, all compute the same.
    pub fn adds_results(&self) -> bool {
        let is_first = |ranks: &Communicator| ranks.rank() == 0;
        let pipeline = self.plan.pipeline().filter(|_| !self.training);
        self.plan.tensor().is_none_or(is_first) && pipeline.is_none_or(|stages| is_first(stages.ranks()))
    }

    fn sum_of_ranks<const D: usize>(&self, x: Tensor<D>, ranks: &Communicator) -> Tensor<D> {
        ranks.all_reduce(x.clone()).unwrap_or_else(|error| {
            self.plan.report(error.into());
            x.zeros_like()
        })
    }
}
