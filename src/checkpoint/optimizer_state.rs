//! Conversion of the optimizer's state between Burn's record and tensors by path.
//!
//! Burn names a parameter's state `ID.FIELD`, with an id that is drawn anew in each process. A checkpoint names it
//! `PATH/FIELD`.

use std::collections::BTreeMap;

use burn::module::{Module, ParamId};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Bytes, TensorData};
use burn::train::Interrupter;
use firebrick_checkpoints::{Piece, Scalar, Tensors};

use super::ResumeError;
use super::layout::Layout;
use super::lender::{State, StateSize, record_of};
use super::load::{go_on, read_part, tensor_dtype};
use super::pieces::piece;

/// The field in which Burn notes the parameter's number of axes.
pub(super) const AXES: &str = "__rank";

fn unfit(reason: impl ToString) -> ResumeError {
    ResumeError::Optimizer { reason: reason.to_string() }
}

/// The part of a record's bytes that this rank writes.
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

/// Splits `ID.FIELD` into the parameter's place and the field.
fn of_place<'a, 'b>(layout: &'a Layout, name: &'b str) -> Option<(&'a super::layout::Place, &'b str)> {
    let (id, field) = name.split_once('.')?;
    Some((layout.place(ParamId::from(id.parse::<u64>().ok()?))?, field))
}

/// Returns the optimizer with the saved state of the parts of `master`'s parameters that this rank holds, and the
/// state's size in bytes. The state is moved into the optimizer, so it is in memory only once.
///
/// # Errors
///
/// The run was interrupted, or the state belongs to another kind of optimizer.
pub(crate) fn load_optimizer<M: Module>(
    optimizer: ModuleOptimizer,
    master: &M,
    layout: &Layout,
    saved: &Tensors,
    interrupter: &Interrupter,
) -> Result<(ModuleOptimizer, usize), ResumeError> {
    let ids: BTreeMap<&str, ParamId> = layout.places().map(|(id, place)| (place.path.as_str(), id)).collect();
    let mut states = BTreeMap::<ParamId, State>::new();
    let mut count = 0;
    for name in saved.names() {
        let (id, field) = of_id(&ids, name)?;
        let (place, info) = (layout.place(id), saved.info(name));
        let (Some(place), Some(info)) = (place, info) else { continue };
        go_on(interrupter)?;
        let dtype = tensor_dtype(name, info.dtype)?;
        let (shape, bytes) = read_part(saved, name, &info.shape, place.shard.as_ref())?;
        let state = states.entry(id).or_default();
        state.rank = state.rank.max(shape.len());
        let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
        state.tensors.push((format!("{}.{field}", id.val()), data));
        count += 1;
    }
    for (id, field, value) in checked(&ids, layout, saved.scalars())? {
        let state = states.entry(id).or_default();
        match (field, usize::try_from(value)) {
            (AXES, Ok(axes)) => state.rank = axes,
            _ => state.scalars.push((format!("{}.{field}", id.val()), value)),
        }
    }
    let optimizer = optimizer.load_record(record_of(states, &ids)?);
    // Burn drops state that it cannot use.
    let loaded = StateSize::of(&optimizer, master);
    if loaded.tensors != count {
        return Err(unfit(format!(
            "of {count} saved tensors it can use {}; name the kind of optimizer that was saved",
            loaded.tensors
        )));
    }
    Ok((optimizer, loaded.bytes))
}

/// The saved scalars, with the parameter and the field of each.
///
/// # Errors
///
/// A scalar belongs to no parameter, or gives a number of axes that differs from its parameter's.
fn checked<'a>(
    ids: &BTreeMap<&str, ParamId>,
    layout: &Layout,
    saved: &'a BTreeMap<String, Scalar>,
) -> Result<Vec<(ParamId, &'a str, burn_pack::Scalar)>, ResumeError> {
    let named = saved.iter().map(|(name, value)| {
        let (id, field) = of_id(ids, name)?;
        let axes = layout.place(id).map_or(0, |place| place.axes);
        match field == AXES && !matches!(value, Scalar::UInt(found) if *found == axes as u64) {
            true => Err(unfit(format!(
                "`{name}` is {value:?}: expected {axes}, the axes of this parameter; the checkpoint was not saved by a run, use another"
            ))),
            false => Ok((id, field, from_file(value))),
        }
    });
    named.collect()
}

