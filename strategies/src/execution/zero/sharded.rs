//! The live state of ZeRO: shards of the master, gathered parameters, and gradient sums over the ranks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor};
use firebrick_world::host_device;

use super::NAME;
use super::arriving::{Arriving, Destination};
use super::views::{Apart, View};
use crate::{
    Grads, Outcome, Part, Publishes, Reduces, Setup, Shard, Sharding, Stage, StrategyError,
    each_distinct_param, each_param, map_params,
};

/// [`Zero`](crate::Zero), started.
#[derive(Debug)]
pub struct Sharded {
    stage: u8,
    /// Whether gradients are summed once per update, and so in f32, rather than in the dtype of the replica.
    sums_once: bool,
    sharding: Arc<Sharding>,
    /// The parameters that have a gradient, with their whole shapes.
    trained: Vec<(ParamId, Vec<usize>)>,
    /// The dtype and device of each parameter at this strategy's position.
    places: HashMap<ParamId, (DType, Device)>,
    /// The gathers of the last published master, until the master has become a view of what they bring.
    arriving: Arriving,
    destination: Arc<Destination>,
    /// Whether parameters of the master wait on a disk between two updates.
    to_disk: Arc<AtomicBool>,
    /// Where the forward pass runs.
    device: Device,
    /// Whether the master stays on the host, apart from the replica.
    master_is_away: Arc<AtomicBool>,
    /// Whether the next strategy takes gradient sums to the host.
    gradients_land: Arc<AtomicBool>,
}

impl Sharded {
    pub(super) fn new<M>(reduces: &Reduces, sharding: Arc<Sharding>, setup: &Setup<M>) -> Self {
        Self {
            stage: reduces.stage,
            sums_once: !reduces.each_micro_batch,
            sharding,
            trained: Vec::new(),
            places: HashMap::new(),
            arriving: Arriving::default(),
            destination: Arc::new(Destination::of(setup.segments())),
            to_disk: setup.offloads_parameters_to_disk(),
            device: setup.device().clone().inner(),
            master_is_away: setup.master_is_away(),
            gradients_land: setup.gradients_land(),
        }
    }

    /// Whether the forward pass reads whole parameters.
    fn gathers_all(&self) -> bool {
        matches!(self.stage, 1 | 2)
    }

    /// Lists this rank's contributions to the sums, still without gradients.
    fn parts(&self) -> Vec<Part> {
        let parts = self.trained.iter().filter_map(|(id, shape)| {
            let (dtype, _) = *self.places.get(id)?;
            let dtype = if self.sums_once && dtype.size() < 4 { DType::F32 } else { dtype };
            Some(Part { id: *id, shape: shape.clone(), dtype, grad: None })
        });
        parts.collect()
    }
}

impl<M: Module> Stage<M> for Sharded {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        let mut sums = grads.take_delivered();
        let lands = self.gradients_land.load(Relaxed);
        // In stages 2 and 3 the backward pass has already summed them.
        if self.stage < 2 {
            // Gradients of blocks on the host were delivered unsummed.
            let mut parts = self.parts();
            for part in &mut parts {
                if let Some(grad) = sums.remove(&part.id) {
                    part.add(grad);
                }
            }
            let arrive = self.places.values().next().map(|(_, device)| device.clone());
            let to = if lands { host_device() } else { arrive.unwrap_or_else(|| self.device.clone()) };
            sums = self.sharding.reduce_all(master, grads.params_mut(), parts, &to)?.into_iter().collect();
        }
        match lands {
            true => grads = grads.with_delivered(sums),
            false => master.visit(&mut PutSums { sums, places: &self.places, params: grads.params_mut() }),
        }
        if self.stage > 0 {
            grads.set_sharding(self.sharding.clone());
        }
        Ok(Outcome::Apply(grads))
    }

    fn init_master(&mut self, model: M) -> Result<M, StrategyError> {
        let device = if self.master_is_away.load(Relaxed) { host_device() } else { self.device.clone() };
        each_distinct_param(&model, |param| {
            if param.learns() {
                self.trained.push((param.id(), param.shape()));
            }
        });
        match self.to_disk.load(Relaxed) {
            true => Ok(self.sharding.divide_later(model, &device, self.destination.faults())),
            false => self.sharding.divide(model, &device),
        }
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        // A published average of the master is for evaluation and does not tell where gradients arrive.
        if self.places.is_empty() {
            self.places = places(&master);
        }
        self.sharding.published();
        if !self.gathers_all() {
            return Ok(master);
        }
        // The replica's lazy parameters would be taken for those that wait on a disk.
        if self.to_disk.load(Relaxed) {
            return self.sharding.gather(master, "the parameters", |_| true);
        }
        let (replica, arriving) = Arriving::begin(&self.sharding, master, &self.destination)?;
        self.arriving = arriving;
        Ok(replica)
    }

    /// Whole parameters come from the other ranks, all together; shards are published as they are.
    fn publishes(&self) -> Publishes {
        if self.gathers_all() { Publishes::Together } else { Publishes::Each }
    }

    fn evaluator(&mut self, _: &M, replica: M) -> Result<M, StrategyError> {
        if !self.gathers_all() {
            return Ok(replica);
        }
        // Already whole, unless a later strategy made it from the master.
        let shards = rows(&replica);
        let is_shard = |id| {
            let rows = self.sharding.rows(id);
            rows.is_some_and(|rows| {
                rows.rows() != rows.per_rank() && shards.get(&id) == Some(&rows.per_rank())
            })
        };
        self.sharding.gather(replica, "the parameters to evaluate", is_shard)
    }

    fn publish_each(
        &mut self,
        master: Vec<(ParamId, Tensor<1>)>,
    ) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        for (id, value) in &master {
            self.places.entry(*id).or_insert_with(|| (value.dtype(), value.device()));
        }
        self.sharding.published();
        Ok(master)
    }

    fn shard(&self, parameter: ParamId) -> Option<Shard> {
        self.sharding.shard(parameter)
    }

    /// Makes each shard a view of the gathered parameter, if the replica reads that parameter.
    fn alias_master(&mut self, master: M, replica: &M) -> M {
        let padded = std::mem::take(&mut self.arriving).wait();
        each_param(replica, |param| {
            if padded.contains_key(&param.id()) {
                param.value();
            }
        });
        if padded.is_empty() || self.master_is_away.load(Relaxed) {
            return master;
        }
        map_params(master, &mut View { sharding: &self.sharding, padded, replica: places(replica) })
    }

    /// Copies the shards, because a view would keep the whole replica alive through the update.
    fn unalias_master(&mut self, master: M) -> M {
        match self.gathers_all() && !self.master_is_away.load(Relaxed) {
            true => map_params(master, &mut Apart(&self.sharding)),
            false => master,
        }
    }

    fn gather_full(&mut self, master: M, root: Option<usize>) -> Result<Option<M>, StrategyError> {
        self.sharding.whole(master, root)
    }
}

