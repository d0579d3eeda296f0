//! Gradients on their way from the backward pass to the optimizer.
//!
//! ```text
//! mod.rs        Grads: the gradients of a step so far, with the facts known about them
//! norm.rs       the norm of all gradients, over all ranks
//! owed.rs       casts that wait until something needs the gradient's dtype
//! visits.rs     visits of the gradient of each distinct parameter
//! stages.rs     sums of gradients that several stages of a pipeline have parts of
//! outcome.rs    Outcome: whether gradients are applied, held or skipped; Settled: whether a step made an update
//! agreement.rs  what the ranks tell each other about a step, once
//! ```

mod agreement;
mod norm;
mod outcome;
mod owed;
mod stages;
mod visits;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick_kernels::memory::Storages;
use firebrick_kernels::{add_all, cast_all, clip_all};

use crate::moving::{Moving, buckets, bytes};
use crate::{ModelParts, Sharding, StrategyError, each_param};
pub use agreement::{Agreed, Agreement};
use norm::Norm;
pub use outcome::{Outcome, Settled, SkipReason};
use owed::HalfGradient;
use visits::{Distinct, Elsewhere, Narrow, Pairs, PutGrads, PutShaped, TakeGrads};

/// The gradients of one micro-batch, or of several of an optimizer step, with the facts known about them.
///
/// They are gradients of the loss of the step divided by the supervised items of its global batch, so the gradients of
/// micro-batches are summed, never averaged.
pub struct Grads {
    params: GradientsParams,
    /// The gradients that [`cast`](Self::cast) has left in half precision.
    owed: Vec<HalfGradient>,
    /// Gradients that segments have reduced or moved already, in the backward pass, flat.
    delivered: HashMap<ParamId, Tensor<1>>,
    closes: bool,
    skip: Option<SkipReason>,
    norm: Option<Norm>,
    /// How the gradients are sharded among the ranks, if they are.
    sharding: Option<Arc<Sharding>>,
    /// The parts of the model that ranks hold, if they divide it.
    parts: Option<Arc<ModelParts>>,
    /// What the ranks tell each other about the step, if they do.
    agreement: Option<Agreement>,
}

/// A map over gradients, for tensors of any rank.
pub trait GradMap {
    /// Returns the new gradient of the parameter.
    fn map<const D: usize>(&mut self, id: ParamId, grad: Tensor<D>) -> Tensor<D>;
}

impl Grads {
    /// Wraps the gradients of a backward pass. `closes` is true for the last micro-batch of the optimizer step.
    pub fn new(params: GradientsParams, closes: bool) -> Self {
        let (owed, delivered) = (Vec::new(), HashMap::new());
        Self {
            params,
            owed,
            delivered,
            closes,
            skip: None,
            norm: None,
            sharding: None,
            parts: None,
            agreement: None,
        }
    }

    /// Creates empty gradients for a micro-batch that a stage skips. They carry the reason to the stage that completes
    /// the step.
    pub fn skipped(reason: SkipReason, closes: bool) -> Self {
        Self { skip: Some(reason), ..Self::new(GradientsParams::new(), closes) }
    }

    /// Sets what the ranks tell each other about the step that these gradients complete. With it, they exchange numbers
    /// once, when something first asks for the [norm](Self::norm) of shards, [reads](Self::read_norm) a norm, or
    /// [agrees](Self::agree). From then on, [`skip`](Self::skip) says whether any rank skips the step.
    pub fn agreeing(self, agreement: Option<Agreement>) -> Self {
        Self { agreement, ..self }
    }

    /// Sets the parts of the model that ranks hold: the [norm](Self::norm) is over those of all of them, and counts once what
    /// several have.
    pub fn dividing(self, parts: Option<Arc<ModelParts>>) -> Self {
        Self { parts, ..self }
    }

    /// Returns what the ranks tell each other about the step, if they do.
    pub fn agreement(&self) -> Option<&Agreement> {
        self.agreement.as_ref()
    }

    /// Adds gradients that segments have reduced or moved already, each flat.
    pub fn with_delivered(self, delivered: HashMap<ParamId, Tensor<1>>) -> Self {
        Self { delivered, ..self }
    }

    /// Takes the gradients that segments have delivered, each flat. Only the strategy that planned the delivery calls
    /// it.
    pub fn take_delivered(&mut self) -> HashMap<ParamId, Tensor<1>> {
        std::mem::take(&mut self.delivered)
    }

