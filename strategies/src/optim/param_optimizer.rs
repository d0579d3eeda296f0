//! The update of one parameter: by an optimizer of this crate, or by any of Burn's.

use burn::backend::DispatchTensor;
use burn::optim::{DynOptimizer, DynState, LearningRate, Optimizer};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Tensor, TensorData};
use firebrick_kernels::optim::Together;
use firebrick_world::host_device;

/// An optimizer that computes its update in one [pass](firebrick_kernels::optim), which may be launched with those of other
/// parameters.
pub(super) trait ParamOptimizer: Optimizer {
    /// Updates a parameter. Nothing reads the results before `together` is launched, and a device that refuses the update
    /// keeps their values.
    fn update<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
        together: &mut Together,
    ) -> (Tensor<D>, Option<Self::State<D>>);

    /// Updates a parameter at once, as Burn's trait asks for.
    fn alone<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let mut together = Together::new();
        let updated = self.update(rate, param, grad, state, &mut together);
        together.launch();
        updated
    }

    /// Returns the state before the last update, given the state after it, if the device has refused the update: tensors
    /// have kept their values.
    fn retracted<const D: usize>(state: Self::State<D>) -> Self::State<D>;

    /// Returns the tensors of a state, in an order of its own.
    fn tensors<const D: usize>(state: &mut Self::State<D>) -> Vec<&mut Tensor<D>>;
}

/// Reads a tensor of a state. With the values that it returns, the tensor is replaced by one in host memory.
pub(super) type Read<'a> = &'a mut dyn FnMut(DispatchTensor) -> Option<TensorData>;

/// The optimizer of some parameters, of any rank. The defaults are those of an optimizer of Burn.
pub(super) trait AnyOptimizer: Send + Sync + 'static {
    /// Reads and restores states.
    fn states(&self) -> &dyn DynOptimizer;

    /// Updates a parameter of this rank.
    fn update(
        &self,
        rank: usize,
        rate: LearningRate,
        (param, grad): (BridgeTensor, BridgeTensor),
        state: Option<DynState>,
        _together: &mut Together,
    ) -> (BridgeTensor, Option<DynState>) {
        self.states().step_dyn(rank, rate, param, grad, state)
    }

    /// See [`ParamOptimizer::retracted`].
    fn retracted(&self, state: DynState) -> DynState {
        state
    }

    /// Reads the tensors of a state that are [known](ParamOptimizer::tensors), in an order of their own.
    fn read(&self, state: DynState, _read: Read<'_>) -> DynState {
        state
    }
}

/// Any optimizer of Burn, whose updates are made one by one.
pub(super) struct OfBurn<O>(pub O);

impl<O: Optimizer> AnyOptimizer for OfBurn<O> {
    fn states(&self) -> &dyn DynOptimizer {
        &self.0
    }
}

/// An optimizer whose updates are launched together.
pub(super) struct Fused<O>(pub O);

/// Runs `body` with the rank as a constant.
macro_rules! of_rank {
    ($rank:expr, $D:ident => $body:expr) => {
        of_rank!($rank, $D => $body, 0 1 2 3 4 5 6 7 8)
    };
    ($rank:expr, $D:ident => $body:expr, $($known:literal)*) => {
        match $rank {
            $($known => {
                const $D: usize = $known;
                $body
            })*
            other => panic!("a parameter has at most 8 axes, found {other}"),
        }
    };
}

impl<O: ParamOptimizer> AnyOptimizer for Fused<O> {
    fn states(&self) -> &dyn DynOptimizer {
        &self.0
    }

    fn update(
        &self,
        rank: usize,
        rate: LearningRate,
        (param, grad): (BridgeTensor, BridgeTensor),
        state: Option<DynState>,
        together: &mut Together,
    ) -> (BridgeTensor, Option<DynState>) {
        of_rank!(rank, D => {
            let [param, grad] = [param, grad].map(Tensor::<D>::from_bridge);
            let state = state.map(DynState::downcast::<O::State<D>>);
            let (param, state) = self.0.update(rate, param, grad, state, together);
            (param.into_bridge(), state.map(|state| DynState::create(state, D)))
        })
    }

    fn retracted(&self, state: DynState) -> DynState {
        of_rank!(state.rank(), D => DynState::create(O::retracted::<D>(state.downcast()), D))
    }

    fn read(&self, state: DynState, read: Read<'_>) -> DynState {
        of_rank!(state.rank(), D => {
            let mut state: O::State<D> = state.downcast();
            for tensor in O::tensors(&mut state) {
                if let Some(data) = read(tensor.clone().into_dispatch()) {
                    let dtype = data.dtype();
                    *tensor = Tensor::from_data(data, (&host_device(), dtype));
                }
            }
            DynState::create(state, D)
        })
    }
}
