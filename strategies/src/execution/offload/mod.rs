//! Offload: master, moments and update in host memory, optionally the replica too.
//!
//! Ren et al., *ZeRO-Offload: Democratizing Billion-Scale Model Training*, 2021 (arXiv:2101.06840).

mod written;

use std::path::PathBuf;

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_world::{host_device, on_host};

use crate::moving::{BUCKET_BYTES, Moving, copied};
use crate::params::map_params_later;
use crate::{
    Effects, Grads, Offloads, OnDisk, Outcome, ParamMap, Publishes, SettingError, Setup, Stage, Stages,
    Strategy, StrategyError, StrategyRecipe, map_params, relift,
};

const NAME: &str = "Offload";

/// Keeps parameters, gradients and moments in host memory, or on a disk if you name one.
///
/// | | on the device | on the host | moved per update |
/// |---|---|---|---|
/// | none | parameters, gradients, moments | - | - |
/// | [`optimizer`](Self::optimizer) | the replica, and two blocks' gradients | master, moments, gradients | gradients to the host, the new replica to the device |
/// | [`parameters`](Self::parameters) | two blocks, and the parameters outside blocks | everything else | gradients to the host; each block to the device, forward and backward |
///
/// With `Amp::bf16()` and AdamW, `optimizer` reduces the device's memory from 16 to 2 bytes per parameter.
///
/// The update runs on the host's cores with the run's own optimizer; the optimizers of [`optim`](crate::optim) make one
/// pass over memory. All other computation is unchanged, so the result differs only by the rounding of another
/// processor.
///
/// The gradients of a block move to the host as soon as the backward pass leaves its [segment](crate::Pass::segment),
/// and are cast, added up and clipped there. If [`Zero`](crate::Zero) sums once per update, or with
/// [`each_update`](Self::each_update), the device adds up those of the micro-batches, and they move when the update begins.
/// A block whose parameters are on the host is always recomputed in the backward pass.
///
/// On the CPU, host and device share their memory. `Offload` makes the copies anyway, so that a run shows what it would
/// hold on a GPU, with the same result.
///
/// # Beside the computation
///
/// Gradients and the replica are joined to [buckets](Self::bucket_bytes), so that a bucket is one copy. On a GPU, the
/// gradients of a block are copied in a queue of their own, and on CUDA into pinned memory, while the backward pass goes
/// on: the host waits for them, once for a block, when the pass has left the next block. Ranks that
/// [sum](crate::Zero) gradients over the host send them as they do without `Offload`.
///
/// With `parameters`, the next block is on its way while one block computes, forward and backward. Another thread joins its
/// parameters, on CUDA in pinned memory, and a queue of its own copies them to the device at once. This begins when the device
/// has computed the block before, whose memory it takes. A forward pass predicts the next block from the pass before,
/// so the first one fetches each block when it reaches it. In stage 3 of [`Zero`](crate::Zero), where devices gather the blocks, a
/// rank's shards begin one block earlier, and the device also holds those of two blocks.
///
/// `optimizer` updates the parameters bucket by bucket. While the device receives the replica's parameters of one bucket,
/// the host updates the next.
///
/// # On a disk
///
/// [`on`](Self::on) moves the optimizer's state on to a fast disk, and with `parameters` the parameters of blocks too: the
/// master, and the replica if [`Amp`](crate::Amp) keeps it in another dtype. While an update updates one bucket, it reads the
/// next bucket and writes the one before. Host memory therefore holds about three buckets. The result is the same, to the bit.
///
/// With `parameters`, a pass reads each block when it reaches its segment, and the next block meanwhile; in stage 3 of
/// [`Zero`](crate::Zero) also this rank's shards of the block after that. Of blocks, host memory holds the gradients, about three
/// buckets of master and state during an update, and during a pass two blocks, in stage 3 with the shards of a third. A pass reads the
/// replica of all blocks forward, and again backward except for the last block, which stays. An update reads and writes the
/// master of the trained blocks, and writes their replica if it is in another dtype. Each tensor takes whole blocks of 4 KiB.
///
/// What belongs to no block stays in host memory: embeddings, the final norm, the head, and parameters that are tied
/// across blocks. So do matrices that [`Quantize`](crate::Quantize) packs, the average of [`Ema`](crate::Ema), and the replica
/// that stages 1 and 2 of [`Zero`](crate::Zero) gather. Whatever reads all parameters at once has them in memory meanwhile: an
/// update with [`Ema`](crate::Ema), an evaluation in another dtype than that of training, the file of the best model, and the
/// model that a run returns.
///
/// Each rank has one file, which has no name in the folder. The system removes it when the run ends, however it ends, and
/// no run can read the file of another: only checkpoints are kept. The file is as large as what it keeps, and up to twice as
/// large while a checkpoint is saved, which is copied from it tensor by tensor, in parallel with training. On Linux the
/// file bypasses the page cache (`O_DIRECT`) if the file system supports it.
///
/// Whatever is read must have the checksum (BLAKE3) of what was written. If it has another one, if the folder cannot be
/// written, or if the disk is full, the run ends with an error, and its checkpoints stay as they are.
///
/// ```
/// use firebrick_strategies::Offload;
///
/// let offload = Offload::optimizer().on("/nvme/scratch");
/// # let _ = offload;
/// ```
///
/// # At the start
///
/// `Offload` moves parameters one at a time from the device where the model was created, and on to the disk. A model whose parameters
/// are [lazy](burn::module::Param::uninitialized), as Burn's layers create them, is never whole in memory then, also if
/// [`Zero`](crate::Zero) distributes it among several ranks. A parameter that was created
/// on the host, as a run file does, becomes the master itself: the device, which
/// [`World::on`](firebrick_world::World::on) names, holds nothing of it but the replica.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::{DType, Device}};
/// use firebrick_strategies::{Amp, Composed, Composition, Offload, Setup};
///
/// let device = Device::flex().autodiff();
/// let model = LinearConfig::new(2, 2).init(&device);
/// let recipe = Composed::new().with(Offload::optimizer()).with(Amp::bf16());
/// let mut stage = recipe.start(&mut Setup::new(&model, &device))?;
/// let master = stage.init_master(model)?; // on the host, in f32
/// let replica = stage.publish(master.clone())?; // on the device, in bf16
/// assert_eq!(master.weight.val().dtype(), DType::F32);
/// assert_eq!(replica.weight.val().dtype(), DType::BF16);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    offloads: Offloads,
    /// The folder on a disk.
    folder: Option<PathBuf>,
    bucket_bytes: usize,
    each_update: bool,
}

