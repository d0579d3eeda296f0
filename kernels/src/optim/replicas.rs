//! Half-precision copies of parameters, written in the pass that updates them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::thread::LocalKey;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{FloatDType, Tensor};

use super::identity::{Identity, identity};

thread_local! {
    /// The replicas that the innermost update on this thread writes.
    static OPEN: RefCell<Option<Replicas>> = const { RefCell::new(None) };
    /// The replicas that casts on this thread may take.
    static LENT: RefCell<Option<Replicas>> = const { RefCell::new(None) };
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of copies that casts on this thread have [taken](Replicas::lend) so far.
pub fn taken() -> u64 {
    TAKEN.get()
}

/// Runs `update` and collects half-precision copies: each fused step of an f32 parameter on this thread also writes a
/// copy in `dtype`, in the same pass. The copy equals a cast of the new parameter, without reading it again.
///
/// `dtype` is bf16 or f16; with any other dtype nothing is written. The copies also hold the parameters that they come
/// from: drop them before the next update, or it copies the parameters.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
/// use firebrick_kernels::optim::{Parts, Real, Rule, Update, replicas, step, take};
///
/// # #[derive(Clone, Copy)]
/// # struct Descent;
/// # impl Rule<0, 1> for Descent {
/// #     fn constants(&self) -> [f32; 1] {
/// #         [1e-3]
/// #     }
/// #     fn element<R: Real>([rate]: [R; 1], param: R, grad: R, []: [R; 0]) -> (R, [R; 0]) {
/// #         (param - rate * grad, [])
/// #     }
/// #     fn run(&self, update: Update<'_, 0>, fresh: bool) {
/// #         update.run(*self, fresh);
/// #     }
/// # }
/// let [param, grad] = [0.1, 2.0].map(|x| Tensor::<1>::full([4], x, &Device::flex()));
/// let parts = Parts { param, grad, moments: Some([]) };
/// let (updated, replicas) = replicas(FloatDType::BF16, || step(&Descent, parts));
/// let Ok((param, [])) = updated else { panic!("Flex updates f32 in one pass") };
/// let expected = param.clone().cast(FloatDType::BF16).into_data();
/// assert_eq!(replicas.of(&param).expect("the parameter was updated").into_data(), expected);
///
/// // Like the cast of the strategy `Amp`, this one takes the copy if there is one.
/// let (half, taken) = replicas.lend(|| take(&param, FloatDType::BF16));
/// assert_eq!((half.expect("it is lent").into_data(), taken), (expected, 1));
/// ```
pub fn replicas<R>(dtype: FloatDType, update: impl FnOnce() -> R) -> (R, Replicas) {
    let none = || Replicas { dtype, kept: HashMap::new() };
    let (result, written) = within(&OPEN, none(), update);
    (result, written.unwrap_or_else(none))
}

/// Runs `run` with these replicas in a thread-local slot, and returns the replicas.
fn within<R>(
    place: &'static LocalKey<RefCell<Option<Replicas>>>,
    replicas: Replicas,
    run: impl FnOnce() -> R,
) -> (R, Option<Replicas>) {
    /// Restores the slot of the outer scope, even if `run` panics.
    struct Outer(&'static LocalKey<RefCell<Option<Replicas>>>, Option<Replicas>);
    impl Drop for Outer {
        fn drop(&mut self) {
            self.0.replace(self.1.take());
        }
    }
    let outer = Outer(place, place.replace(Some(replicas)));
    let result = run();
    let replicas = place.take();
    drop(outer);
    (result, replicas)
}

/// Half-precision copies of updated parameters; see [`replicas`].
pub struct Replicas {
    dtype: FloatDType,
    /// The parameter and its copy, by the parameter's identity. Holding the parameter keeps its memory from being
    /// changed or reused.
    kept: HashMap<Identity, [DispatchTensor; 2]>,
}

impl Replicas {
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
        let lent = self.len();
        let (result, left) = within(&LENT, self, publish);
        let taken = lent - left.map_or(0, |left| left.len());
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

/// Returns the dtype of the copies that the innermost scope on this thread requests.
pub(super) fn wanted() -> Option<FloatDType> {
    let dtype = OPEN.with_borrow(|open| open.as_ref().map(|replicas| replicas.dtype));
    dtype.filter(|dtype| matches!(dtype, FloatDType::BF16 | FloatDType::F16))
}

/// Passes the copy of an updated parameter to the innermost scope on this thread.
pub(super) fn keep<const D: usize>(param: &Tensor<D>, replica: Tensor<D>) {
    let Some(identity) = identity(param) else { return };
    OPEN.with_borrow_mut(|open| {
        if let Some(replicas) = open {
            replicas.kept.insert(identity, [param.clone().into_dispatch(), replica.into_dispatch()]);
        }
    });
}
