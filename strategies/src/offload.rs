//! Offload: master, moments and update in the host's memory, and if wanted the replica too.
//!
//! Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, 2021 (arXiv:2101.06840).

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor};

use crate::host::{host, on_host};
use crate::{GradMap, Grads, Outcome, ParamMap, Setup, Stage, Strategy, StrategyError, map_params, relift};

const NAME: &str = "Offload";

/// Keeps what a device need not hold in the host's memory.
///
/// | | on the device | on the host | moved per update |
/// |---|---|---|---|
/// | none | parameters, gradients, moments | - | - |
/// | [`optimizer`](Self::optimizer) | the replica, and one block's gradients | master, moments, gradients | gradients down, the new replica up |
/// | [`parameters`](Self::parameters) | one or two blocks, and what is in no block | everything else | gradients down; each block up, forward and backward |
///
/// With `Amp::bf16()` and AdamW, the device holds 2 bytes per parameter in the first case where it held 16.
///
/// The update runs on the host's cores, with whatever optimizer the run has;
/// [`optim`](crate::optim)'s go through memory once. Nothing is computed otherwise, so that the result is
/// the same as without, but for the rounding of another processor.
///
/// The gradients of a block go down as soon as the backward pass leaves its
/// [segment](crate::Pass::segment), where nothing but [`Zero`](crate::Zero) stands before; else when
/// gradients come to where this strategy is written. What comes after it computes on the host: write
/// `Offload` before `Amp` and `Accumulate`, so that their f32 copies are the host's too.
/// `parameters` acts through the segments, so it must stand there. A block whose parameters wait on the
/// host is always run again in the backward pass.
///
/// On the CPU, host and device are the same memory. The copies are made all the same, so that a run shows
/// what it would hold on a GPU, and that its result is the same.
///
/// # At the start
///
/// Parameters are taken from where the model was made, one after the other. One that was made on the host, as a
/// run file makes it, is the master itself: on the device, which [`World::on`](crate::World::on) names, is
/// nothing of it but the replica.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
/// use firebrick_strategies::{Amp, Offload, Setup, Stack, Stage, Strategy};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let recipe = Stack::new(Offload::optimizer(), Amp::bf16());
/// let mut stage = recipe.start(&mut Setup::new(&model, &device))?;
/// let master = stage.init_master(model)?; // on the host, in f32
/// let replica = stage.publish(master.clone())?; // on the device, in bf16
/// assert_eq!(master.weight.val().dtype(), DType::F32);
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offload {
    parameters: bool,
}

impl Offload {
    /// Master, moments and update on the host.
    pub fn optimizer() -> Self {
        Self { parameters: false }
    }

    /// The replica too: each segment fetches its block.
    pub fn parameters() -> Self {
        Self { parameters: true }
    }
}

impl<M: Module> Strategy<M> for Offload {
    type Stage = Offloading;

    fn start(&self, setup: &mut Setup<M>) -> Result<Offloading, StrategyError> {
        let host = host(NAME)?;
        setup.offload(NAME, self.parameters)?;
        setup.place_master();
        Ok(Offloading { parameters: self.parameters, host, device: setup.device().clone().inner() })
    }
}

/// [`Offload`] at work.
#[derive(Debug)]
pub struct Offloading {
    parameters: bool,
    host: Device,
    device: Device,
}

impl<M: Module> Stage<M> for Offloading {
    fn name(&self) -> &'static str {
        NAME
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        Ok(map_params(model, &mut Move { to: &self.host, copies: false }))
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(match self.parameters {
            true => master,
            false => map_params(master, &mut Move { to: &self.device, copies: true }),
        })
    }

    fn evaluator(&mut self, _: &M, replica: M) -> Result<M, StrategyError> {
        // On the device already, unless a strategy behind this one made it of the master.
        Ok(match self.parameters {
            true => replica,
            false => map_params(replica, &mut Move { to: &self.device, copies: false }),
        })
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        grads.moved(master, &mut Move { to: &self.host, copies: false });
        grads.put_delivered(master, &self.host);
        Ok(Outcome::Apply(grads))
    }
}

/// Moves tensors to a device; those that are there already only where a copy is wanted.
struct Move<'a> {
    to: &'a Device,
    copies: bool,
}

