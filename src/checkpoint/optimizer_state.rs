//! The optimizer's state, from its record of this process to tensors by path and back.
//!
//! Burn names a parameter's state by an id that is drawn anew in each process, as `ID.FIELD`; a checkpoint
//! names it `PATH/FIELD`.

use std::collections::BTreeMap;

use burn::module::ParamId;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Shape};
use firebrick_checkpoints::{Piece, Scalar, Tensors};

use super::ResumeError;
use super::layout::Layout;
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

/// The optimizer with the state that was saved, of the parts that this rank holds; and their bytes.
///
/// # Errors
///
/// The state is that of another kind of optimizer.
pub(crate) fn load_optimizer(
    optimizer: ModuleOptimizer,
    layout: &Layout,
    saved: &Tensors,
) -> Result<(ModuleOptimizer, usize), ResumeError> {
    let ids: BTreeMap<&str, ParamId> = layout.places().map(|(id, place)| (place.path.as_str(), id)).collect();
    let mut tensors = Vec::new();
    for name in saved.names() {
        let (id, field) = of_id(&ids, name)?;
        let (place, info) = (layout.place(id), saved.info(name));
        let (Some(place), Some(info)) = (place, info) else { continue };
        let dtype = tensor_dtype(name, info.dtype)?;
        let (shape, bytes) = read_part(saved, name, &info.shape, place.shard.as_ref())?;
        let name = format!("{}.{field}", id.val());
        let bytes = Bytes::from_bytes_vec(bytes);
        tensors.push(burn_pack::Tensor::new(name, dtype, Shape::from(shape), Some(id.val()), bytes));
    }
    let (count, size) = (tensors.len(), tensors.iter().map(burn_pack::Tensor::byte_len).sum());
    let mut writer = burn_pack::Writer::new(tensors);
    for (name, value) in saved.scalars() {
        let (id, field) = of_id(&ids, name)?;
        writer = writer.with_scalar(&format!("{}.{field}", id.val()), from_file(value));
    }
    for (path, id) in &ids {
        // Which group of the optimizer a parameter belongs to may depend on its path.
        writer = writer.with_metadata(&id.val().to_string(), path);
    }
    let record = OptimizerRecord::from_bytes(writer.into_bytes().map_err(unfit)?).map_err(unfit)?;
    let optimizer = optimizer.load_record(record);
    // Burn leaves out what it cannot use.
    let loaded = optimizer.to_record().len();
    if loaded != count {
        return Err(unfit(format!(
            "of {count} saved tensors it can use {loaded}; name the kind of optimizer that was saved"
        )));
    }
    Ok((optimizer, size))
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
