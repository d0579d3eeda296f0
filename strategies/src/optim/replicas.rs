//! Half-precision copies of parameters, written in the pass that updates them.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;

use burn::tensor::{FloatDType, Tensor};

use super::fused::address;

thread_local! {
    /// Those of the innermost scope on this thread.
    static OPEN: RefCell<Option<Replicas>> = const { RefCell::new(None) };
}

/// Runs `update`, in which each fused step of an f32 parameter on this thread writes its copy in
/// `dtype` too, in the same pass: equal to casting the new parameter, without reading it again.
///
/// `dtype` is bf16 or f16; in any other nothing is written. While the copies are held, so are the
/// parameters that they were made of: drop them before the next update, or it copies the parameters.
///
/// ```
/// use burn::{nn::LinearConfig, optim::GradientsParams, tensor::{Device, FloatDType, Tensor}};
/// use firebrick_strategies::optim::{AdamW, replicas};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut optimizer = AdamW::new().init();
/// let grads = model.forward(Tensor::<2>::ones([1, 2], &device)).sum().backward();
/// let grads = GradientsParams::from_grads(grads, &model);
/// let (model, replicas) = replicas(FloatDType::BF16, || optimizer.step(1e-3, model, grads));
/// let half = replicas.of(&model.weight.val()).expect("the weight was updated");
/// assert_eq!(half.into_data(), model.weight.val().cast(FloatDType::BF16).into_data());
/// ```
pub fn replicas<R>(dtype: FloatDType, update: impl FnOnce() -> R) -> (R, Replicas) {
    /// Gives the outer scope back its place, even where the update panics.
    struct Outer(Option<Replicas>);
    impl Drop for Outer {
        fn drop(&mut self) {
            OPEN.replace(self.0.take());
        }
    }
    let outer = Outer(OPEN.replace(Some(Replicas { dtype, kept: HashMap::new() })));
    let result = update();
    let replicas = OPEN.take().unwrap_or(Replicas { dtype, kept: HashMap::new() });
    drop(outer);
    (result, replicas)
}

/// Half-precision copies of updated parameters; see [`replicas`].
pub struct Replicas {
    dtype: FloatDType,
    /// The parameter and its copy, by where the parameter is in memory. Holding the parameter keeps
    /// its memory from being changed or used again.
    kept: HashMap<usize, Box<dyn Any + Send>>,
}

impl Replicas {
    /// The copy of this updated parameter, outside autodiff, if its update made one.
    pub fn of<const D: usize>(&self, param: &Tensor<D>) -> Option<Tensor<D>> {
        let inner = param.clone().inner();
        let kept = self.kept.get(&address(&inner)?)?;
        let (param, replica) =
            kept.downcast_ref::<[Tensor<D>; 2]>().map(|[param, replica]| (param, replica))?;
        (param.dims() == inner.dims() && param.dtype() == inner.dtype()).then(|| replica.clone())
    }

    /// The number of copies.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none: nothing was updated in a fused step.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("dtype", &self.dtype).field("len", &self.len()).finish()
    }
}

/// The dtype of the copies that the innermost scope on this thread wants.
#[cfg(feature = "flex")]
pub(super) fn wanted() -> Option<FloatDType> {
    let dtype = OPEN.with_borrow(|open| open.as_ref().map(|replicas| replicas.dtype));
    dtype.filter(|dtype| matches!(dtype, FloatDType::BF16 | FloatDType::F16))
}

/// Hands the copy of an updated parameter to the innermost scope on this thread.
#[cfg(feature = "flex")]
pub(super) fn keep<const D: usize>(param: &Tensor<D>, replica: Tensor<D>) {
    let Some(address) = address(param) else { return };
    OPEN.with_borrow_mut(|open| {
        if let Some(replicas) = open {
            replicas.kept.insert(address, Box::new([param.clone(), replica]));
        }
    });
}
