//! Sums the gradients of the parameters of a block that each rank has whole, where the ranks compute some positions each, or some
//! columns or rows of a matrix beside which the parameter is a factor.
//!
//! The block reads them through a token, as in [`delivered`](super::delivered), so that a single call sums all of them:
//!
//! ```text
//! token -- join(parameter 1) -- join(parameter 2) -- graft(parameter 1)
//!                                                 \- graft(parameter 2)
//! ```
//!
//! In the backward pass, each graft stores the gradient of its parameter. The last join runs after all grafts and sums the
//! gradients; each join then takes its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_world::{Communicator, PartShape, WorldError};

use super::graft::{graft, join};
use super::{SegmentPlan, lock};
use crate::{ModelParts, ParamMap, Pass, map_params};

/// Returns the block for a pass in which each rank has a part of the gradients of parameters that all ranks have whole, if the block
/// has such parameters to learn.
pub(super) fn summed<B: Module>(block: &B, pass: &Pass) -> Option<B> {
    let parts = pass.plan.parts()?;
    let all = pass.divides_sequence();
    let mut whole = Whole { parts, all, places: HashMap::new(), like: Vec::new() };
    block.visit(&mut whole);
    let Whole { places, like, .. } = whole;
    if like.is_empty() {
        return None;
    }
    let sums = Arc::new(Sums {
        own: Mutex::new(vec![None; like.len()]),
        sums: Mutex::default(),
        like,
        ranks: parts.tensor()?.clone(),
        device: pass.device().clone().inner(),
        plan: pass.plan.clone(),
    });
    let mut joined =
        JoinToToken { token: Tensor::zeros([1], pass.device()), places: places.clone(), sums: &sums };
    block.visit(&mut joined);
    let mut read = ReadThroughToken { token: joined.token, places, sums: &sums, pass };
    Some(map_params(block.clone(), &mut read))
}

impl Pass {
    /// Returns a layer outside blocks for a pass that [divides positions](Self::divide_sequence), such as a norm or an embedding's
    /// projection: backward, the gradients of its parameters are summed, of which each rank has those of its own positions. In any other
    /// pass, it is the layer itself.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// use firebrick_strategies::Pass;
    ///
    /// let device = Device::flex();
    /// let last = LinearConfig::new(4, 4).init(&device);
    /// let (x, within) = Pass::train(&device).divide_sequence(Tensor::<3>::ones([2, 3, 4], &device));
    /// let x = within.at_own_positions(&last).forward(x);
    /// assert_eq!(within.join_sequence(x).dims(), [2, 3, 4]);
    /// ```
    pub fn at_own_positions<M: Module>(&self, layer: &M) -> M {
        let summed = (self.divides_sequence() && self.training).then(|| summed(layer, self)).flatten();
        summed.unwrap_or_else(|| layer.clone())
    }
}

/// Finds the parameters that all ranks have whole and that learn: all of them, or factors alone.
struct Whole<'a> {
    parts: &'a ModelParts,
    all: bool,
    places: HashMap<ParamId, usize>,
    like: Vec<PartShape>,
}

impl ModuleVisitor for Whole<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_initialized() || !param.base().is_tracked() || self.places.contains_key(&param.id) {
            return;
        }
        let value = param.base();
        let sums = self.all || self.parts.has_part_of_gradient(param.id);
        if sums && self.parts.part(param.id, &value.dims()).is_none() {
            self.places.insert(param.id, self.like.len());
            self.like.push(PartShape::flat(value.shape().num_elements(), value.dtype()));
        }
    }
}

/// The gradients of a block's whole parameters, flat, by their place.
struct Sums {
    own: Mutex<Vec<Option<Tensor<1>>>>,
    /// Those of all ranks, once they are summed.
    sums: Mutex<Option<Vec<Option<Tensor<1>>>>>,
    like: Vec<PartShape>,
    ranks: Communicator,
    device: Device,
    plan: Arc<SegmentPlan>,
}

impl Sums {
    fn take(&self, place: usize) -> Option<Tensor<1>> {
        let mut sums = lock(&self.sums);
        let sums = sums.get_or_insert_with(|| {
            self.sum().unwrap_or_else(|error| {
                self.plan.report(error.into());
                vec![None; self.like.len()]
            })
        });
        sums[place].take()
    }

    fn sum(&self) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        let own = std::mem::take(&mut *lock(&self.own));
        self.ranks.begin_all_reduce("whole parameters of a block", own, &self.like, &self.device)?.wait()
    }
}

/// Makes the token depend on each parameter.
struct JoinToToken<'a> {
    token: Tensor<1>,
    /// Of those that are not joined yet.
    places: HashMap<ParamId, usize>,
    sums: &'a Arc<Sums>,
}

impl ModuleVisitor for JoinToToken<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(place) = self.places.remove(&param.id) else { return };
        let (value, sums) = (param.base(), self.sums.clone());
        let (shape, dtype, device) = (value.shape(), value.dtype(), value.device().inner());
        // An unread leaf has no gradient, as in Burn; any other tensor needs one.
        let is_leaf = value.is_require_grad();
        self.token = join(self.token.clone(), value, move |_| match sums.take(place) {
            Some(sum) => Some(sum.reshape(shape.clone())),
            None if is_leaf => None,
            None => Some(Tensor::zeros(shape.clone(), (&device, dtype))),
        });
    }
}

/// Reads parameters through the token.
struct ReadThroughToken<'a> {
    token: Tensor<1>,
    places: HashMap<ParamId, usize>,
    sums: &'a Arc<Sums>,
    pass: &'a Pass,
}

impl ParamMap for ReadThroughToken<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let Some(&place) = self.places.get(&id) else { return value };
        let (sums, zero) = (self.sums.clone(), self.token.clone().inner());
        graft(self.token.clone(), self.pass.lift(value.inner()), move |grad: Tensor<D>| {
            lock(&sums.own)[place] = Some(grad.reshape([-1]));
            zero.clone()
        })
    }

    fn wakes(&self, _: ParamId) -> bool {
        false
    }
}
