//! Distinct storages: the memory that tensors really take, with each block counted once.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Shape, Tensor};

/// The distinct storages of tensors, and how much of each storage each reader reads.
///
/// A tensor may be a view of a storage that others read too, as a shard is of the whole parameter. The memory then
/// holds that storage once, and completely. Each storage is charged to the reader that reads most of it, or to the
/// first of several equal readers.
///
/// On the CPU, an address and a length identify a storage. Burn exposes neither on other backends. There, two tensors
/// of one parameter count as sharing a storage if their dtype, shape and device are equal, and a view counts as a
/// storage of its own size. Gradients and averages of a parameter share no storage with it.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_kernels::memory::Storages;
///
/// let model = LinearConfig::new(8, 4).with_bias(false).init(&Device::flex());
/// model.weight.val(); // Burn draws it now: a parameter without a value takes no memory.
/// let mut storages = Storages::new();
/// storages.add_model(0, &model);
/// storages.add_model(1, &model.clone()); // A copy that shares its tensors.
/// assert_eq!([storages.charged_to(0), storages.charged_to(1)], [4 * 8 * 4, 0]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Storages {
    blocks: HashMap<Storage, Block>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Storage {
    /// In host memory: the start address, and the bytes.
    At(usize, usize),
    /// On a backend that does not expose it.
    Of(Unseen),
}

/// What identifies a storage whose address is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unseen {
    parameter: ParamId,
    role: Role,
    dtype: DType,
    shape: Shape,
    device: Device,
}

// A device has no hash.
impl Hash for Unseen {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.parameter, self.role).hash(state);
    }
}

/// The role of a tensor for its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Value,
    Gradient,
    Average,
}

impl Storage {
    /// Returns a tensor's storage, and its bytes.
    fn of<const D: usize>(parameter: ParamId, role: Role, tensor: &Tensor<D>) -> (Self, usize) {
        match place(tensor) {
            Some((address, bytes)) => (Self::At(address, bytes), bytes),
            None => (Self::unseen(parameter, role, tensor), shown(tensor)),
        }
    }

    /// Returns the storage of a tensor whose backend does not expose it.
    fn unseen<const D: usize>(parameter: ParamId, role: Role, tensor: &Tensor<D>) -> Self {
        let (dtype, shape, device) = (tensor.dtype(), tensor.shape(), plain(tensor).device());
        Self::Of(Unseen { parameter, role, dtype, shape, device })
    }
}

/// Returns the bytes of a storage that a tensor shows.
fn shown<const D: usize>(tensor: &Tensor<D>) -> usize {
    tensor.shape().num_elements() * tensor.dtype().size()
}

#[derive(Clone, Debug, Default)]
struct Block {
    bytes: usize,
    /// Bytes that each reader's tensors show, by the reader's number.
    read: Vec<usize>,
}

impl Block {
    fn charged_to(&self) -> Option<usize> {
        let most = self.read.iter().max()?;
        self.read.iter().position(|read| read == most)
    }
}

impl Storages {
    /// Creates an empty set of storages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor of a parameter, read by the reader with this number.
    pub fn add<const D: usize>(&mut self, reader: usize, parameter: ParamId, tensor: &Tensor<D>) {
        self.charge(reader, parameter, Role::Value, tensor);
    }

    fn charge<const D: usize>(&mut self, reader: usize, parameter: ParamId, role: Role, tensor: &Tensor<D>) {
        let (storage, bytes) = Storage::of(parameter, role, tensor);
        let block = self.blocks.entry(storage).or_default();
        block.bytes = bytes;
        if block.read.len() <= reader {
            block.read.resize(reader + 1, 0);
        }
        block.read[reader] += shown(tensor);
    }