/// Splits `PATH/FIELD` into the parameter and the field.
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

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::GradientsParams;
    use burn::tensor::{Device, Tensor};
    use firebrick_strategies::Stages;
    use firebrick_strategies::optim::{BoxedOptimizer, Groups, HeldParam, Optimizers};
    use firebrick_world::Communicator;

    use super::super::resumed::plausible;
    use super::*;

    /// All registered optimizers with their defaults, and SGD with its velocity.
    fn recipes() -> Vec<BoxedOptimizer> {
        let parsed = |text: &str| serde_json::from_str(text).unwrap();
        let names = Optimizers::installed().names();
        let defaults = names.iter().map(|name| parsed(&format!(r#"{{"{name}": {{}}}}"#)));
        defaults.chain([parsed(r#"{"Sgd": {"momentum": 0.9}}"#)]).collect()
    }

    /// The tensors and scalars that a run with this optimizer saves after one update, and the layout of its model.
    fn saved(recipe: &BoxedOptimizer, model: &Linear) -> (Vec<Piece>, BTreeMap<String, Scalar>, Layout) {
        let device = Device::flex().autodiff();
        let (model, mut optimizer) = (model.clone(), Groups::new().build(model, &**recipe).unwrap());
        let loss = model.forward(Tensor::<2>::ones([2, 64], &device)).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let model = optimizer.step(1e-3, model, grads);
        let layout = Layout::of(&model, &mut Stages::none(), &Communicator::solo());
        let (pieces, scalars) = pieces(optimizer.to_record().into_bytes().unwrap(), &layout).unwrap();
        (pieces, scalars, layout)
    }

    fn refused(layout: &Layout, saved: &BTreeMap<String, Scalar>) -> Option<ResumeError> {
        let ids = layout.places().map(|(id, place)| (place.path.as_str(), id)).collect();
        plausible(saved, 1).and_then(|()| checked(&ids, layout, saved).map(drop)).err()
    }

    #[test]
    fn a_state_has_the_bytes_that_its_recipe_says() {
        let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
        for recipe in recipes() {
            let (pieces, ..) = saved(&recipe, &model);
            let found: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
            let of = |shape: &[usize]| {
                let elements = shape.iter().product::<usize>() as u64;
                recipe.state_bytes(&HeldParam { shape, elements, element_bytes: 4, is_factor: false })
            };
            assert_eq!(found as u64, of(&[64, 64]) + of(&[64]), "{recipe:?}");
        }
    }

    #[test]
    fn each_number_is_what_a_run_saves() {
        let model: Linear = LinearConfig::new(64, 64).init(&Device::flex().autodiff());
        for recipe in recipes() {
            let optimizer = recipe.name();
            let (_, saved, layout) = saved(&recipe, &model);
            assert!(saved.keys().any(|name| name.ends_with(AXES)), "{optimizer}: {saved:?}");
            assert!(refused(&layout, &saved).is_none(), "{optimizer}: {saved:?}");
            for (name, value) in &saved {
                let forged: &[Scalar] = match value {
                    Scalar::UInt(3..) => &[Scalar::UInt(2)],
                    Scalar::UInt(_) => {
                        &[Scalar::UInt(3), Scalar::UInt(8), Scalar::UInt(u64::MAX), Scalar::Int(-1)]
                    }
                    Scalar::Int(_) => &[Scalar::Int(2), Scalar::Int(-1), Scalar::Int(i64::MAX)],
                    Scalar::Float(_) => &[Scalar::Float(f64::NAN), Scalar::Float(f64::INFINITY)],
                    Scalar::Bool(_) => &[],
                };
                for scalar in forged {
                    let mut forged = saved.clone();
                    forged.insert(name.clone(), *scalar);
                    let error = refused(&layout, &forged);
                    let is_named =
                        error.as_ref().is_some_and(|error| error.to_string().contains(name.as_str()));
                    assert!(is_named, "{optimizer}: {name} is {scalar:?}: {error:?}");
                }
                // The other parameter's number of axes is wrong for this one.
                if name.ends_with(AXES) {
                    let other = if matches!(value, Scalar::UInt(1)) { 2 } else { 1 };
                    let mut forged = saved.clone();
                    forged.insert(name.clone(), Scalar::UInt(other));
                    let error = refused(&layout, &forged).unwrap().to_string();
                    assert!(error.contains("the axes of this parameter"), "{error}");
                }
            }
        }
    }
}
