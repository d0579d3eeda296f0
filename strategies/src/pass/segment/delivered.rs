//! A segment whose gradients are taken as soon as the backward pass leaves it.
//!
//! Burn's backward pass runs by depth, and a parameter's leaf has no depth: a hook on the leaf would run at the very
//! end. So the block reads its parameters through a token that comes after the segment's input:
//!
//! ```text
//! input -- join(token) -- graft(parameter 1)
//!                      \- graft(parameter 2)
//! ```
//!
//! In the backward pass, each graft stores the gradient of its parameter. The join runs after all grafts and before the
//! operation that computed the input, and delivers the gradients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::backend::DispatchTensor;
use burn::module::{Module, ParamId};
use burn::tensor::Tensor;

use super::graft::{graft, join};
use super::maps::Inner;
use super::timed::BackwardTime;
use super::unit::Unit;
use super::{Bundle, TensorMap, lock};
use crate::{ParamMap, Part, Pass, map_params};

/// Runs `run` on `block` and `input`, and delivers the gradients of the parameters that belong to the unit. The backward
/// `time` of the block, if it is recorded, ends before.
pub(super) fn delivered<B, X, Y, F>(
    block: &B,
    input: X,
    run: F,
    pass: Pass,
    unit: Unit,
    time: Option<Arc<BackwardTime>>,
) -> Y
where
    B: Module + 'static,
    X: Bundle,
    F: Fn(&B, X, &Pass) -> Y,
{
    let own = unit.trained(block);
    if own.is_empty() {
        return run(block, input, &pass);
    }
    let aside = Arc::new(Mutex::new(HashMap::new()));
    let grads = aside.clone();
    let parts = own.iter().map(Part::empty).collect::<Vec<_>>();
    // Runs once, although the join of each input calls it.
    let delivery = Mutex::new(Some((map_params(block.clone(), &mut Inner), parts)));
    let deliver = Arc::new(move || {
        let delivery = lock(&delivery).take();
        if let Some((block, parts)) = delivery {
            time.iter().for_each(|time| time.leave());
            unit.deliver(&block, parts, std::mem::take(&mut *lock(&grads)));
        }
    });
    let token = Tensor::zeros([1], pass.device()).require_grad();
    let mut after = After { token, deliver };
    // A leaf, in case no input of the segment carries a gradient.
    let leaf = Tensor::<1>::zeros([1], pass.device()).require_grad();
    after.float(leaf);
    let input = input.map_tensors(&mut after);
    let mut read = ReadThroughToken { token: after.token, own: &own, aside, pass: &pass };
    run(&map_params(block.clone(), &mut read), input, &pass)
}

/// Makes the token depend on each tensor that carries a gradient.
struct After {
    token: Tensor<1>,
    deliver: Arc<dyn Fn() + Send + Sync>,
}

impl TensorMap for After {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if tensor.is_tracked() {
            let deliver = self.deliver.clone();
            self.token = join(self.token.clone(), tensor.clone(), move |_| {
                deliver();
                None
            });
        }
        tensor
    }
}

type Aside = Arc<Mutex<HashMap<ParamId, DispatchTensor>>>;

/// Reads parameters through the token.
struct ReadThroughToken<'a> {
    token: Tensor<1>,
    own: &'a [Part],
    aside: Aside,
    pass: &'a Pass,
}

impl ParamMap for ReadThroughToken<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        if !self.own.iter().any(|part| part.id == id) {
            return value;
        }
        let (aside, zero) = (self.aside.clone(), self.token.clone().inner());
        graft(self.token.clone(), self.pass.lift(value.inner()), move |grad: Tensor<D>| {
            lock(&aside).insert(id, grad.into_dispatch());
            zero.clone()
        })
    }
}