    /// Adds the float parameters of a model that have a value. A tied parameter counts once.
    pub fn add_model<M: Module>(&mut self, reader: usize, model: &M) {
        struct Parameters<'a>(&'a mut Storages, usize, HashSet<ParamId>);
        impl ModuleVisitor for Parameters<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.is_initialized() && self.2.insert(param.id) {
                    self.0.add(self.1, param.id, &param.base());
                }
            }
        }
        model.visit(&mut Parameters(self, reader, HashSet::new()));
    }

    /// Adds an average of a model over the updates, as an exponential moving average is: trained parameters have their own
    /// storage, the others share the model's, or have no value as there.
    pub fn add_average<M: Module>(&mut self, reader: usize, average: &M) {
        struct Averages<'a>(&'a mut Storages, usize, HashSet<ParamId>);
        impl ModuleVisitor for Averages<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if param.is_initialized() && self.2.insert(param.id) {
                    let value = param.base();
                    let role = if value.is_require_grad() { Role::Average } else { Role::Value };
                    self.0.charge(self.1, param.id, role, &value);
                }
            }
        }
        average.visit(&mut Averages(self, reader, HashSet::new()));
    }

    /// Adds the gradients of a model's parameters.
    pub fn add_gradients<M: Module>(&mut self, reader: usize, model: &M, grads: &GradientsParams) {
        struct Gradients<'a>(&'a mut Storages, usize, HashSet<ParamId>, &'a GradientsParams);
        impl ModuleVisitor for Gradients<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.2.insert(param.id)
                    && let Some(grad) = self.3.get::<D>(param.id)
                {
                    self.0.charge(self.1, param.id, Role::Gradient, &grad);
                }
            }
        }
        model.visit(&mut Gradients(self, reader, HashSet::new(), grads));
    }

    /// Returns the bytes of the storages that are charged to the reader with this number.
    pub fn charged_to(&self, reader: usize) -> usize {
        let charged = self.blocks.values().filter(|block| block.charged_to() == Some(reader));
        charged.map(|block| block.bytes).sum()
    }

    /// Returns the bytes of all storages.
    pub fn bytes(&self) -> usize {
        self.blocks.values().map(|block| block.bytes).sum()
    }

    /// Returns the bytes of the storages of gradients.
    pub fn of_gradients<M: Module>(model: &M, grads: &GradientsParams) -> usize {
        let mut storages = Self::new();
        storages.add_gradients(0, model, grads);
        storages.bytes()
    }
}

/// Returns the tensor outside autodiff.
fn plain<const D: usize>(tensor: &Tensor<D>) -> Tensor<D> {
    match tensor.device().is_autodiff() {
        true => tensor.clone().inner(),
        false => tensor.clone(),
    }
}

/// Returns the start and the bytes of a tensor's storage in host memory.
fn place<const D: usize>(tensor: &Tensor<D>) -> Option<(usize, usize)> {
    let tensor = plain(tensor).try_into_primitive::<burn::backend::Flex>().ok()?;
    let bytes = tensor.bytes();
    Some((bytes.as_ptr().addr(), bytes.len()))
}

#[cfg(test)]
mod tests {
    use burn::module::ModuleMapper;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::{DType, Device};

    use super::*;
    use crate::testing;

    const WHOLE: usize = 4 * 8 * 4;
    const MASTER: usize = 0;
    const REPLICA: usize = 1;

    fn linear() -> Linear {
        let linear: Linear = LinearConfig::new(8, 4).with_bias(false).init(&testing::device().autodiff());
        linear.weight.val();
        linear
    }

    /// Returns the model with its weight replaced.
    fn with(model: &Linear, change: impl Fn(Tensor<2>) -> Tensor<2>) -> Linear {
        let changed = Tensor::from_inner(change(model.weight.val().inner())).require_grad();
        Linear { weight: Param::initialized(model.weight.id, changed), ..model.clone() }
    }

    /// Returns the bytes charged to master and replica, and to both together.
    fn charged<M: Module>(master: &M, replica: &M) -> [usize; 3] {
        let mut storages = Storages::new();
        storages.add_model(MASTER, master);
        storages.add_model(REPLICA, replica);
        [storages.charged_to(MASTER), storages.charged_to(REPLICA), storages.bytes()]
    }

    fn is_flex() -> bool {
        testing::device() == Device::flex()
    }

    #[test]
    fn shared_tensors_are_the_masters() {
        let model = linear();
        assert_eq!(charged(&model, &model.clone()), [WHOLE, 0, WHOLE]);
        // Another dtype is another storage.
        let half = with(&model, |weight| weight.cast(DType::F16));
        assert_eq!(charged(&model, &half), [WHOLE, WHOLE / 2, WHOLE / 2 * 3]);
    }

