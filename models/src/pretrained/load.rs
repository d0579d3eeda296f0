//! Loads tensors of a folder into the parameters of a model.

use std::collections::{BTreeMap, HashMap, HashSet};

use burn::module::{Module, ModuleMapper, Param};
use burn::store::{FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot, PyTorchToBurnAdapter};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_pack::{Error as PackError, Tensor as StoredTensor};
use firebrick_strategies::{Paths, each_param, learns};

use super::folder::is_read;
use super::key_map::Key;
use super::{Folder, KeyMap, Layout, Pretrained, PretrainedError, Unfit};
use crate::gpt::drawn_now;

/// A model loaded from a folder.
#[derive(Debug)]
pub struct Loaded<M> {
    /// The model.
    pub model: M,
    /// Tensors missing from the folder and newly initialized, by their names in saved files: those of a new head.
    pub fresh: Vec<String>,
    /// Tensors of the folder that were not read: those of other heads, further names of tied tensors, and tensors
    /// that are not parameters.
    pub unread: Vec<String>,
}

impl Folder {
    /// Loads the folder's weights as a model in f32, reading one tensor at a time.
    ///
    /// If the folder lacks all of a head, the head is initialized and [listed](Loaded::fresh), as for a new task.
    ///
    /// # Errors
    ///
    /// The tensors do not match the model's, with all differences by name; or a file cannot be read.
    pub fn load<M: Pretrained>(
        &self,
        config: &M::Config,
        device: &Device,
    ) -> Result<Loaded<M>, PretrainedError> {
        let (mut model, found) = self.prepare::<M>(config, device)?;
        let result = model.apply(found.tensors, None, None, false);
        if let Some(error) = result.errors.first() {
            return Err(PretrainedError::file(self.path(), "read a tensor", error));
        }
        Ok(Loaded { model: drawn_now(model), fresh: found.fresh, unread: found.unread })
    }

    /// Like [`load`](Self::load), but reads each tensor when it is first used. With a strategy that shards or moves
    /// the parameters, [`Zero`](firebrick::Zero) or [`Offload`](firebrick::Offload), the whole model is never in memory: each
    /// rank reads a tensor, keeps its part and drops the rest.
    ///
    /// The files must not change until then.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load), except for files that become unreadable later.
    ///
    /// # Panics
    ///
    /// Not here, but at the first use of a parameter whose file, which was intact when the folder was opened, can no
    /// longer be read.
    pub fn load_later<M: Pretrained>(
        &self,
        config: &M::Config,
        device: &Device,
    ) -> Result<Loaded<M>, PretrainedError> {
        let (model, found) = self.prepare::<M>(config, device)?;
        let tensors: HashMap<_, _> =
            found.tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut later = Later { path: Vec::new(), tensors };
        Ok(Loaded { model: model.map(&mut later), fresh: found.fresh, unread: found.unread })
    }

    /// Whether the folder contains any tensor of this head, or those that are elsewhere are of the model's class.
    pub fn has_head<M: Pretrained>(&self, config: &M::Config, head: &str) -> bool {
        let stored = || {
            let keys = M::keys(config);
            let of_head = |key: &&Key| key.head == Some(head);
            keys.keys().iter().filter(of_head).any(|key| self.stored(&keys, key).is_some())
        };
        self.head_elsewhere(head, M::architecture(config)).unwrap_or_else(stored)
    }

    /// The paths of the parameters to initialize, because the folder lacks all of their head.
    pub fn fresh_paths<M: Pretrained>(&self, config: &M::Config) -> Vec<String> {
        let keys = M::keys(config);
        let is_fresh = |key: &&Key| key.head.is_some_and(|head| !self.has_head::<M>(config, head));
        keys.keys().iter().filter(is_fresh).map(|key| key.path.clone()).collect()
    }

    /// The folder without this head, which is then newly initialized.
    pub fn without_head<M: Pretrained>(mut self, config: &M::Config, head: &str) -> Self {
        let keys = M::keys(config);
        let of_head = keys.keys().iter().filter(|key| key.head == Some(head));
        let tensors: Vec<String> = of_head.flat_map(|key| keys.names_of(key)).collect();
        self.leave_out(head, &tensors);
        self
    }