    /// Adds the gradients that segments have delivered to the other gradients, on `device`.
    pub fn put_delivered<M: Module>(&mut self, model: &M, device: &Device) {
        struct PutDelivered<'a>(&'a mut GradientsParams, HashMap<ParamId, Tensor<1>>, &'a Device);
        impl ModuleVisitor for PutDelivered<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(flat) = self.1.remove(&param.id) {
                    // Gradients that a later strategy sums are whole, where the parameter may be a shard.
                    let mut shape: [usize; D] = param.lazy_shape().dims();
                    shape[0] = flat.dims()[0] / shape[1..].iter().product::<usize>();
                    let delivered = flat.to_device(self.2).reshape(shape);
                    // A block's parameter that is also read outside its segment has a gradient here too.
                    let sum = match self.0.remove::<D>(param.id) {
                        Some(grad) => grad + delivered,
                        None => delivered,
                    };
                    self.0.register(param.id, sum);
                }
            }
        }
        let delivered = self.take_delivered();
        if !delivered.is_empty() {
            self.pay();
            self.norm = None;
            model.visit(&mut PutDelivered(&mut self.params, delivered, device));
        }
    }

    /// Declares that each gradient is this rank's shard of the sum over all ranks.
    pub fn set_sharding(&mut self, sharding: Arc<Sharding>) {
        self.sharding = Some(sharding);
    }

    /// Returns the tensors by parameter id. Whoever changes them must not have asked for the [norm](Self::norm) yet.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        self.pay();
        &mut self.params
    }

    /// Returns whether this is the last micro-batch of the optimizer step.
    pub fn closes(&self) -> bool {
        self.closes
    }

    /// Returns the reason to make no update in this step, if any.
    pub fn skip(&self) -> Option<&SkipReason> {
        self.skip.as_ref()
    }

    /// Returns the bytes of the gradients' storages.
    pub fn bytes<M: Module>(&self, model: &M) -> usize {
        Storages::of_gradients(model, &self.params) + self.delivered_bytes()
    }

    /// Returns the bytes of the gradients that segments have delivered.
    pub fn delivered_bytes(&self) -> usize {
        self.delivered.values().map(|flat| flat.dims()[0] * flat.dtype().size()).sum()
    }

    /// Returns the tensors by parameter id, without the facts.
    pub fn into_params(mut self) -> GradientsParams {
        self.pay();
        self.params
    }

    /// Returns whether there are no gradients.
    pub fn is_empty(&self) -> bool {
        self.params.is_empty() && self.delivered.is_empty()
    }

    /// Returns the tensors by parameter id, each cast to the dtype of the parameter that it updates, but for those in
    /// `any_dtype`, whose optimizer widens the gradient itself.
    pub fn for_update<M: Module>(mut self, master: &M, any_dtype: &HashSet<ParamId>) -> GradientsParams {
        debug_assert!(self.delivered.is_empty(), "a strategy has left gradients where segments put them");
        let mut dtypes = HashMap::new();
        each_param(master, |param| {
            dtypes.insert(param.id(), FloatDType::from(param.dtype()));
        });
        self.owed.retain(|owed| !any_dtype.contains(&owed.id));
        self.cast(master, 1.0, |id| dtypes.get(&id).copied().filter(|_| !any_dtype.contains(&id)));
        self.into_params()
    }

    /// Divides the gradient of each distinct parameter by `divisor`, in f32, and casts it to the dtype of `dtype_of`; leaves
    /// it as it is where that is `None`.
    ///
    /// A gradient that only becomes wider is cast when something needs it so. The [norm](Self::norm), [clipping](Self::clip) and
    /// optimizers that compute an update in one pass read it as it is, to the same result.
    pub fn cast<M: Module>(
        &mut self,
        model: &M,
        divisor: f64,
        dtype_of: impl Fn(ParamId) -> Option<FloatDType>,
    ) {
        self.pay();
        self.norm = None;
        let mut narrow =
            Narrow { divides: divisor != 1.0, dtype_of, found: Vec::new(), owed: &mut self.owed };
        model.visit(&mut Distinct::new(&mut self.params, &mut narrow));
        let mut cast = HashMap::new();
        for (dtype, grads) in narrow.found {
            let (ids, grads): (Vec<_>, _) = grads.into_iter().unzip();
            cast.extend(ids.into_iter().zip(cast_all(grads, dtype, divisor)));
        }
        if !cast.is_empty() {
            model.visit(&mut Distinct::new(&mut self.params, &mut PutGrads(cast)));
        }
    }

    /// Replaces the gradient of each distinct parameter of `model` that has a gradient.
    pub fn map<M: Module>(&mut self, model: &M, map: &mut impl GradMap) {
        self.pay();
        self.norm = None;
        model.visit(&mut Distinct::new(&mut self.params, map));
    }

    /// Moves the gradients to another device; their [norm](Self::norm) keeps its value.
    pub fn moved<M: Module>(&mut self, model: &M, map: &mut impl GradMap) {
        let norm = self.norm.take();
        self.map(model, map);
        self.norm = norm;
    }

    /// Moves the gradients that are elsewhere to a device, at most `most` bytes in one copy, unless a gradient alone has
    /// more. While it waits for one copy, the next one is on its way. Their [norm](Self::norm) keeps its value.
    ///
    /// # Errors
    ///
    /// A device has failed.
    pub fn move_to<M: Module>(
        &mut self,
        model: &M,
        device: &Device,
        most: usize,
    ) -> Result<(), StrategyError> {
        self.pay();
        let mut elsewhere = Elsewhere { device, found: Vec::new(), shapes: HashMap::new() };
        model.visit(&mut Distinct::new(&mut self.params, &mut elsewhere));
        let Elsewhere { found, shapes, .. } = elsewhere;
        if found.is_empty() {
            return Ok(());
        }
        let (mut flat, mut ahead) = (HashMap::new(), None::<(Vec<ParamId>, Moving)>);
        for bucket in buckets(&found, most, bytes) {
            let (ids, grads): (Vec<_>, Vec<_>) = bucket.iter().cloned().unzip();
            let begun = (ids, Moving::begin(grads, device, most)?);
            if let Some((ids, earlier)) = ahead.replace(begun) {
                flat.extend(std::iter::zip(ids, earlier.wait()?));
            }
        }
        if let Some((ids, last)) = ahead {
            flat.extend(std::iter::zip(ids, last.wait()?));
        }
        model.visit(&mut Distinct::new(&mut self.params, &mut PutShaped { flat, shapes }));
        Ok(())
    }

    /// Returns the parameters of a model that have a gradient.
    pub fn ids<M: Module>(&self, model: &M) -> HashSet<ParamId> {
        struct Present<'a>(&'a GradientsParams, HashSet<ParamId>);
        impl ModuleVisitor for Present<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.0.get::<D>(param.id).is_some() {
                    self.1.insert(param.id);
                }
            }
        }
        let mut present = Present(&self.params, HashSet::new());
        model.visit(&mut present);
        present.1
    }

    /// Replaces gradients by smaller ones. The [norm](Self::norm) keeps its value, or is computed before the change.
    ///
    /// # Errors
    ///
    /// The same as [`norm`](Self::norm).
    pub fn bound<M: Module>(&mut self, model: &M, map: &mut impl GradMap) -> Result<(), StrategyError> {
        self.norm(model)?;
        self.moved(model, map);
        Ok(())
    }

    /// Multiplies all gradients by one factor, so that their norm is at most about `max`: see [`clip_all`]. The
    /// [norm](Self::norm) keeps its value, and stays on the device: reading it would wait for the device.
    ///
    /// # Errors
    ///
    /// The same as [`norm`](Self::norm).
    pub fn clip<M: Module>(&mut self, model: &M, max: f64) -> Result<(), StrategyError> {
        let norm = self.norm(model)?;
        let mut taken = TakeGrads(Vec::new());
        model.visit(&mut Distinct::new(&mut self.params, &mut taken));
        let owed: HashSet<_> = self.owed.drain(..).map(|owed| owed.id).collect();
        let of = |(id, grad): (ParamId, DispatchTensor)| {
            let dtype = if owed.contains(&id) { FloatDType::F32 } else { grad.dtype().into() };
            (id, (grad, dtype))
        };
        let (ids, grads): (Vec<_>, _) = taken.0.into_iter().map(of).unzip();
        let clipped = ids.into_iter().zip(clip_all(grads, norm, max)).collect();
        model.visit(&mut Distinct::new(&mut self.params, &mut PutGrads(clipped)));
        Ok(())
    }

    /// Casts each gradient to `dtype`.
    pub fn in_dtype<M: Module>(mut self, model: &M, dtype: FloatDType) -> Self {
        let norm = self.norm.take();
        self.cast(model, 1.0, |_| Some(dtype));
        self.pay();
        self.norm = norm;
        self
    }

    /// Adds the gradients of an earlier part of the step, with their facts. Each sum is computed in f32, or in f64 if
    /// `dtype` is f64, and stored in `dtype`.
    pub fn add<M: Module>(&mut self, model: &M, mut earlier: Grads, dtype: FloatDType) {
        self.pay();
        earlier.pay();
        self.skip = earlier.skip.or(self.skip.take());
        self.sharding = earlier.sharding.or(self.sharding.take());
        self.parts = earlier.parts.or(self.parts.take());
        self.norm = None;
        let mut pairs = Pairs { earlier: earlier.params, dtype, ids: Vec::new(), both: Default::default() };
        model.visit(&mut Distinct::new(&mut self.params, &mut pairs));
        let Pairs { ids, both: [earlier, late], .. } = pairs;
        let sums = ids.into_iter().zip(add_all(earlier, late, dtype)).collect();
        model.visit(&mut Distinct::new(&mut self.params, &mut PutGrads(sums)));
    }
}

