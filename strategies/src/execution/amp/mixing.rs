//! Mixed precision at work: casts between master and replica, and the live loss scale.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use burn::tensor::{FloatDType, Tensor};

use crate::dtypes::{cast_params, cast_params_later, cast_value};
use crate::{Grads, Outcome, Publishes, Settled, Stage, StageState, StrategyError};

use super::NAME;
use super::loss_scale::Scaler;

/// The live state of [`Amp`](crate::Amp).
#[derive(Clone, Debug)]
pub struct Mixing {
    pub(super) dtype: FloatDType,
    pub(super) master: FloatDType,
    pub(super) evaluation: FloatDType,
    /// Parameters that are f32 everywhere.
    pub(super) kept: HashSet<ParamId>,
    pub(super) scaler: Option<Scaler>,
    /// Whether parameters go to a disk one by one, once they are those of the master.
    pub(super) to_disk: bool,
}

impl Mixing {
    /// Casts each parameter to `dtype`, except the parameters kept in f32.
    fn cast<M: Module>(&self, model: M, dtype: FloatDType) -> M {
        cast_params(model, |id| self.dtype_of(id, dtype))
    }

    fn dtype_of(&self, id: ParamId, dtype: FloatDType) -> FloatDType {
        if self.kept.contains(&id) { FloatDType::F32 } else { dtype }
    }
}

