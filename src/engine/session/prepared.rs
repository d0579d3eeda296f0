//! A run whose strategies have started, before its master and replica exist.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::Device;
use firebrick_datasets::Batch;
use firebrick_kernels::settle_products;
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{Adaptation, Composition, OnDisk, Order, Pass, Setup, Stages, tied, trained};
use firebrick_world::{Communicator, host_device};

use super::Session;
use super::memory::MemoryProbe;
use super::ranks::Ranks;
use super::updater::{Updater, published, published_to_disk};
use super::weights::Weights;
use crate::accounting::{ParameterBytes, Placement, dtypes};
use crate::checkpoint::{Layout, OnDisk as Disk};
use crate::engine::elementwise::require_elementwise;
use crate::engine::feed::{Share, several_micro_batches};
use crate::scratch::Values;
use crate::{Data, LrSchedule, TrainError};

/// A run after its strategies have been accepted, before it exchanges anything with other ranks.
pub struct PreparedRun<M> {
    stages: Stages<M>,
    model: M,
    adaptation: Adaptation,
    device: Device,
    order: Order,
    pass: Pass,
    world: Communicator,
    /// Whether a disk is to keep what strategies want to have there.
    opens_disk: bool,
}

impl<M: Module + 'static> PreparedRun<M> {
    /// Adapts the model and starts the strategies on it, for one rank. The rank computes on `device`, or on the
    /// model's device if `device` is `None`. `adaptation` has no changes yet.
    pub fn new(
        strategies: &impl Composition<M>,
        model: M,
        device: Option<Device>,
        optimizer: &ModelOptimizer,
        world: Communicator,
        adaptation: Adaptation,
    ) -> Result<Self, TrainError> {
        let mut adaptation = adaptation.among(world.clone());
        if optimizer.has_gradient_clipping() {
            return Err(TrainError::OptimizerClips);
        }
        let device = device.or_else(|| model.devices().first().cloned()).unwrap_or_default().autodiff();
        let model = if model.devices().iter().all(Device::is_autodiff) { model } else { model.train() };
        let model = strategies.adapt(model, &mut adaptation)?;
        if let Some(start) = adaptation.take_start() {
            return Err(start.not_taken().into());
        }
        let setup = Setup::new(&model, &device).among(world.clone());
        let mut setup = setup.dividing(adaptation.parts().cloned());
        let stages = strategies.start(&mut setup)?;
        let order = setup.order().clone();
        if world.size() > 1 && order.reduces().is_none() {
            return Err(TrainError::NotReduced { ranks: world.size() });
        }
        if order.shards_master() || adaptation.parts().is_some() {
            require_elementwise(&model, optimizer, &device)?;
        }
        let pass = setup.into_pass();
        // A strategy that places the master takes the parameters from where they are.
        let is_there = order.places_master() || model.devices().iter().all(|own| *own == device);
        let model = if is_there { model } else { model.fork(&device) };
        Ok(Self { stages, model, adaptation, device, order, pass, world, opens_disk: false })
    }

    /// The number of micro-batches per optimizer step, on a rank.
    pub fn micro_batches(&self) -> usize {
        self.order.micro_batches()
    }

    /// The rank's share of each global batch.
    pub fn share(&self) -> Share {
        Share::of(&self.world, self.order.ranks_per_batch())
    }

    /// Rejects optimizer steps of several micro-batches per rank if no strategy sums their gradients.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotSummed`].
    pub fn require_sums<B: Batch>(&self, data: &Data<B>) -> Result<(), TrainError> {
        match self.order.sums_micro_batches()
            || !several_micro_batches(data, self.micro_batches(), self.share().ranks)
        {
            true => Ok(()),
            false => Err(TrainError::NotSummed),
        }
    }

    /// Lets the session keep the optimizer's state on the disk that is to keep it, if there is one, and the parameters of
    /// blocks if it is to keep them. A session that only measures passes needs no disk.
    pub fn opening_disk(self) -> Self {
        Self { opens_disk: true, ..self }
    }

    /// Creates master and replica from the model, together with the other ranks.
    ///
    /// # Errors
    ///
    /// Nothing is trained, strategies share state with the model, or another rank is lost. The folder of the disk does not exist
    /// or cannot be written into, or the disk is full.
    pub fn start(
        self,
        mut optimizer: ModelOptimizer,
        schedule: impl LrSchedule + 'static,
        seed: u64,
        total_updates: u64,
    ) -> Result<Session<M>, TrainError> {
        let Self { mut stages, model, adaptation, device, order, mut pass, world, opens_disk } = self;
        let [master_on_host, replica_on_host, held_on_host] = order.on_host();
        let placement = Placement { master_on_host, replica_on_host, held_on_host };
        settle_products(&device);
        if order.quantizes() && world.size() > 1 {
            adaptation.require_same_quantized(&world)?;
        }
        // A pass copies packed matrices that are elsewhere.
        let home = if replica_on_host { host_device() } else { device.clone() };
        device.memory_persistent_allocations((), |()| adaptation.place_quantized(&home));
        let mut bytes = ParameterBytes::of(&model, &adaptation, placement);
        let owned = (model, &mut stages);
        let master =
            device.memory_persistent_allocations(owned, |(model, stages)| stages.init_master(model))?;
        adaptation.parts().map_or(Ok(()), |parts| parts.check())?;
        let mut disk = match order.on_disk().filter(|_| opens_disk) {
            Some(OnDisk { folder, bucket_bytes }) => Some(Disk::create(folder, *bucket_bytes, world.rank())?),
            None => None,
        };
        let (offloaded, master) = match disk.as_mut().filter(|_| order.offloads_parameters_to_disk()) {
            None => (None, master),
            Some(disk) => {
                let offloaded = disk.offload(master, |id| pass.provides(id));
                // Ranks exchange parameters on their way to the disk: a lost rank is not an error of this disk.
                pass.check()?;
                let (offloaded, master) = offloaded?;
                pass = pass.reading(offloaded.clone());
                (Some(offloaded), master)
            }
        };
        let outline = |master: &M| match &offloaded {
            None => master.clone(),
            Some(offloaded) => offloaded.outline(master.clone(), Values::Master, true),
        };
        let owned = outline(&master);
        // Another stage of a pipeline may have what is trained.
        let is_stage = adaptation.parts().is_some_and(|parts| parts.pipeline().is_some());
        if trained(&owned).is_empty() && !is_stage {
            return Err(TrainError::NothingTrained);
        }
        let before = dtypes(&owned);
        drop(owned);
        let pair = match &offloaded {
            None => published(&pass, &mut stages, master)?,
            Some(offloaded) => {
                stages.updated(&master);
                published_to_disk(&mut stages, offloaded, master, order.moves())?
            }
        };
        let owned = outline(&pair.0);
        let weights = Weights::new(pair, offloaded);
        let changed = before.into_iter().zip(dtypes(&owned)).find(|(before, after)| before != after);
        if let Some(((path, _), _)) = changed {
            return Err(TrainError::SharedState { path });
        }
        let is_tied = tied(weights.master());
        let scale = adaptation.low_rank().map(|factors| factors.scale());
        let layout = Arc::new(
            Layout::of(&owned, &mut stages, &world, adaptation.parts().map(|parts| &**parts))
                .scaling(scale)
                .packing(adaptation.packed_bases()),
        );
        bytes.count(weights.master(), weights.replica(), stages.averaged().as_ref());
        if let Some(disk) = &mut disk {
            disk.take_state(&mut optimizer, &owned)?;
            bytes.count_disk(disk.bytes(), disk.file());
        }
        drop(owned);
        let schedule: (Arc<dyn LrSchedule>, _) = (Arc::new(schedule), total_updates);
        Ok(Session {
            memory: MemoryProbe::new(bytes, pass.device()),
            updater: Updater::new(optimizer, disk, schedule, is_tied, pass.dtype(), order.moves()),
            ranks: Ranks::new(world, order.ranks_per_batch()),
            evaluation_dtype: order.evaluation_dtype(),
            stages,
            adaptation,
            layout,
            weights,
            pass,
            seed,
        })
    }
}
