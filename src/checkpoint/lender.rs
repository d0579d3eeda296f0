//! Reading and restoring the optimizer's state without a second copy of all of it.
//!
//! Burn reads and writes the state of all parameters at once, and builds its record only from serialized bytes. But
//! an optimizer may have separate parts for groups of parameters, and builds its record from the states that these
//! parts report. An optimizer whose part for all parameters is a [`Lender`] therefore yields a record of any given
//! tensors, and an optimizer that hands all but a few parameters to a [`Lender`] yields a record of those few.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use burn::module::{Module, ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use firebrick_strategies::each_distinct_param;

use super::ResumeError;

/// The field in which Burn notes the parameter's number of axes.
pub(super) const AXES: &str = "__rank";

/// The bytes of parameters whose states are read at once.
const AT_ONCE: usize = 1 << 20;

fn unfit(reason: impl ToString) -> ResumeError {
    ResumeError::Optimizer { reason: reason.to_string() }
}

/// A parameter's state: tensors and scalars by their full names.
#[derive(Default)]
pub(super) struct ParameterState {
    /// The number of axes of the parameter.
    pub rank: usize,
    pub tensors: Vec<(String, TensorData)>,
    pub scalars: Vec<(String, burn_pack::Scalar)>,
}

impl ParameterState {
    /// Adds a number by its full name and its field.
    pub fn add_scalar(&mut self, name: String, field: &str, value: burn_pack::Scalar) {
        match (field, usize::try_from(value)) {
            (AXES, Ok(axes)) => self.rank = axes,
            _ => self.scalars.push((name, value)),
        }
    }
}

/// Builds the record of the states by parameter, with the parameters' paths. It copies no tensor.
pub(super) fn record_of(
    states: BTreeMap<ParamId, ParameterState>,
    paths: &BTreeMap<&str, ParamId>,
) -> Result<OptimizerRecord, ResumeError> {
    let mut writer = burn_pack::Writer::new(Vec::new());
    for (id, state) in &states {
        writer = writer.with_scalar(&format!("{}.{AXES}", id.val()), burn_pack::Scalar::from(state.rank));
    }
    for (path, id) in paths {
        // A parameter's group in the optimizer may depend on its path.
        writer = writer.with_metadata(&id.val().to_string(), path);
    }
    let states = states.into_iter().map(|(id, state)| (id.val().to_string(), state)).collect();
    let known = OptimizerRecord::from_bytes(writer.into_bytes().map_err(unfit)?).map_err(unfit)?;
    let lender = Lender { states: Mutex::new(states) };
    let lending = SgdConfig::new().init().with_group(ParamGroup::all(), lender, None);
    Ok(lending.load_record(known).to_record())
}

/// The size of an optimizer's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateSize {
    pub tensors: usize,
    pub bytes: usize,
}

impl StateSize {
    /// Measures the optimizer's state of a model's parameters, copying the states of a few parameters at a time.
    pub fn of<M: Module>(optimizer: &ModuleOptimizer, model: &M) -> Self {
        let mut size = Self::default();
        for ids in few(model) {
            let bytes = of_few(optimizer, ids).to_record().into_bytes();
            let tensors =
                bytes.ok().and_then(|bytes| burn_pack::Reader::from_bytes(bytes).ok()?.into_tensors().ok());
            for tensor in tensors.iter().flatten() {
                size.tensors += 1;
                size.bytes += tensor.byte_len();
            }
        }
        size
    }
}

/// Returns the optimizer with the states of these parameters alone. It is not to be stepped.
pub(super) fn of_few(optimizer: &ModuleOptimizer, ids: Vec<ParamId>) -> ModuleOptimizer {
    let others = ParamGroup::all().exclude(ParamGroup::from_ids(ids));
    optimizer.clone().with_group(others, Lender::default(), None)
}

/// The parameters of a model, each once, in runs of about [`AT_ONCE`] bytes.
fn few<M: Module>(model: &M) -> Vec<Vec<ParamId>> {
    let (mut runs, mut sum) = (Vec::<Vec<ParamId>>::new(), 0);
    each_distinct_param(model, |param| {
        let bytes = param.bytes();
        if runs.is_empty() || sum + bytes > AT_ONCE {
            runs.push(Vec::new());
            sum = 0;
        }
        sum += bytes;
        if let Some(run) = runs.last_mut() {
            run.push(param.id());
        }
    });
    runs
}

/// An optimizer part that updates nothing and reports the states that it was given.
#[derive(Default)]
struct Lender {
    states: Mutex<BTreeMap<String, ParameterState>>,
}

impl DynOptimizer for Lender {
    fn step_dyn(
        &self,
        _: usize,
        _: f64,
        tensor: BridgeTensor,
        _: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        (tensor, state)
    }

    fn to_device_dyn(&self, state: DynState, _: &Device) -> DynState {
        state
    }

    fn state_flatten(&self, prefix: &str, _: &DynState, out: &mut StateSink) {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ParameterState { tensors, scalars, .. }) = states.remove(prefix) {
            out.tensors.extend(tensors);
            out.scalars.extend(scalars);
        }
    }

    fn state_unflatten(&self, rank: usize, _: &str, _: &mut StateSource, _: &Device) -> Option<DynState> {
        Some(DynState::create((), rank))
    }
}