    #[test]
    fn a_master_that_is_a_view_of_the_replica_costs_nothing() {
        if !is_flex() {
            return; // No other backend shows its storages.
        }
        let replica = linear();
        let shard = with(&replica, |weight| weight.slice([2..4, 0..4]));
        assert_eq!(charged(&shard, &replica), [0, WHOLE, WHOLE]);
        // After an update, the shard has its own storage.
        let updated = with(&shard, |weight| weight * 2.0);
        assert_eq!(charged(&updated, &replica), [WHOLE / 4, WHOLE, WHOLE / 4 + WHOLE]);
        // Alone, it still keeps the whole storage that it views.
        let mut storages = Storages::new();
        storages.add_model(MASTER, &shard);
        assert_eq!(storages.bytes(), WHOLE);
    }

    #[test]
    fn equal_numbers_in_another_storage_are_another() {
        if !is_flex() {
            return; // No other backend shows its storages.
        }
        let model = linear();
        let copy = with(&model, |weight| weight * 1.0);
        assert_eq!(charged(&model, &copy), [WHOLE, WHOLE, 2 * WHOLE]);
    }

    #[test]
    fn a_parameter_without_a_value_takes_no_memory() {
        let lazy: Linear = LinearConfig::new(8, 4).with_bias(false).init(&testing::device().autodiff());
        assert_eq!(charged(&lazy, &linear()), [0, WHOLE, WHOLE]);
        assert!(!lazy.weight.is_initialized());
    }

    #[test]
    fn a_tied_parameter_counts_once() {
        let twins = vec![linear(); 2];
        assert_eq!(charged(&twins, &twins), [WHOLE, 0, WHOLE]);
    }

    #[test]
    fn gradients_count_by_what_they_hold() {
        let model = linear();
        let x = Tensor::<2>::ones([3, 8], &testing::device().autodiff());
        let grads = model.forward(x).square().sum().backward();
        let grads = GradientsParams::from_grads(grads, &vec![model.clone(), model.clone()]);
        assert_eq!(Storages::of_gradients(&model, &grads), WHOLE);
        let mut both = Storages::new();
        both.add_model(0, &model);
        both.add_gradients(1, &model, &grads);
        assert_eq!([both.charged_to(0), both.charged_to(1)], [WHOLE, WHOLE]);
        assert_eq!(Storages::of_gradients(&model, &GradientsParams::new()), 0);
        // A view holds the whole larger storage.
        if is_flex() {
            let mut view = GradientsParams::new();
            let grad = Tensor::<2>::zeros([80, 4], &testing::device()).slice([0..8, 0..4]);
            view.register(model.weight.id, grad);
            assert_eq!(Storages::of_gradients(&model, &view), 10 * WHOLE);
        }
    }

    #[test]
    fn an_average_shares_only_frozen_parameters() {
        let model = vec![linear(), linear().no_grad()];
        let mut average = model.clone();
        average[0] = with(&model[0], |weight| weight * 1.0);
        let mut storages = Storages::new();
        storages.add_model(0, &model);
        storages.add_average(1, &average);
        assert_eq!([storages.charged_to(0), storages.charged_to(1)], [2 * WHOLE, WHOLE]);
    }

    #[test]
    fn without_addresses_only_values_share_storage() {
        let model = linear();
        let (id, weight) = (model.weight.id, model.weight.val());
        let value = Storage::unseen(id, Role::Value, &weight);
        assert_eq!(value, Storage::unseen(id, Role::Value, &weight.clone().inner()));
        let gradient = Storage::unseen(id, Role::Gradient, &weight);
        let average = Storage::unseen(id, Role::Average, &weight);
        assert!(value != gradient && value != average && gradient != average);
    }

    #[test]
    fn one_storage_may_hold_several_parameters() {
        if !is_flex() {
            return; // No other backend shows its storages.
        }
        struct Flat(Tensor<1>, usize);
        impl ModuleMapper for Flat {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (start, shape) = (self.1, param.shape());
                self.1 += shape.num_elements();
                let part = self.0.clone().slice(start..self.1).reshape(shape);
                Param::initialized(param.id, Tensor::from_inner(part).require_grad())
            }
        }
        let device = testing::device();
        let model = vec![linear(), linear(), linear()];
        let flat = model.clone().map(&mut Flat(Tensor::ones([96], &device), 0));
        // The master is a part of it: one parameter of three.
        let mut master = model;
        master[1] = flat[1].clone();
        assert_eq!(charged(&master, &flat), [2 * WHOLE, 3 * WHOLE, 5 * WHOLE]);
    }
}