impl Offload {
    /// Keeps master, moments and update on the host.
    pub fn optimizer() -> Self {
        Offloads::Optimizer.into()
    }

    /// Keeps the replica on the host too: each segment fetches its block.
    pub fn parameters() -> Self {
        Offloads::Parameters.into()
    }

    /// Keeps the optimizer's state in a file of this folder, which must exist, instead of in host memory; with
    /// [`parameters`](Self::parameters), the parameters of blocks too.
    pub fn on(self, folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }

    /// Moves gradients once per update: the device adds up those of the micro-batches. Default: each micro-batch is moved, and
    /// the host adds them up, unless [`Zero`](crate::Zero) sums once per update.
    ///
    /// With `Accumulate(k)`, gradients then cross the bus once and not k times, and the device holds their sum: four bytes per
    /// parameter. [`parameters`](Self::parameters) moves them block by block, and cannot wait.
    pub fn each_update(self) -> Self {
        Self { each_update: true, ..self }
    }

    /// Sets the most bytes of a bucket, unless one parameter alone has more: of gradients, and of a replica, that go between
    /// host and device in one copy, and of parameters that are updated together. Default: 32 MiB. AdamW's state of a bucket has twice as many.
    pub fn bucket_bytes(self, bytes: usize) -> Self {
        Self { bucket_bytes: bytes, ..self }
    }
}

impl From<Offloads> for Offload {
    fn from(offloads: Offloads) -> Self {
        Self { offloads, folder: None, bucket_bytes: BUCKET_BYTES, each_update: false }
    }
}

impl StrategyRecipe for Offload {
    fn effects(&self) -> Effects {
        let bucket_bytes = self.bucket_bytes;
        let on_disk = self.folder.clone().map(|folder| OnDisk { folder, bucket_bytes });
        Effects {
            offloads: Some(self.offloads),
            on_disk,
            moves: Some(bucket_bytes),
            moves_each_update: self.each_update,
            ..Effects::none(NAME)
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.bucket_bytes > 0, "bucket_bytes", "at least 1", self.bucket_bytes)?;
        SettingError::require(
            !self.each_update || self.offloads == Offloads::Optimizer,
            "each_update",
            "left out where parameters are offloaded, which moves gradients block by block",
            true,
        )?;
        let is_empty = self.folder.as_ref().is_some_and(|folder| folder.as_os_str().is_empty());
        SettingError::require(!is_empty, "on", "a folder", "an empty path")
    }
}

impl<M: Module> Strategy<M> for Offload {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let host = host_device();
        let device = setup.device().clone().inner();
        let parameters = self.offloads == Offloads::Parameters;
        let to_disk = parameters && self.folder.is_some();
        Ok(Stages::of(Offloading { parameters, to_disk, host, device, bucket_bytes: self.bucket_bytes }))
    }
}

