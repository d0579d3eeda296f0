//! Half-precision copies of parameters, written in the pass that updates them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, FloatDType, Tensor};

use super::identity::{Identity, identity};

thread_local! {
    /// The replicas that casts on this thread may take.
    static LENT: RefCell<Option<Replicas>> = const { RefCell::new(None) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of copies that casts on this thread have [taken](Replicas::lend) so far.
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Half-precision copies of updated parameters; see [`Together::writing`](super::Together::writing).
pub struct Replicas {
    dtype: FloatDType,
    /// The parameter and its copy, by the parameter's identity. Holding the parameter keeps its memory from being
    /// changed or reused.
    kept: HashMap<Identity, [DispatchTensor; 2]>,
}

impl Replicas {
    pub(super) fn new(dtype: FloatDType) -> Self {
        Self { dtype, kept: HashMap::new() }
    }

    /// Returns the dtype of the copy that the update of a parameter in `param` writes, if it writes one.
    pub(super) fn of_update(&self, param: DType) -> Option<FloatDType> {
        let writes = param == DType::F32 && matches!(self.dtype, FloatDType::BF16 | FloatDType::F16);
        writes.then_some(self.dtype)
    }

    /// Keeps the copy of an updated parameter.
    pub(super) fn keep<const D: usize>(&mut self, param: &Tensor<D>, replica: Tensor<D>) {
        if let Some(identity) = identity(param) {
            self.kept.insert(identity, [param.clone().into_dispatch(), replica.into_dispatch()]);
        }
    }

    /// Returns the copy of this updated parameter, or of the flat one, outside autodiff, if its update wrote one.
    pub fn of<const D: usize>(&self, param: &Tensor<D>) -> Option<Tensor<D>> {
        let inner = param.clone().inner();
        let [param, replica] = self.kept.get(&identity(&inner)?)?;
        let (known, shape) = (param.shape(), inner.shape());
        let is_flat = D == 1 && known.num_elements() == shape.num_elements();
        if param.dtype() != inner.dtype() || known != shape && !is_flat {
            return None;
        }
        Some(match known == shape {
            true => Tensor::from_dispatch(replica.clone()),
            // The rank in the type says nothing about a tensor that is reshaped at once.
            false => Tensor::<1>::from_dispatch(replica.clone()).reshape(shape),
        })
    }

    /// Returns the parameters of a model that have a copy: those that a fused step updated, which reads gradients of any
    /// dtype.
    pub fn params<M: Module>(&self, model: &M) -> HashSet<ParamId> {
        struct CopiedParams<'a>(&'a Replicas, HashSet<ParamId>);
        impl ModuleVisitor for CopiedParams<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.0.of(&param.val()).is_some() {
                    self.1.insert(param.id);
                }
            }
        }
        let mut found = CopiedParams(self, HashSet::new());
        model.visit(&mut found);
        found.1
    }

    /// Runs `publish`, in which a cast of a parameter may [take](take) its copy instead. Also returns the number of
    /// copies taken; drops the others.
    pub fn lend<R>(self, publish: impl FnOnce() -> R) -> (R, usize) {
        /// Lends what the outer scope lent, even if `publish` panics.
        struct Outer(Option<Replicas>);
        impl Drop for Outer {
            fn drop(&mut self) {
                LENT.replace(self.0.take());
            }
        }
        let lent = self.len();
        let outer = Outer(LENT.replace(Some(self)));
        let result = publish();
        let taken = lent - LENT.take().map_or(0, |left| left.len());
        drop(outer);
        TAKEN.set(TAKEN.get() + taken as u64);
        (result, taken)
    }

    /// Returns the number of copies.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Returns whether there are no copies, because no fused step updated a parameter.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("dtype", &self.dtype).field("len", &self.len()).finish()
    }
}

/// Takes the copy of a parameter in this dtype, outside autodiff, if one is [lent](Replicas::lend) to this thread.
pub fn take<const D: usize>(param: &Tensor<D>, dtype: FloatDType) -> Option<Tensor<D>> {
    LENT.with_borrow_mut(|lent| {
        let replicas = lent.as_mut().filter(|replicas| replicas.dtype == dtype)?;
        let copy = replicas.of(param)?;
        replicas.kept.remove(&identity(&param.clone().inner())?);
        Some(copy)
    })
}
