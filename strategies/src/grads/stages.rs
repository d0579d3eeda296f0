//! Sums of gradients that several stages of a pipeline have parts of.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::cast;
use firebrick_world::{Communicator, PartShape};

use super::Grads;
use super::visits::{Distinct, PutShaped, Visit};
use crate::{StrategyError, each_distinct_param};

/// Takes the gradients to sum, each flat and in the dtype of its parameter.
struct TakeFlat {
    /// The place of each of them.
    places: HashMap<ParamId, usize>,
    like: Vec<PartShape>,
    own: Vec<Option<Tensor<1>>>,
}

impl Visit for TakeFlat {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        let Some(&place) = self.places.get(&id) else { return grad };
        let dtype = FloatDType::from(self.like[place].dtype);
        self.own[place] = grad.map(|grad| cast(grad, dtype).reshape([-1]));
        None
    }
}

impl Grads {
    /// Sums the gradients of some trained parameters of `model` over ranks, of which each has some of them, or none. One that no
    /// rank has stays away. All ranks call it together.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub(crate) fn sum_over<M: Module>(
        &mut self,
        model: &M,
        ranks: &Communicator,
        of: impl Fn(ParamId) -> bool,
    ) -> Result<(), StrategyError> {
        self.pay();
        self.norm = None;
        let (mut ids, mut shapes, mut like) = (Vec::new(), HashMap::new(), Vec::new());
        each_distinct_param(model, |param| {
            if param.learns() && of(param.id()) {
                ids.push(param.id());
                like.push(PartShape::flat(param.shape().iter().product(), param.dtype()));
                shapes.insert(param.id(), param.shape());
            }
        });
        let Some(device) = model.devices().first().map(|device| device.clone().inner()) else {
            return Ok(());
        };
        let places = ids.iter().copied().zip(0..).collect();
        let mut taken = TakeFlat { places, own: vec![None; like.len()], like };
        model.visit(&mut Distinct::new(&mut self.params, &mut taken));
        let what = "the gradients outside blocks";
        let sums = ranks.begin_all_reduce(what, taken.own, &taken.like, &device)?.wait()?;
        let flat = ids.into_iter().zip(sums).filter_map(|(id, sum)| Some((id, sum?))).collect();
        model.visit(&mut Distinct::new(&mut self.params, &mut PutShaped { flat, shapes }));
        Ok(())
    }
}
