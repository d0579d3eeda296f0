//! The states of Burn's [`ModuleOptimizer`], read and restored without a second copy of all of them.
//!
//! Burn reads and writes the state of all parameters at once, and builds its record only from serialized bytes. But
//! an optimizer may have separate parts for groups of parameters, and builds its record from the states that these
//! parts report. An optimizer whose part for all parameters is a [`Lender`] therefore yields a record of any given
//! tensors, and an optimizer that hands all but a few parameters to a [`Lender`] yields a record of those few.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use burn::module::{ParamGroup, ParamId};
use burn::optim::{
    DynOptimizer, DynState, ModuleOptimizer, OptimizerRecord, SgdConfig, StateSink, StateSource,
};
use burn::store::RecordError;
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, TensorData};
use burn_pack::{Reader, Scalar, Writer};

use super::states::{OptimizerStates, ParamState};

/// The field in which Burn notes the parameter's number of axes.
const AXES: &str = "__rank";

/// Returns the states of some parameters, or of all.
pub(super) fn states(
    optimizer: &ModuleOptimizer,
    ids: Option<&HashSet<ParamId>>,
) -> Result<OptimizerStates, RecordError> {
    let record = match ids {
        None => optimizer.to_record(),
        Some(ids) => {
            let others = ParamGroup::all().exclude(ParamGroup::from_ids(ids.iter().copied().collect()));
            optimizer.clone().with_group(others, Lender::default(), None).to_record()
        }
    };
    let reader = Reader::from_bytes(record.into_bytes()?)?;
    let mut states = OptimizerStates::new();
    let mut of = |name: &str, put: &mut dyn FnMut(&mut ParamState, &str)| {
        if let Some((id, field)) = name.split_once('.')
            && let Ok(id) = id.parse::<u64>()
            && ids.is_none_or(|ids| ids.contains(&ParamId::from(id)))
        {
            put(states.entry(ParamId::from(id)).or_default(), field);
        }
    };
    for (name, value) in reader.scalars() {
        of(name, &mut |state, field| match (field, usize::try_from(*value)) {
            (AXES, Ok(axes)) => state.axes = axes,
            _ => state.scalars.push((field.into(), *value)),
        });
    }
    for (id, path) in reader.metadata() {
        of(&format!("{id}."), &mut |state, _| state.path = Some(path.clone()));
    }
    for tensor in reader.into_tensors()? {
        let (name, dtype, shape, _, bytes) = tensor.into_parts()?;
        let mut data = Some(TensorData::from_bytes(bytes, shape, dtype));
        of(&name, &mut |state, field| state.tensors.extend(data.take().map(|data| (field.into(), data))));
    }
    Ok(states)
}

/// Replaces all states. It copies no tensor.
pub(super) fn load(optimizer: &mut ModuleOptimizer, states: OptimizerStates) -> Result<(), RecordError> {
    let mut writer = Writer::new(Vec::new());
    for (id, state) in &states {
        writer = writer.with_scalar(&format!("{}.{AXES}", id.val()), Scalar::from(state.axes));
        if let Some(path) = &state.path {
            writer = writer.with_metadata(&id.val().to_string(), path);
        }
    }
    let known = OptimizerRecord::from_bytes(writer.into_bytes()?)?;
    let states = states.into_iter().map(|(id, state)| (id.val().to_string(), state)).collect();
    let lender = Lender { states: Mutex::new(states) };
    let lending = SgdConfig::new().init().with_group(ParamGroup::all(), lender, None);
    *optimizer = optimizer.clone().load_record(lending.load_record(known).to_record());
    Ok(())
}

/// An optimizer part that updates nothing and reports the states that it was given.
#[derive(Default)]
struct Lender {
    states: Mutex<BTreeMap<String, ParamState>>,
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
        if let Some(ParamState { tensors, scalars, .. }) = states.remove(prefix) {
            tensors.into_iter().for_each(|(field, data)| out.push_tensor(prefix, &field, data));
            scalars.into_iter().for_each(|(field, value)| out.push_scalar(prefix, &field, value));
        }
    }

    fn state_unflatten(&self, rank: usize, _: &str, _: &mut StateSource, _: &Device) -> Option<DynState> {
        Some(DynState::create((), rank))
    }
}