/// The live state of [`Offload`].
#[derive(Debug)]
struct Offloading {
    parameters: bool,
    /// Whether parameters go to a disk one by one, once they are those of the master.
    to_disk: bool,
    host: Device,
    device: Device,
    bucket_bytes: usize,
}

impl<M: Module> Stage<M> for Offloading {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        grads.move_to(master, &self.host, self.bucket_bytes)?;
        grads.put_delivered(master, &self.host);
        Ok(Outcome::Apply(grads))
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        let mut to_host = Move(self.host.clone());
        Ok(match self.to_disk {
            true => map_params_later(model, to_host),
            false => map_params(model, &mut to_host),
        })
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        Ok(match self.parameters {
            true => master,
            false => copied(master, &self.device, self.bucket_bytes, |_| true)?,
        })
    }

    fn publishes(&self) -> Publishes {
        Publishes::Each
    }

    fn evaluator(&mut self, _: &M, replica: M) -> Result<M, StrategyError> {
        // The replica is on the device already, unless a later strategy made it from the master.
        Ok(match self.parameters {
            true => replica,
            false => map_params(replica, &mut Move(self.device.clone())),
        })
    }

    fn publish_each(
        &mut self,
        master: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        if self.parameters {
            return Ok(master);
        }
        let (ids, flat): (Vec<_>, Vec<_>) = master.into_iter().unzip();
        let there = Moving::begin(flat, &self.device, self.bucket_bytes)?.wait()?;
        Ok(std::iter::zip(ids, there).collect())
    }
}

/// Moves tensors to a device, unless they are there.
#[derive(Clone)]
struct Move(Device);

impl ParamMap for Move {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        let (inner, dtype) = (value.clone().inner(), value.dtype());
        match inner.device() == self.0 {
            true => value,
            false => relift(Tensor::from_data(on_host(inner), (&self.0, dtype)), &value),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;

    use super::*;
    use crate::{Accumulate, Clip, Composed, Composition, Pass, Zero, testing};

    fn refused(recipe: impl Composition<Linear>) -> String {
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
            assert_eq!(of(&master), host_device());
            let expected =
                if offload == Offload::parameters() { host_device() } else { device.clone().inner() };
            assert_eq!(of(&replica), expected);
            assert!(replica.weight.is_require_grad() && master.weight.is_require_grad());
            assert_eq!(replica.weight.val().into_data(), model.weight.val().into_data());

            let mut grads = GradientsParams::new();
            grads.register(model.weight.id, Tensor::<2>::ones([3, 2], &device.clone().inner()));
            let Outcome::Apply(grads) = stage.collect(&master, Grads::new(grads, true)).unwrap() else {
                panic!("passed on")
            };
            let grad = grads.into_params().get::<2>(model.weight.id).unwrap();
            assert_eq!(grad.device(), host_device());
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
    fn what_takes_a_block_s_gradients_comes_first() {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(3, 2).init(&device);
        let started = |strategies: Composed<Linear>| {
            format!("{:?}", strategies.start(&mut Setup::new(&model, &device)).unwrap())
        };
        let summed = Composed::new().with(Accumulate(2)).with(Offload::parameters());
        assert_eq!(started(summed), r#"["Offload", "Accumulate"]"#);
        let sharded = Composed::new().with(Offload::optimizer()).with(Zero::stage(2));
        assert_eq!(started(sharded), r#"["Zero", "Offload"]"#);
        let clipped = Composed::new().with(Clip::norm(1.0)).with(Offload::optimizer());
        assert_eq!(started(clipped), r#"["Offload", "Clip"]"#);
        let once = Composed::new().with(Offload::optimizer().each_update()).with(Accumulate(2));
        assert_eq!(started(once), r#"["Accumulate", "Offload"]"#);
        let summed_once = Composed::new().with(Offload::optimizer()).with(Zero::stage(1)).with(Accumulate(2));
        assert_eq!(started(summed_once), r#"["Accumulate", "Zero", "Offload"]"#);
        let of_blocks = Composed::new().with(Accumulate(2)).with(Zero::stage(1)).with(Offload::parameters());
        assert_eq!(started(of_blocks), r#"["Offload", "Accumulate", "Zero"]"#);
        let error = refused(Offload::parameters().each_update());
        assert!(error.contains("left out where parameters are offloaded"), "{error}");
        let error = refused(Composed::new().with(Offload::optimizer()).with(Offload::parameters()));
        assert!(error.contains("named twice"), "{error}");
    }
}