    /// The values of the parameters that have [grown](Self::growing), by their paths: tables of tokens, and of a head with
    /// its bias. None if the folder does not grow. The files are read again, also after
    /// [`close_weights`](Self::close_weights).
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn grown<M: Pretrained>(
        &self,
        config: &M::Config,
    ) -> Result<Vec<(String, TensorData)>, PretrainedError> {
        let Some(growth) = self.growth() else { return Ok(Vec::new()) };
        let (folder, keys) = (Self::open(self.path())?, M::keys(config));
        let shapes = shapes_of(&M::init(config, &Device::flex()));
        let mut grown = Vec::new();
        for key in keys.keys() {
            let (Some(shape), Some((tensor, _))) = (shapes.get(&key.path), folder.stored(&keys, key)) else {
                continue;
            };
            if !growth.lacks(&tensor.shape.to_vec(), &in_file(shape, key.layout)) || !is_read(tensor.dtype) {
                continue;
            }
            let tensor = as_parameter(growth.grow(in_f32(tensor.clone())), &key.path, key.layout);
            let shape = tensor.shape.clone();
            let bytes = tensor.into_bytes();
            let bytes = bytes.map_err(|error| PretrainedError::file(self.path(), "read a tensor", error))?;
            grown.push((key.path.clone(), TensorData::from_bytes(bytes, shape, DType::F32)));
        }
        Ok(grown)
    }

    /// The tensor of a parameter, with its name.
    fn stored(&self, keys: &KeyMap, key: &Key) -> Option<(&StoredTensor, String)> {
        let name = keys.names_of(key).into_iter().find(|name| self.tensors().contains_key(name))?;
        Some((self.tensors().get(&name)?, name))
    }

    /// A model without weights, and the tensors to load into it.
    fn prepare<M: Pretrained>(
        &self,
        config: &M::Config,
        device: &Device,
    ) -> Result<(M, FoundTensors), PretrainedError> {
        M::check(config)?;
        let model = M::init(config, device);
        let found = self.match_up(&M::keys(config), &shapes_of(&model), M::architecture(config))?;
        Ok((model, found))
    }

