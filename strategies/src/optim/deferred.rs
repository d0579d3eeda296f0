//! An optimizer whose updates may be launched together and left to the device's decision, and whose state is read at once.

use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor, TensorData};
use firebrick_kernels::optim::deferred;
use firebrick_world::{all_on_host, host_device};

thread_local! {
    /// What the steps of deferred optimizers on this thread do instead of an update.
    static INSTEAD: RefCell<Option<Instead>> = const { RefCell::new(None) };
}

/// A visit of the states that Burn's [`ModuleOptimizer`] keeps: only its steps lend them.
enum Instead {
    /// Undo what the host has recorded of the last update.
    Retract,
    /// Collect the tensors.
    Collect(Vec<DispatchTensor>),
    /// Replace the tensors by those on the host, in the same order.
    Replace(VecDeque<TensorData>),
}

/// An optimizer that [`Deferred`] may wrap.
pub(super) trait Deferrable: Optimizer {
    /// Returns the state before the last update, given the state after it, if the device made no update: tensors have kept
    /// their values.
    fn retracted<const D: usize>(state: Self::State<D>) -> Self::State<D>;

    /// Returns the tensors of a state, in an order of its own.
    fn tensors<const D: usize>(state: &mut Self::State<D>) -> Vec<&mut Tensor<D>>;
}

/// Undoes what the host has recorded of the last update of these parameters, which the device did not make: see
/// [`together_if_finite`](firebrick_kernels::optim::together_if_finite). All of them must be updated by optimizers whose
/// updates are [left to the end](firebrick_kernels::optim::deferrals).
pub fn retract<M: Module>(optimizer: &mut ModuleOptimizer, model: &M, params: &HashSet<ParamId>) {
    visit(Instead::Retract, optimizer, model, params);
}

/// Returns a copy of the optimizer with the states of these parameters in host memory, for which it waits once for
/// [many tensors](all_on_host). The parameters are as in [`retract`].
pub fn on_host<M: Module>(
    optimizer: &ModuleOptimizer,
    model: &M,
    params: &HashSet<ParamId>,
) -> ModuleOptimizer {
    let mut copy = optimizer.clone();
    if let Some(Instead::Collect(tensors)) = visit(Instead::Collect(Vec::new()), &mut copy, model, params) {
        visit(Instead::Replace(all_on_host(tensors).into()), &mut copy, model, params);
    }
    copy
}

/// Steps with gradients that nothing reads, and returns what the steps have left.
fn visit<M: Module>(
    instead: Instead,
    optimizer: &mut ModuleOptimizer,
    model: &M,
    params: &HashSet<ParamId>,
) -> Option<Instead> {
    /// Forgets the visit, even if it panics.
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            INSTEAD.take();
        }
    }
    struct Unread<'a>(&'a HashSet<ParamId>, GradientsParams);
    impl ModuleVisitor for Unread<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.contains(&param.id) && self.1.get::<D>(param.id).is_none() {
                self.1.register(param.id, param.val().inner());
            }
        }
    }
    let mut unread = Unread(params, GradientsParams::new());
    model.visit(&mut unread);
    INSTEAD.set(Some(instead));
    let _ends = Ends;
    // A tied parameter is met twice, the second time without a gradient.
    optimizer.step(0.0, model.clone(), unread.1);
    INSTEAD.take()
}

/// An optimizer that nothing wraps which reads its results: its updates may be launched with those of other parameters.
/// Burn's [`ModuleOptimizer`] puts the results into the model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deferred<O>(pub O);

impl<O: Deferrable> Optimizer for Deferred<O> {
    type State<const D: usize> = O::State<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        param: Tensor<D>,
        grad: Tensor<D>,
        state: Option<O::State<D>>,
    ) -> (Tensor<D>, Option<O::State<D>>) {
        if INSTEAD.with_borrow(Option::is_none) {
            return deferred(|| self.0.step(rate, param, grad, state));
        }
        let visited = |state| {
            INSTEAD.with_borrow_mut(|instead| match instead {
                Some(instead) => instead.done_to::<O, D>(state),
                None => state,
            })
        };
        (param, state.map(visited))
    }

    fn to_device<const D: usize>(state: O::State<D>, device: &Device) -> O::State<D> {
        O::to_device(state, device)
    }
}

impl Instead {
    fn done_to<O: Deferrable, const D: usize>(&mut self, mut state: O::State<D>) -> O::State<D> {
        match self {
            Self::Retract => return O::retracted(state),
            Self::Collect(all) => {
                all.extend(O::tensors(&mut state).into_iter().map(|tensor| tensor.clone().into_dispatch()));
            }
            Self::Replace(all) => {
                for tensor in O::tensors(&mut state) {
                    let data = all.pop_front().expect("as many tensors as were collected");
                    let dtype = data.dtype();
                    *tensor = Tensor::from_data(data, (&host_device(), dtype));
                }
            }
        }
        state
    }
}