impl fmt::Debug for Grads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grads")
            .field("tensors", &self.params.len())
            .field("closes", &self.closes)
            .field("skip", &self.skip)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::DType;

    use super::*;
    use crate::testing;

    fn model() -> (Linear, Device) {
        let device = testing::device().autodiff();
        (LinearConfig::new(2, 2).init(&device), device.inner())
    }

    fn grads(model: &Linear, weight: [[f32; 2]; 2], bias: [f32; 2], device: &Device) -> Grads {
        let mut params = GradientsParams::new();
        params.register(model.weight.id, Tensor::<2>::from_data(weight, device));
        let id = model.bias.as_ref().unwrap().id;
        params.register(id, Tensor::<1>::from_data(bias, device));
        Grads::new(params, true)
    }

    #[test]
    fn a_sum_keeps_what_only_one_side_has() {
        if !testing::has_bf16() {
            return;
        }
        let (linear, device) = model();
        let mut late = Grads::new(GradientsParams::new(), true);
        let half = Tensor::<2>::ones([2, 2], &device).cast(FloatDType::BF16);
        late.params.register(linear.weight.id, half);
        late.add(&linear, grads(&linear, [[0.5; 2]; 2], [3.0; 2], &device), FloatDType::F32);
        let params = late.into_params();
        let weight = params.get::<2>(linear.weight.id).unwrap().into_data();
        assert_eq!(weight.try_to_vec::<f32>().unwrap(), [1.5; 4]);
        let bias = params.get::<1>(linear.bias.unwrap().id).unwrap();
        assert_eq!(bias.into_data().try_to_vec::<f32>().unwrap(), [3.0; 2]);
    }

    #[test]
    fn a_reason_to_skip_survives_the_sum() {
        let (linear, device) = model();
        let mut late = grads(&linear, [[0.0; 2]; 2], [0.0; 2], &device);
        late.add(&linear, Grads::skipped(SkipReason::NonFinite, false), FloatDType::F32);
        assert_eq!(late.skip(), Some(&SkipReason::NonFinite));
    }

    /// What reads gradients after a cast finds them in the dtype that they were cast to, with the bits of a cast.
    #[test]
    fn a_cast_that_waits_shows_nowhere() {
        if !testing::has_bf16() {
            return;
        }
        struct Twice;
        impl GradMap for Twice {
            fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
                assert_eq!(grad.dtype(), DType::F32);
                grad.clone() + grad
            }
        }
        let (linear, device) = model();
        let bias = linear.bias.as_ref().unwrap().id;
        let given = || {
            let mut grads = grads(&linear, [[0.1, 0.2], [0.3, -7.0]], [0.7, 1e-3], &device);
            grads.cast(&linear, 1.0, |_| Some(FloatDType::BF16));
            grads
        };
        let cast = || {
            let mut grads = given();
            grads.cast(&linear, 1.0, |_| Some(FloatDType::F32));
            assert_eq!(grads.owed.len(), 2);
            grads
        };
        let bits = |params: GradientsParams| {
            let weight = params.get::<2>(linear.weight.id).unwrap().into_data();
            [weight, params.get::<1>(bias).unwrap().into_data()]
        };
        let exact = bits(given().into_params()).map(|data| data.convert::<f32>());
        assert_eq!(bits(cast().into_params()), exact);
        assert_eq!(bits(std::mem::replace(cast().params_mut(), GradientsParams::new())), exact);
        assert_eq!(bits(cast().in_dtype(&linear, FloatDType::F32).into_params()), exact);
        assert_eq!(bits(cast().for_update(&linear, &HashSet::new())), exact);
        let mut sum = cast();
        sum.add(&linear, cast(), FloatDType::F32);
        let mut mapped = cast();
        mapped.map(&linear, &mut Twice);
        let doubled = bits(mapped.into_params());
        assert_eq!(bits(sum.into_params()), doubled);

        // These read half precision, to the same result.
        let wide = || {
            let mut wide = cast();
            wide.pay();
            wide
        };
        let norm = |mut grads: Grads| grads.norm(&linear).unwrap().into_data();
        assert_eq!(norm(cast()), norm(wide()));
        let clipped = |mut grads: Grads| {
            grads.clip(&linear, 0.5).unwrap();
            bits(grads.into_params())
        };
        assert_eq!(clipped(cast()), clipped(wide()));
        let read = cast().for_update(&linear, &HashSet::from([bias]));
        assert_eq!(bits(read).map(|data| data.dtype()), [DType::F32, DType::BF16]);
    }
}
