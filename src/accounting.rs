//! Bytes of what a run keeps: parameters, gradients, optimizer state.

use std::collections::HashSet;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, Tensor};

use firebrick_strategies::Paths;

use crate::memory::in_use;

/// Bytes between two steps, each distinct tensor counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ParameterBytes {
    /// The number of parameters.
    pub parameters: usize,
    pub master: usize,
    /// What the replica holds beyond the master: nothing where they share tensors.
    pub replica: usize,
    pub gradients: usize,
    pub optimizer: usize,
}

impl ParameterBytes {
    /// Counts master and replica. A replica's tensor of the master's dtype is the master's own.
    pub fn of<M: Module>(master: &M, replica: &M) -> Self {
        let (master, replica) = (Tensors::of(master), Tensors::of(replica));
        let own =
            replica.tensors.iter().zip(&master.tensors).filter(|(replica, master)| replica.1 != master.1);
        Self {
            parameters: master.tensors.iter().map(|(elements, _)| elements).sum(),
            master: master.bytes(),
            replica: own.map(|((elements, dtype), _)| elements * dtype.size()).sum(),
            ..Self::default()
        }
    }

    /// Counts the optimizer's state too.
    pub fn with_optimizer(self, optimizer: &ModuleOptimizer) -> Self {
        let tensors = optimizer.to_record().into_bytes().ok().and_then(|bytes| {
            let reader = burn_pack::Reader::from_bytes(bytes).ok()?;
            reader.into_tensors().ok()
        });
        let bytes = tensors.iter().flatten().map(burn_pack::Tensor::byte_len).sum();
        Self { optimizer: bytes, ..self }
    }
}

/// The path and dtype of each float parameter and running state.
pub(crate) fn dtypes<M: Module>(model: &M) -> Vec<(String, DType)> {
    struct Dtypes(Vec<DType>);
    impl ModuleVisitor for Dtypes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.base().dtype());
        }
    }
    let mut dtypes = Dtypes(Vec::new());
    model.visit(&mut dtypes);
    Paths::of(model).places().iter().map(|place| place.path.clone()).zip(dtypes.0).collect()
}

/// Measures what an optimizer keeps, by what its first update leaves in use: its state cannot be
/// counted without copying it.
pub(crate) struct FirstUpdate {
    bytes: ParameterBytes,
    before: Option<usize>,
}

impl FirstUpdate {
    /// Before an update, of which only the first is measured.
    pub fn begins(is_first: bool, bytes: ParameterBytes, device: &Device) -> Self {
        let before = if is_first { in_use(device) } else { None };
        Self { bytes, before }
    }

    /// After it: bytes of the optimizer's state. The update has freed the gradients, and made the
    /// replica anew.
    pub fn ends(self, device: &Device) -> usize {
        match (self.before, self.before.and_then(|_| in_use(device))) {
            (Some(before), Some(after)) => {
                (after + self.bytes.gradients).saturating_sub(before + self.bytes.replica)
            }
            _ => self.bytes.optimizer,
        }
    }
}

/// Bytes of the gradients of a model's parameters.
pub(crate) fn tensor_bytes<M: Module>(model: &M, grads: &GradientsParams) -> usize {
    struct Sum<'a>(&'a GradientsParams, HashSet<ParamId>, usize);
    impl ModuleVisitor for Sum<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1.insert(param.id)
                && let Some(grad) = self.0.get::<D>(param.id)
            {
                self.2 += grad.shape().num_elements() * grad.dtype().size();
            }
        }
    }
    let mut sum = Sum(grads, HashSet::new(), 0);
    model.visit(&mut sum);
    sum.2
}

#[derive(Default)]
struct Tensors {
    seen: HashSet<ParamId>,
    /// Of each: its elements, and their dtype.
    tensors: Vec<(usize, DType)>,
}

impl Tensors {
    fn of<M: Module>(model: &M) -> Self {
        let mut tensors = Self::default();
        model.visit(&mut tensors);
        tensors
    }

    fn bytes(&self) -> usize {
        self.tensors.iter().map(|(elements, dtype)| elements * dtype.size()).sum()
    }
}

impl ModuleVisitor for Tensors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.seen.insert(param.id) {
            let value = param.base();
            self.tensors.push((value.shape().num_elements(), value.dtype()));
        }
    }
}
