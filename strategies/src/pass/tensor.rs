//! What layers exchange that the ranks of a tensor axis compute together: see [`TensorPlan`](crate::TensorPlan).

use burn::module::ParamId;
use burn::tensor::Tensor;
use firebrick_world::Communicator;

use super::Pass;
use super::segment::graft;
use crate::{ModelParts, StrategyError};

impl Pass {
    /// Returns what column-parallel layers read of `x`, whole on each rank. Backward, the gradients of the ranks' shares are summed
    /// (the operation *f* of Shoeybi et al., 2019, arXiv:1909.08053, section 3). All ranks that share a layer call it together.
    ///
    /// Where `x` has this rank's [positions](Self::divide_sequence), the ranks gather those of all, `[rows, columns, width]`, and
    /// the sums are scattered (the operation *g* of Korthikanti et al., 2022, arXiv:2205.05198, section 4.2). Layers that read them by
    /// [`adapted_linear`](crate::adapted_linear) keep the rank's own for the backward pass, and gather those of all again.
    ///
    /// If another rank is gone, its gradient is 0, and [`check`](Self::check) returns the error; and one if the positions are divided and
    /// this is no [segment](Self::segment).
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::Pass;
    ///
    /// // On one rank, it does nothing.
    /// let x = Tensor::<3>::ones([1, 2, 3], &Device::flex());
    /// assert_eq!(Pass::train(&Device::flex()).before_columns(x.clone()).into_data(), x.into_data());
    /// ```
    pub fn before_columns(&self, x: Tensor<3>) -> Tensor<3> {
        if self.sums_in_segments() && self.training && self.segment == 0 {
            self.plan.report(StrategyError::DividedLayerOutsideSegment);
        }
        let Some(sequence) = self.sequence.clone() else { return self.sum_gradients(x) };
        let (own, gathered) = (x.clone().inner(), sequence.clone());
        let all = self.grafted(x, sequence.gather(own.clone()), move |grad| sequence.reduce_scatter(grad));
        self.has_gathered(&all, own, gathered);
        all
    }

    /// Returns `x`, which each rank has whole. Backward, the gradients of the ranks that share layers are summed: of what
    /// column-parallel layers read beside [`before_columns`](Self::before_columns), such as the states of an encoder.
    pub fn sum_gradients<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let Some(ranks) = self.plan.tensor().cloned() else { return x };
        let (value, pass) = (x.clone().inner(), self.clone());
        self.grafted(x, value, move |grad| pass.sum_of_ranks(grad, &ranks))
    }

    /// Returns a parameter that all heads of a layer have in common, such as the scale of their norms, of which each rank has its own
    /// heads: backward, the gradients of the ranks are summed.
    pub fn shared_by_heads<const D: usize>(&self, parameter: Tensor<D>) -> Tensor<D> {
        // Where ranks divide positions, those of all whole parameters of a block are summed together.
        if self.sequence.is_some() { parameter } else { self.sum_gradients(parameter) }
    }

    /// Sums what a row-parallel layer returns of the ranks' shares of its input, without its bias. Backward, each rank has the
    /// gradient of the sum (the operation *g* of Shoeybi et al., 2019). All ranks that share a layer call it together.
    ///
    /// Where the ranks [divide the positions](Self::divide_sequence), each gets the sums of its own, `[1, positions, width]`, and
    /// gathers the gradients of all (Korthikanti et al., 2022, section 4.2).
    ///
    /// If another rank is gone, it returns zeros, and [`check`](Self::check) the error.
    pub fn after_rows(&self, x: Tensor<3>) -> Tensor<3> {
        let Some(ranks) = self.plan.tensor() else { return x };
        let value = x.clone().inner();
        match &self.sequence {
            None => {
                let sum = self.sum_of_ranks(value, ranks);
                self.grafted(x, sum, |grad| grad)
            }
            Some(sequence) => {
                let (sums, sequence) = (sequence.reduce_scatter(value), sequence.clone());
                self.grafted(x, sums, move |grad| sequence.gather(grad))
            }
        }
    }

    /// Returns `value`, which was computed of `x` outside autodiff, with this backward pass.
    pub(super) fn grafted<const D: usize>(
        &self,
        x: Tensor<D>,
        value: Tensor<D>,
        backward: impl Fn(Tensor<D>) -> Tensor<D> + Send + Sync + 'static,
    ) -> Tensor<D> {
        let Some(strategy) = x.device().gradient_checkpointing_strategy() else { return value };
        graft(x, Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy), backward)
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
    /// layer's, at all positions. Random numbers are those of the whole layer.
    pub fn of_share(&self, own: usize) -> Self {
        let rank = self.plan.tensor().map_or(0, Communicator::rank);
        Self { first_of_share: rank * own, sequence: None, ..self.clone() }
    }

    /// Returns the same pass for the input of a layer with this weight, whose last axis has so many features: if ranks divide the
    /// weight, it is at all positions, and a share of the features if they divide its rows.
    pub(crate) fn of_input(&self, weight: ParamId, features: usize) -> Self {
        match self.plan.parts().and_then(|parts| parts.divided_axis(weight)) {
            Some(0) => self.of_share(features),
            Some(_) => self.of_share(0),
            None => self.clone(),
        }
    }

    /// Returns whether each rank has a part of the gradients of parameters that all have whole, which a segment sums: of those that it
    /// reads at its own positions, or of factors.
    pub(super) fn sums_in_segments(&self) -> bool {
        self.divides_sequence() || self.plan.parts().is_some_and(ModelParts::has_parts_of_gradients)
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
