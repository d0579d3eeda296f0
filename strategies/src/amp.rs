//! Mixed precision: a bf16 replica over an f32 master.
//!
//! Micikevicius et al., *Mixed Precision Training*, 2018 (arXiv:1710.03740), with bfloat16, whose
//! exponent range is that of f32, so that no loss scale is needed (Kalamkar et al., 2019,
//! arXiv:1905.12322).

use burn::module::{Module, ParamId};
use burn::tensor::{Device, FloatDType, Tensor};

use crate::{GradMap, Grads, Outcome, ParamMap, Setup, Stage, Strategy, StrategyError, map_params, relift};

/// Computes in bf16 while the optimizer keeps f32 master weights, gradients and moments.
///
/// Per parameter: 2 bytes of replica and 4 of master; gradients arrive in bf16 and are cast up
/// before anything sums or clips them. A window with a gradient that is not finite is skipped.
///
/// The forward pass meets bf16 weights, and Burn's operations take operands of one dtype only: a
/// model casts its float inputs to the dtype of its weights, and its logits to f32 for the loss.
/// Evaluation reads the replica too, so the loss that it reports is that of the rounded weights, a
/// few parts in a thousand from that of the f32 master, which is what is saved.
///
/// ```
/// use firebrick_strategies::{Amp, Setup, Strategy, Stage};
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let mut amp = Amp::bf16().start(&mut Setup::new(&model, &device))?;
/// let master = amp.own(model);
/// let replica = amp.publish(master.clone());
/// assert_eq!(master.weight.val().dtype(), DType::F32);
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Amp {
    dtype: FloatDType,
}

impl Amp {
    /// Computes in bfloat16: 8 bits of exponent as f32, 7 of mantissa.
    pub fn bf16() -> Self {
        Self { dtype: FloatDType::BF16 }
    }
}

impl<M: Module> Strategy<M> for Amp {
    type Stage = Amp;

    fn start(&self, setup: &mut Setup<M>) -> Result<Amp, StrategyError> {
        require_dtype("Amp", setup.device(), self.dtype)?;
        setup.cast_replica("Amp", self.dtype)?;
        Ok(self.clone())
    }
}

impl<M: Module> Stage<M> for Amp {
    fn name(&self) -> &'static str {
        "Amp"
    }

    fn own(&mut self, model: M) -> M {
        map_params(model, &mut Cast(FloatDType::F32))
    }

    fn publish(&mut self, master: M) -> M {
        map_params(master, &mut Cast(self.dtype))
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        grads.map(master, &mut Cast(FloatDType::F32));
        grads.guard();
        Ok(Outcome::Apply(grads))
    }
}

struct Cast(FloatDType);

impl ParamMap for Cast {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        relift(value.clone().inner().cast(self.0), &value)
    }
}

impl GradMap for Cast {
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        grad.cast(self.0)
    }
}

/// The float dtypes that training can compute in, by the names used in messages.
const FLOATS: [(FloatDType, &str); 4] = [
    (FloatDType::F64, "f64"),
    (FloatDType::F32, "f32"),
    (FloatDType::BF16, "bf16"),
    (FloatDType::F16, "f16"),
];

fn require_dtype(strategy: &'static str, device: &Device, dtype: FloatDType) -> Result<(), StrategyError> {
    if device.supports_dtype(dtype) {
        return Ok(());
    }
    let supported = FLOATS.iter().filter(|(dtype, _)| device.supports_dtype(*dtype));
    let names: Vec<_> = supported.map(|(_, name)| *name).collect();
    let name = FLOATS.iter().find(|(known, _)| *known == dtype);
    Err(StrategyError::Dtype {
        strategy,
        device: format!("{device:?}"),
        dtype: name.map_or("this dtype", |(_, name)| name),
        supported: names.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::DType;

    use super::*;
    use crate::{Clip, Stack, testing};

    fn start() -> (Linear, Device, Amp) {
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        let amp = Amp::bf16().start(&mut Setup::new(&model, &device)).unwrap();
        (model, device, amp)
    }

    #[test]
    fn gradients_of_the_replica_arrive_in_f32_under_the_same_ids() {
        if !testing::has_bf16() {
            return;
        }
        let (model, device, mut amp) = start();
        let replica = amp.publish(model.clone());
        let x = Tensor::<2>::ones([4, 3], &device).cast(FloatDType::BF16);
        let loss = replica.forward(x).cast(FloatDType::F32).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &replica);
        let Ok(Outcome::Apply(grads)) = amp.collect(&model, Grads::new(grads, true)) else {
            panic!("gradients are passed on")
        };
        assert!(grads.guarded());
        let weight = grads.into_params().get::<2>(model.weight.id).unwrap();
        assert_eq!(weight.dtype(), DType::F32);
        assert_eq!(weight.into_data().try_to_vec::<f32>().unwrap(), [4.0; 6]);
    }

    #[test]
    fn publishing_leaves_the_master_as_it_was_and_rounds_to_nearest() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _, mut amp) = start();
        let before = model.weight.val().into_data();
        let replica = amp.publish(model.clone());
        assert_eq!(model.weight.val().into_data(), before);
        let error = (replica.weight.val().inner().cast(FloatDType::F32) - model.weight.val().inner())
            .abs()
            .max()
            .into_scalar::<f32>();
        let largest = before.iter::<f32>().fold(0f32, |a, b| a.max(b.abs()));
        assert!(error > 0.0 && error <= largest / 256.0, "error {error}");
    }

    #[test]
    fn a_master_in_half_precision_becomes_f32() {
        if !testing::has_bf16() {
            return;
        }
        let (model, _, mut amp) = start();
        let half = amp.publish(model);
        assert_eq!(amp.own(half).weight.val().dtype(), DType::F32);
    }

    #[test]
    fn clipping_before_the_cast_is_refused_with_the_fix() {
        if !testing::has_bf16() {
            return;
        }
        let (model, device, _) = start();
        let wrong = Stack::new(Clip::norm(1.0), Amp::bf16());
        let error = wrong.start(&mut Setup::new(&model, &device)).err().unwrap();
        assert!(error.to_string().contains("write Amp first"), "{error}");
    }

    #[test]
    fn two_of_them_are_refused() {
        if !testing::has_bf16() {
            return;
        }
        let (model, device, _) = start();
        let error = Stack::new(Amp::bf16(), Amp::bf16()).start(&mut Setup::new(&model, &device));
        assert_eq!(error.err(), Some(StrategyError::Twice("Amp")));
    }
}