/// Returns the dtype and device of a model's parameters.
fn places<M: Module>(model: &M) -> HashMap<ParamId, (DType, Device)> {
    let mut places = HashMap::new();
    each_param(model, |param| {
        places.insert(param.id(), (param.dtype(), param.device()));
    });
    places
}

/// Returns the number of rows of a model's parameters.
fn rows<M: Module>(model: &M) -> HashMap<ParamId, usize> {
    let mut all = HashMap::new();
    each_param(model, |param| all.extend(param.shape().first().map(|rows| (param.id(), *rows))));
    all
}

/// Puts sums in place of the gradients.
struct PutSums<'a> {
    /// Flat.
    sums: HashMap<ParamId, Tensor<1>>,
    places: &'a HashMap<ParamId, (DType, Device)>,
    params: &'a mut GradientsParams,
}

impl ModuleVisitor for PutSums<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(sum) = self.sums.remove(&param.id)
            && let Some((_, device)) = self.places.get(&param.id)
        {
            let sum = sum.to_device(device).reshape(param.lazy_shape());
            self.params.register::<D>(param.id, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{FloatDType, TensorData};
    use firebrick_world::{Collective, Communicator, DeviceCollectives, World};

    use super::*;
    use crate::{Clip, Composition, Offload, Setup, Zero, testing};

    /// Returns whether gradients that blocks have summed come back to the device before the host takes them.
    fn return_to_the_device(stage: u8, then: impl Composition<Linear>) -> bool {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(64, 32).init(&device);
        let mut setup = Setup::new(&model, &device);
        let mut zero = Zero::stage(stage).start(&mut setup).unwrap();
        let mut then = then.start(&mut setup).unwrap();
        let master = then.init_master(zero.init_master(model.clone()).unwrap()).unwrap();
        zero.publish(then.publish(master.clone()).unwrap()).unwrap();

        let (id, mut found) = (model.weight.id, GradientsParams::new());
        let ones = Tensor::<2>::ones([64, 32], &device.inner());
        let mut delivered = HashMap::new();
        // In stages 2 and 3 a block's segment has delivered the sum.
        match stage {
            0 | 1 => found.register(id, ones.clone()),
            _ => drop(delivered.insert(id, ones.clone().reshape([-1]))),
        }
        let grads = Grads::new(found, true).with_delivered(delivered);
        let Ok(Outcome::Apply(mut grads)) = zero.collect(&master, grads) else { panic!("passed on") };
        let on_device = grads.params_mut().get::<2>(id).is_some();
        assert_eq!(grads.delivered_bytes(), if on_device { 0 } else { 64 * 32 * 4 });
        // They arrive from either place.
        let Ok(Outcome::Apply(grads)) = then.collect(&master, grads) else { panic!("passed on") };
        let arrived = grads.into_params().get::<2>(id).expect("the weight's gradient");
        assert_eq!(arrived.into_data(), ones.into_data());
        on_device
    }

    /// Sums the weight and the bias over two ranks: one rank has no bias gradient, and the other's was delivered.
    fn sums(zero: Zero, on_devices: Option<DeviceCollectives>) -> Vec<[TensorData; 2]> {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(64, 32).init(&device);
        let [weight, bias] = [model.weight.id, model.bias.as_ref().unwrap().id];
        let sums_of = |rank: Communicator| {
            let number = rank.rank() as f32;
            let mut setup = Setup::new(&model, &device).among(rank);
            let mut zero = zero.start(&mut setup).unwrap();
            let master = zero.init_master(model.clone()).unwrap();
            zero.publish(master.clone()).unwrap();
            let (mut found, mut delivered) = (GradientsParams::new(), HashMap::new());
            let ones = Tensor::<2>::ones([64, 32], &device.clone().inner());
            found.register(weight, ones * (0.1 + number));
            if number > 0.0 {
                delivered.insert(bias, Tensor::full([32], 0.7, &device.clone().inner()));
            }
            let grads = Grads::new(found, true).with_delivered(delivered);
            let Ok(Outcome::Apply(grads)) = zero.collect(&master, grads) else { panic!("passed on") };
            let grads = grads.into_params();
            [
                grads.get::<2>(weight).unwrap().into_data(),
                grads.get::<1>(bias).expect("the other rank's").into_data(),
            ]
        };
        let ranks = World::threads(2).join().unwrap();
        thread::scope(|scope| {
            let start =
                |rank: Communicator| scope.spawn(|| sums_of(rank.between_devices(on_devices.clone())));
            let threads: Vec<_> = ranks.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Stands in for NCCL: exchanges the tensors of two ranks, and sums them in rank order.
    fn by_hand() -> DeviceCollectives {
        let ranks = World::threads(2).join().unwrap();
        let collective = move |rank: usize, kind, part| {
            let rank = &ranks[rank];
            match kind {
                Collective::ReduceScatter => rank.reduce_scatter(part),
                Collective::AllGather => rank.all_gather(part),
                _ => rank.all_reduce(part),
            }
        };
        DeviceCollectives::new(vec![testing::device(); 2], move |rank, kind, part| {
            collective(rank, kind, part).unwrap()
        })
    }

    /// A fake sum that returns each rank's own tensor times three, which reveals who took this path.
    fn thrice() -> DeviceCollectives {
        DeviceCollectives::new(vec![testing::device(); 2], |_, _, part| part * 3.0)
    }

    #[test]
    fn devices_add_up_what_the_host_does() {
        let plain = Zero::stage(0);
        let of_host = sums(plain.clone(), None);
        assert_eq!(sums(plain.clone(), Some(by_hand())), of_host);
        // The devices made the sums, not the host.
        assert_ne!(sums(plain, Some(thrice())), of_host);
    }

    #[test]
    fn devices_add_up_in_the_dtype_that_the_gradients_are_to_travel_in() {
        let of_host = sums(Zero::stage(0), None);
        for dtype in [FloatDType::F16, FloatDType::F32, FloatDType::F64] {
            let zero = Zero::stage(0).summing_in(dtype);
            let expected = sums(zero.clone(), None);
            assert_eq!(sums(zero, Some(by_hand())), expected, "{dtype:?}");
            // f16 cannot represent 0.1.
            assert_eq!(expected == of_host, dtype == FloatDType::F32, "{dtype:?}");
        }
    }

    #[test]
    fn what_goes_to_the_host_next_is_left_there() {
        for stage in 0..=3 {
            assert!(!return_to_the_device(stage, Offload::optimizer()), "stage {stage}");
            assert!(return_to_the_device(stage, Clip::norm(1e9)), "stage {stage}");
        }
        for stage in 2..=3 {
            assert!(!return_to_the_device(stage, Offload::parameters()));
        }
    }

    #[test]
    fn a_rank_lost_while_parameters_go_to_a_disk_is_an_error_of_the_pass() {
        let device = testing::device().autodiff();
        let model: Linear = LinearConfig::new(64, 32).init(&device);
        let mut ranks = World::threads(2).join().unwrap();
        ranks.remove(1).fail("its disk is full");
        let mut setup = Setup::new(&model, &device).among(ranks.remove(0));
        let mut zero = Zero::stage(3).start(&mut setup).unwrap();
        setup.offloads_parameters_to_disk().store(true, Relaxed);
        let (master, pass) = (zero.init_master(model.clone()).unwrap(), setup.into_pass());
        assert!(pass.check().is_ok() && !master.weight.is_initialized());
        // Of the shard's shape, as a lost rank ends the run soon.
        assert_eq!(master.weight.val().dims(), [32, 32]);
        let error = pass.check().expect_err("the other rank is lost").to_string();
        assert!(error.contains("its disk is full"), "{error}");
    }
}
