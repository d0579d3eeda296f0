//! The optimizer's state, from its record of this process to tensors by path and back.
//!
//! Burn names a parameter's state by an id that is drawn anew in each process, as `ID.FIELD`; a checkpoint
//! names it `PATH/FIELD`.

use std::collections::BTreeMap;

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bytes, TensorData};
use firebrick_checkpoints::{Piece, Scalar, Tensors};

use super::ResumeError;
use super::layout::Layout;
use super::lender::{State, StateSize, record_of};
use super::load::{read_part, tensor_dtype};
use super::pieces::piece;

fn unfit(reason: impl ToString) -> ResumeError {
    ResumeError::Optimizer { reason: reason.to_string() }
}

/// What this rank writes of a record's bytes.
pub(super) fn pieces(
    record: Bytes,
    layout: &Layout,
) -> Result<(Vec<Piece>, BTreeMap<String, Scalar>), ResumeError> {
    let reader = burn_pack::Reader::from_bytes(record).map_err(unfit)?;
    let mut scalars = BTreeMap::new();
    for (name, value) in reader.scalars() {
        let Some((place, field)) = of_place(layout, name) else { continue };
        if place.writes_scalars() {
            scalars.insert(format!("{}/{field}", place.path), to_file(*value));
        }
    }
    let mut pieces = Vec::new();
    for tensor in reader.into_tensors().map_err(unfit)? {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(unfit)?;
        let Some((place, field)) = of_place(layout, &name) else { continue };
        pieces.extend(piece(place, format!("{}/{field}", place.path), dtype, &shape, bytes));
    }
    Ok((pieces, scalars))
}

/// The parameter that `ID.FIELD` is of, and the field.
fn of_place<'a, 'b>(layout: &'a Layout, name: &'b str) -> Option<(&'a super::layout::Place, &'b str)> {
    let (id, field) = name.split_once('.')?;
    Some((layout.place(ParamId::from(id.parse::<u64>().ok()?))?, field))
}

/// The optimizer with the state that was saved, of the parts of `master`'s parameters that this rank holds; and its
/// bytes. What is read is handed over, so that it is in memory once.
///
/// # Errors
///
/// The state is that of another kind of optimizer.
pub(crate) fn load_optimizer<M: Module>(
    optimizer: ModuleOptimizer,
    master: &M,
    layout: &Layout,
    saved: &Tensors,
) -> Result<(ModuleOptimizer, usize), ResumeError> {
    let ids: BTreeMap<&str, ParamId> = layout.places().map(|(id, place)| (place.path.as_str(), id)).collect();
    let mut states = BTreeMap::<ParamId, State>::new();
    let mut count = 0;
    for name in saved.names() {
        let (id, field) = of_id(&ids, name)?;
        let (place, info) = (layout.place(id), saved.info(name));
        let (Some(place), Some(info)) = (place, info) else { continue };
        let dtype = tensor_dtype(name, info.dtype)?;
        let (shape, bytes) = read_part(saved, name, &info.shape, place.shard.as_ref())?;
        let state = states.entry(id).or_default();
        state.rank = state.rank.max(shape.len());
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
        state.tensors.push((format!("{}.{field}", id.val()), data));
        count += 1;
    }
    let mut ranks = BTreeMap::new();
    for (name, value) in saved.scalars() {
        let (id, field) = of_id(&ids, name)?;
        let (state, value) = (states.entry(id).or_default(), from_file(value));
        match (field, usize::try_from(value)) {
            ("__rank", Ok(rank)) => drop(ranks.insert(id, rank)),
            _ => state.scalars.push((format!("{}.{field}", id.val()), value)),
        }
    }
    for (id, rank) in ranks {
        states.entry(id).or_default().rank = rank;
    }
    let optimizer = optimizer.load_record(record_of(states, &ids)?);
    // Burn leaves out what it cannot use.
    let loaded = StateSize::of(&optimizer, master);
    if loaded.tensors != count {
        return Err(unfit(format!(
            "of {count} saved tensors it can use {}; name the kind of optimizer that was saved",
            loaded.tensors
        )));
    }
    Ok((optimizer, loaded.bytes))
}

/// The parameter that `PATH/FIELD` is of, and the field.
fn of_id<'a>(ids: &BTreeMap<&str, ParamId>, name: &'a str) -> Result<(ParamId, &'a str), ResumeError> {
    let known = name.split_once('/').and_then(|(path, field)| Some((*ids.get(path)?, field)));
    known.ok_or_else(|| unfit(format!("`{name}` is of no parameter of the model")))
}

fn to_file(scalar: burn_pack::Scalar) -> Scalar {
    match scalar {
        burn_pack::Scalar::Int(value) => Scalar::Int(value),
        burn_pack::Scalar::UInt(value) => Scalar::UInt(value),
        burn_pack::Scalar::Float(value) => Scalar::Float(value),
        burn_pack::Scalar::Bool(value) => Scalar::Bool(value),
    }
}

fn from_file(scalar: &Scalar) -> burn_pack::Scalar {
    match scalar {
        Scalar::Int(value) => burn_pack::Scalar::Int(*value),
        Scalar::UInt(value) => burn_pack::Scalar::UInt(*value),
        Scalar::Float(value) => burn_pack::Scalar::Float(*value),
        Scalar::Bool(value) => burn_pack::Scalar::Bool(*value),
    }
}