    fn match_up(
        &self,
        keys: &KeyMap,
        shapes: &BTreeMap<String, Vec<usize>>,
        architecture: &str,
    ) -> Result<FoundTensors, PretrainedError> {
        let mut unfit =
            Unfit { folder: self.path().into(), architecture: architecture.into(), ..Unfit::default() };
        let stored = |key: &Key| self.stored(keys, key);
        let present: HashSet<_> =
            keys.keys().iter().filter(|key| stored(key).is_some()).filter_map(|key| key.head).collect();
        let (mut tensors, mut fresh, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
        let by_path = keys.by_path();
        for (path, shape) in shapes {
            let Some(key) = by_path.get(path.as_str()) else {
                unfit.missing.push((path.clone(), shape.clone()));
                continue;
            };
            let expected = in_file(shape, key.layout);
            let Some((tensor, name)) = stored(key) else {
                match key.head {
                    Some(head) if !present.contains(head) => fresh.push(key.name.clone()),
                    _ if key.is_optional => {}
                    _ => unfit.missing.push((key.name.clone(), expected)),
                }
                continue;
            };
            let shape = tensor.shape.to_vec();
            let growth = self.growth().filter(|growth| growth.lacks(&shape, &expected));
            if shape != expected && growth.is_none() {
                unfit.misshapen.push((name.clone(), expected, tensor.shape.to_vec()));
            } else if !is_read(tensor.dtype) {
                unfit.mistyped.push((name.clone(), format!("{:?}", tensor.dtype)));
            } else {
                let tensor = match growth {
                    Some(growth) => growth.grow(in_f32(tensor.clone())),
                    None => tensor.clone(),
                };
                tensors.push(as_parameter(tensor, path, key.layout));
            }
            taken.insert(name);
        }
        let mut unread = Vec::new();
        for (name, tensor) in self.tensors().iter().filter(|(name, _)| !taken.contains(*name)) {
            match keys.alias_of(name) {
                Some(key) if self.differ(&[name], &keys.names_of(key))? => {
                    unfit.untied.push((name.clone(), key.name.clone()));
                }
                None if !keys.ignores(name) => unfit.extra.push((name.clone(), tensor.shape.to_vec())),
                _ => unread.push(name.clone()),
            }
        }
        match unfit.is_empty() {
            true => Ok(FoundTensors { tensors, fresh, unread }),
            false => Err(PretrainedError::Tensors(Box::new(unfit))),
        }
    }
}

struct FoundTensors {
    tensors: Vec<StoredTensor>,
    fresh: Vec<String>,
    unread: Vec<String>,
}

fn in_file(shape: &[usize], layout: Layout) -> Vec<usize> {
    match layout {
        Layout::Same => shape.to_vec(),
        Layout::Transposed => shape.iter().rev().copied().collect(),
    }
}

/// The tensor under the parameter's path, in f32 and in the parameter's layout. It does not read the values yet.
fn as_parameter(mut tensor: StoredTensor, path: &str, layout: Layout) -> StoredTensor {
    let name = std::mem::replace(&mut tensor.name, path.to_owned());
    transposed(finite(in_f32(tensor), name), layout)
}

fn in_f32(tensor: StoredTensor) -> StoredTensor {
    FloatCastAdapter::to(DType::F32).adapt(tensor, ModuleContext::new(&[]))
}

/// The same tensor in f32, which cannot be read if a number in it is not finite. A run would skip every update, and look
/// as if it had diverged.
fn finite(tensor: StoredTensor, name: String) -> StoredTensor {
    let (path, dtype, shape) = (tensor.name.clone(), tensor.dtype, tensor.shape.clone());
    StoredTensor::deferred(path, dtype, shape, tensor.param_id, tensor.byte_len(), move || {
        let bytes = tensor.to_bytes()?;
        let mut numbers =
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap_or_default()));
        match numbers.position(|number| !number.is_finite()) {
            None => Ok(bytes),
            Some(at) => Err(PackError::ValidationError(format!(
                "`{name}`: expected finite numbers, found NaN or infinity at index {at}; download the model again, or take \
                 one that was saved before its training diverged"
            ))),
        }
    })
}

/// Burn's store transposes the weights of linear layers, in either direction.
pub(super) fn transposed(tensor: StoredTensor, layout: Layout) -> StoredTensor {
    match layout {
        Layout::Same => tensor,
        Layout::Transposed => {
            PyTorchToBurnAdapter.adapt(tensor, ModuleContext::new(&["Struct:Linear".to_owned()]))
        }
    }
}

/// Makes parameters read their tensors at their first use. Newly initialized parameters are drawn at once.
struct Later {
    path: Vec<String>,
    /// The tensors by path.
    tensors: HashMap<String, StoredTensor>,
}

impl ModuleMapper for Later {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(tensor) = self.tensors.remove(&self.path.join(".")) else {
            let _ = param.base();
            return param;
        };
        let (device, shape) = (param.lazy_device(), param.lazy_shape());
        let read = move |device: &Device, require_grad: bool| {
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            match tensor.into_bytes() {
                Ok(bytes) => {
                    let data = TensorData::from_bytes(bytes, shape, DType::F32);
                    Tensor::from_data(data, (device, DType::F32)).set_require_grad(require_grad)
                }
                Err(PackError::ValidationError(reason)) => panic!("{reason}"),
                Err(error) => panic!(
                    "the tensor of `{name}` can no longer be read: {error}; do not change the folder until the run \
                     has started, and start the run again"
                ),
            }
        };
        Param::uninitialized(param.id, read, device, learns(&param), shape)
    }
}

/// The shape of each float parameter by path. It does not initialize lazy parameters.
fn shapes_of<M: Module>(model: &M) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = Vec::new();
    each_param(model, |param| shapes.push(param.shape()));
    Paths::of(model).places().iter().map(|place| place.path.clone()).zip(shapes).collect()
}