impl<M: Module> Stage<M> for Mixing {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Divides the gradients by the loss scale, in f32, and casts them to the dtype of the master's parameters, or leaves a
    /// cast alone to whoever needs it.
    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        let scale = self.scaler.as_ref().map_or(1.0, Scaler::scale);
        grads.cast(master, scale, |id| Some(self.dtype_of(id, self.master)));
        Ok(Outcome::Apply(grads))
    }

    fn save(&self, state: StageState) -> StageState {
        match &self.scaler {
            None => state,
            Some(scaler) => scaler.save(state),
        }
    }

    fn restore(&mut self, saved: &StageState) -> Result<(), StrategyError> {
        self.scaler.as_mut().map_or(Ok(()), |scaler| scaler.restore(saved))
    }

    fn loss_scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(Scaler::scale)
    }

    fn loss_scale_after(&self, settled: &Settled) -> Option<f64> {
        self.scaler.as_ref().map(|scaler| scaler.after(settled))
    }

    fn after_step(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        self.scaler.as_mut().map_or(Ok(()), |scaler| scaler.settle(settled))
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        if !self.to_disk {
            return Ok(self.cast(model, self.master));
        }
        let (mixing, master) = (self.clone(), self.master);
        Ok(cast_params_later(model, move |id| mixing.dtype_of(id, master)))
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        if self.to_disk {
            return Ok(self.cast(master, self.dtype));
        }
        // Parameters may still be on their way from other ranks.
        let (mixing, dtype) = (self.clone(), self.dtype);
        Ok(cast_params_later(master, move |id| mixing.dtype_of(id, dtype)))
    }

    fn publishes(&self) -> Publishes {
        Publishes::Each
    }

    fn evaluates_master(&self) -> bool {
        self.evaluation != self.dtype
    }

    fn evaluator(&mut self, master: &M, replica: M) -> Result<M, StrategyError> {
        Ok(if self.evaluation == self.dtype { replica } else { self.cast(master.clone(), self.evaluation) })
    }

    fn publish_each(
        &mut self,
        master: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        let cast = |(id, value)| (id, cast_value(value, self.dtype_of(id, self.dtype)));
        Ok(master.into_iter().map(cast).collect())
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{DType, Device, Tensor};

    use super::*;
    use crate::{
        Accumulate, Amp, Clip, Composed, Composition, Keep, LossScale, SavedStates, Settled, Setup,
        SkipReason, Stages, testing,
    };

    fn start(amp: Amp) -> (Linear, Device, Stages<Linear>) {
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let amp = amp.start(&mut Setup::new(&model, &device)).unwrap();
        (model, device, amp)
    }

    fn values(grads: Grads, model: &Linear) -> (DType, Vec<f32>) {
        let weight = grads.into_params().get::<2>(model.weight.id).unwrap();
        (weight.dtype(), weight.into_data().iter().collect())
    }

    /// Returns the gradients of `value` times the loss scale, as a backward pass under `stage` returns them.
    fn backward(
        stages: &mut Stages<Linear>,
        model: &Linear,
        value: f32,
        dtype: FloatDType,
    ) -> GradientsParams {
        let mut params = GradientsParams::new();
        let scaled = f64::from(value) * stages.loss_scale().unwrap_or(1.0);
        let grad = Tensor::<2>::full([3, 2], scaled, &testing::device()).cast(dtype);
        params.register(model.weight.id, grad);
        params
    }

    #[test]
    fn gradients_of_the_replica_arrive_in_f32_under_the_same_ids() {
        if !testing::has_bf16() {
            return;
        }
        let (model, device, mut amp) = start(Amp::bf16());
        let replica = amp.publish(model.clone()).unwrap();
        let x = Tensor::<2>::ones([4, 3], &device).cast(FloatDType::BF16);
        let loss = replica.forward(x).cast(FloatDType::F32).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &replica);
        let Ok(Outcome::Apply(grads)) = amp.collect(&model, Grads::new(grads, true)) else {
            panic!("gradients are passed on")
        };
        assert_eq!(values(grads, &model), (DType::F32, vec![4.0; 6]));
    }

    #[test]
    fn publishing_leaves_the_master_as_it_was_and_rounds_to_nearest() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _, mut amp) = start(Amp::bf16());
        let before = model.weight.val().into_data();
        let replica = amp.publish(model.clone()).unwrap();
        assert_eq!(model.weight.val().into_data(), before);
        let error = (replica.weight.val().inner().cast(FloatDType::F32) - model.weight.val().inner())
            .abs()
            .max()
            .into_scalar::<f32>();
        let largest = before.iter::<f32>().fold(0f32, |a, b| a.max(b.abs()));
        assert!(error > 0.0 && error <= largest / 256.0, "error {error}");
    }

    #[test]
    fn each_mode_has_its_dtypes_of_master_and_replica() {
        if !testing::has_bf16() {
            return;
        }
        use DType::{BF16, F16, F32};
        for (amp, master, replica, evaluator) in [
            (Amp::bf16(), F32, BF16, BF16),
            (Amp::f16(), F32, F16, F16),
            (Amp::f32(), F32, F32, F32),
            (Amp::pure_bf16(), BF16, BF16, BF16),
            (Amp::bf16().evaluate_in(FloatDType::F32), F32, BF16, F32),
            (Amp::f32().evaluate_in(FloatDType::F16), F32, F32, F16),
            (Amp::pure_bf16().evaluate_in(FloatDType::F32), BF16, BF16, F32),
        ] {
            let (model, _, mut stage) = start(amp);
            let owned = stage.init_master(model).unwrap();
            let published = stage.publish(owned.clone()).unwrap();
            let evaluated = stage.evaluator(&owned, published.clone()).unwrap();
            let found = [&owned, &published, &evaluated].map(|model| model.weight.val().dtype());
            assert_eq!(found, [master, replica, evaluator]);
            assert!(published.weight.is_require_grad());
        }
    }

    #[test]
    fn a_master_in_half_precision_becomes_f32() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _, mut amp) = start(Amp::bf16());
        let half = amp.publish(model).unwrap();
        assert_eq!(amp.init_master(half).unwrap().weight.val().dtype(), DType::F32);
    }

    #[test]
    fn what_is_kept_stays_in_f32_everywhere() {
        if !testing::has_bf16() {
            return;
        }
        for amp in [Amp::bf16(), Amp::f16(), Amp::pure_bf16()] {
            let (model, _, mut stage) = start(amp.keep_f32(Keep::path("bias")));
            let replica = {
                let master = stage.init_master(model.clone()).unwrap();
                assert_eq!(master.bias.as_ref().unwrap().val().dtype(), DType::F32);
                stage.publish(master).unwrap()
            };
            let bias = |model: &Linear| model.bias.as_ref().unwrap().val();
            assert_eq!(bias(&replica).dtype(), DType::F32);
            assert_ne!(replica.weight.val().dtype(), DType::F32);
            assert_eq!(bias(&replica).into_data(), bias(&model).into_data());
        }
    }

    #[test]
    fn gradients_are_unscaled_in_f32() {
        // 3e-8 is 0 in f16, but 2^16 times 3e-8 is not.
        let (model, _, mut amp) = start(Amp::f16());
        let grads = Grads::new(backward(&mut amp, &model, 3e-8, FloatDType::F16), true);
        let Ok(Outcome::Apply(grads)) = amp.collect(&model, grads) else { panic!("passed on") };
        let (dtype, found) = values(grads, &model);
        assert_eq!(dtype, DType::F32);
        assert!(found.iter().all(|x| (x / 3e-8 - 1.0).abs() < 1e-3), "{found:?}");

        let (model, _, mut bare) = start(Amp::f16().scaled_by(LossScale::constant(1.0)));
        let grads = Grads::new(backward(&mut bare, &model, 2e-8, FloatDType::F16), true);
        let Ok(Outcome::Apply(grads)) = bare.collect(&model, grads) else { panic!("passed on") };
        assert_eq!(values(grads, &model).1, [0.0; 6]);
    }

    #[test]
    fn accumulating_before_or_after_gives_the_same_unscaled_sum_and_norm() {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let run = |mut stage: Stages<Linear>| {
            let mut outcome = Outcome::Hold;
            for (value, closes) in [(0.25, false), (0.5, false), (0.125, true)] {
                let grads = backward(&mut stage, &model, value, FloatDType::F16);
                outcome = stage.collect(&model, Grads::new(grads, closes)).unwrap();
            }
            let Outcome::Apply(mut grads) = outcome else { panic!("the step ends") };
            let norm = grads.norm(&model).unwrap().into_scalar::<f32>();
            (norm, values(grads, &model))
        };
        let setup = || Setup::new(&model, &device);
        let scaled = || Amp::f16().scaled_by(LossScale::constant(1024.0));
        let first = run(Composed::new().with(scaled()).with(Accumulate(3)).start(&mut setup()).unwrap());
        let then = run(Composed::new().with(Accumulate(3)).with(scaled()).start(&mut setup()).unwrap());
        assert_eq!(first, (0.875 * 6f32.sqrt(), (DType::F32, vec![0.875; 6])));
        assert_eq!(then, first);
        // Clipping sees the unscaled norm.
        let clipped = Composed::new().with(scaled()).with(Accumulate(3)).with(Clip::norm(0.1));
        let (norm, (_, values)) = run(clipped.start(&mut setup()).unwrap());
        assert_eq!(norm, first.0);
        let after = values.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((after - 0.1).abs() < 1e-6, "{after}");
    }

    #[test]
    fn a_pure_gradient_stays_in_bf16_and_clips_there() {
        if !testing::has_bf16() {
            return;
        }
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let recipe = Composed::new().with(Amp::pure_bf16()).with(Clip::norm(1.0));
        let mut stage = recipe.start(&mut Setup::new(&model, &device)).unwrap();
        let master = stage.init_master(model).unwrap();
        let grads = backward(&mut stage, &master, 5.0, FloatDType::BF16);
        let Ok(Outcome::Apply(grads)) = stage.collect(&master, Grads::new(grads, true)) else {
            panic!("passed on")
        };
        let (dtype, found) = values(grads, &master);
        assert_eq!(dtype, DType::BF16);
        assert!(found.iter().all(|x| (x * 6f32.sqrt() - 1.0).abs() < 4e-3), "{found:?}");
    }

    #[test]
    fn the_scale_follows_what_became_of_steps_and_is_saved() {
        let (_, _, mut amp) = start(Amp::f16().scaled_by(LossScale::dynamic(8.0).interval(2)));
        let settle = |amp: &mut Stages<Linear>, settled: Settled| {
            amp.after_step(&settled).unwrap();
            amp.loss_scale().unwrap()
        };
        assert_eq!(settle(&mut amp, Settled::Skipped(SkipReason::NonFinite)), 4.0);
        assert_eq!(settle(&mut amp, Settled::Skipped(SkipReason::NoItems)), 4.0);
        assert_eq!(settle(&mut amp, Settled::Applied), 4.0);
        let (_, _, mut resumed) = start(Amp::f16().scaled_by(LossScale::dynamic(8.0).interval(2)));
        resumed.restore(&mut SavedStates::new(amp.save())).unwrap();
        assert_eq!(settle(&mut resumed, Settled::Applied), 8.0);
        assert_eq!(settle(&mut amp, Settled::Applied), 8.0);
    }
}