impl Move<'_> {
    fn moved<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        let dtype = tensor.dtype();
        match self.copies || tensor.device() != *self.to {
            true => Tensor::from_data(on_host(tensor), (self.to, dtype)),
            false => tensor,
        }
    }
}

impl ParamMap for Move<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        relift(self.moved(value.clone().inner()), &value)
    }
}

impl GradMap for Move<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, grad: Tensor<D>) -> Tensor<D> {
        self.moved(grad)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;

    use super::*;
    use crate::{Accumulate, Amp, Clip, Pass, Stack, Zero, testing};

    fn refused(recipe: impl Strategy<Linear>) -> String {
        let device = testing::device().autodiff();
        let model = LinearConfig::new(3, 2).init(&device);
        match recipe.start(&mut Setup::new(&model, &device)) {
            Ok(_) => panic!("it starts"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn master_and_gradients_are_on_the_host_and_the_replica_on_the_device() {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        for offload in [Offload::optimizer(), Offload::parameters()] {
            let mut stage = offload.start(&mut Setup::new(&model, &device)).unwrap();
            let master = stage.init_master(model.clone()).unwrap();
            let replica = stage.publish(master.clone()).unwrap();
            let of = |model: &Linear| model.weight.val().device().inner();
            assert_eq!(of(&master), host(NAME).unwrap());
            let expected = if offload.parameters { host(NAME).unwrap() } else { device.clone().inner() };
            assert_eq!(of(&replica), expected);
            assert!(replica.weight.is_require_grad() && master.weight.is_require_grad());
            assert_eq!(replica.weight.val().into_data(), model.weight.val().into_data());

            let mut grads = GradientsParams::new();
            grads.register(model.weight.id, Tensor::<2>::ones([3, 2], &device.clone().inner()));
            let Outcome::Apply(grads) = stage.collect(&master, Grads::new(grads, true)).unwrap() else {
                panic!("passed on")
            };
            let grad = grads.into_params().get::<2>(model.weight.id).unwrap();
            assert_eq!(grad.device(), host(NAME).unwrap());
        }
    }

    #[test]
    fn a_block_whose_input_carries_no_gradient_has_those_of_its_parameters() {
        let device = testing::device().autodiff();
        let model: Vec<Linear> = (0..2).map(|_| LinearConfig::new(3, 3).init(&device)).collect();
        let loss = |model: &Vec<Linear>, pass: &Pass| {
            let run = |block: &Linear, x: Tensor<2>, _: &Pass| block.forward(x).tanh();
            let x = Tensor::<2>::ones([2, 3], &device);
            model.iter().fold(x, |x, block| pass.segment(block, x, run)).sum()
        };
        let expected = loss(&model, &Pass::train(&device)).backward();
        let mut setup = Setup::new(&model, &device);
        let mut stage = Offload::parameters().start(&mut setup).unwrap();
        let pass = setup.into_pass();
        let master = stage.init_master(model.clone()).unwrap();
        let (replica, pass) = pass.enter(&stage.publish(master.clone()).unwrap()).unwrap();
        let grads = pass.gradients(loss(&replica, &pass).backward(), &replica, true).unwrap();
        let Outcome::Apply(grads) = stage.collect(&master, grads).unwrap() else { panic!("passed on") };
        let grads = grads.into_params();
        for (index, linear) in model.iter().enumerate() {
            let found = grads.get::<2>(linear.weight.id).map(Tensor::into_data);
            assert_eq!(found, linear.weight.grad(&expected).map(Tensor::into_data), "block {index}");
        }
    }

    #[test]
    fn what_would_miss_a_block_s_gradients_is_refused() {
        let error = refused(Stack::new(Amp::bf16(), Offload::parameters()));
        assert!(
            error.contains("Amp stands before Offload") && error.contains("write Offload first"),
            "{error}"
        );
        let error = refused(Stack::new(Accumulate(2), Offload::parameters()));
        assert!(error.contains("write Offload first"), "{error}");
        let error = refused(Stack::new(Offload::optimizer(), Zero::stage(2)));
        assert!(error.contains("write Zero first"), "{error}");
        let error = refused(Stack::new(Offload::optimizer(), Offload::parameters()));
        assert!(error.contains("named twice"), "{error}");
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let clipped = Stack::new(Clip::norm(1.0), Offload::optimizer());
        clipped.start(&mut Setup::new(&model, &device)).unwrap();
    }
}
