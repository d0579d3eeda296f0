//! Conversion of the optimizer's state between states by id and tensors by path.
//!
//! A parameter's id is drawn anew in each process. A checkpoint names its state `PATH/FIELD`.

use std::collections::BTreeMap;

use burn::module::{Module, ParamId};
use burn::tensor::{Bytes, TensorData};
use burn::train::Interrupter;
use firebrick_checkpoints::{Piece, Scalar, Tensors};
use firebrick_strategies::optim::{ModelOptimizer, OptimizerStates, ParamState};
use firebrick_world::host_device;

use super::layout::{AXES, Layout, ParameterPlace, piece, piece_on_disk};
use super::load::{go_on, read_part, tensor_dtype};
use super::on_disk::{OnDisk, OnDiskNow, taken};
use super::state_size::StateSize;
use crate::ResumeError;

fn unfit(reason: impl ToString) -> ResumeError {
    ResumeError::Optimizer { reason: reason.to_string() }
}

/// The part of the states that this rank writes.
pub(super) fn pieces(states: OptimizerStates, layout: &Layout) -> (Vec<Piece>, BTreeMap<String, Scalar>) {
    let scalars = scalars(&states, layout);
    let mut pieces = Vec::new();
    for (id, state) in states {
        let Some(place) = layout.place(id) else { continue };
        for (field, data) in state.tensors {
            let (bytes, shape, dtype) = data.into_parts();
            pieces.extend(piece(place, format!("{}/{field}", place.path), dtype, &shape, bytes));
        }
    }
    (pieces, scalars)
}

/// The part of a state on a disk that this rank writes, read when it is written.
pub(super) fn pieces_on_disk(state: OnDiskNow, layout: &Layout) -> (Vec<Piece>, BTreeMap<String, Scalar>) {
    let mut pieces = Vec::new();
    for bucket in state.buckets {
        for (index, tensor) in bucket.tensors.iter().enumerate() {
            let Some((place, field)) = of_place(layout, &tensor.name) else { continue };
            pieces.extend(piece_on_disk(place, format!("{}/{field}", place.path), &bucket, index));
        }
    }
    (pieces, scalars(&state.states, layout))
}

/// The numbers that this rank writes, by `PATH/FIELD`.
fn scalars(states: &OptimizerStates, layout: &Layout) -> BTreeMap<String, Scalar> {
    let mut written = BTreeMap::new();
    for (id, state) in states {
        let Some(place) = layout.place(*id).filter(|place| place.writes_scalars()) else { continue };
        let mut write = |field: &str, value| written.insert(format!("{}/{field}", place.path), value);
        write(AXES, Scalar::UInt(state.axes as u64));
        for (field, value) in &state.scalars {
            write(field, to_file(*value));
        }
    }
    written
}

/// Splits `ID.FIELD` into the parameter's place and the field.
fn of_place<'a, 'b>(layout: &'a Layout, name: &'b str) -> Option<(&'a ParameterPlace, &'b str)> {
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
    mut optimizer: ModelOptimizer,
    master: &M,
    layout: &Layout,
    saved: &Tensors,
    interrupter: &Interrupter,
) -> Result<(ModelOptimizer, usize), ResumeError> {
    let saved = SavedState::of(layout, saved, interrupter)?;
    let (states, count) = saved.of_params(saved.ids.values())?;
    let home = master.devices().first().cloned().unwrap_or_else(host_device).inner();
    optimizer.load(states, &home).map_err(unfit)?;
    let loaded = StateSize::of(&optimizer, master);
    require_all(count, loaded.tensors)?;
    Ok((optimizer, loaded.bytes))
}

/// Moves the saved state of the parts of `master`'s parameters that this rank holds onto a disk, bucket by bucket. The
/// optimizer has no state of its own, before and afterwards.
///
/// # Errors
///
/// The same as [`load_optimizer`], and [`ResumeError::Scratch`] if the disk fails.
pub(crate) fn load_onto_disk<M: Module>(
    optimizer: &mut ModelOptimizer,
    disk: &mut OnDisk,
    master: &M,
    layout: &Layout,
    saved: &Tensors,
    interrupter: &Interrupter,
) -> Result<(), ResumeError> {
    let saved = SavedState::of(layout, saved, interrupter)?;
    let (mut expected, mut found) = (0, 0);
    for (bucket, params) in disk.restart(master) {
        let (states, count) = saved.of_params(&params)?;
        if states.is_empty() {
            continue;
        }
        optimizer.load(states, &host_device()).map_err(unfit)?;
        found += disk.store(bucket, taken(optimizer)?)?.tensors;
        expected += count;
    }
    require_all(expected, found)
}

/// Checks that Burn has used all tensors: it drops state that it cannot use.
fn require_all(expected: usize, found: usize) -> Result<(), ResumeError> {
    match found == expected {
        true => Ok(()),
        false => Err(unfit(format!(
            "of {expected} saved tensors it can use {found}; name the kind of optimizer that was saved"
        ))),
    }
}

/// The optimizer's state in a checkpoint, by parameter.
struct SavedState<'a> {
    layout: &'a Layout,
    saved: &'a Tensors,
    interrupter: &'a Interrupter,
    /// Parameters by path.
    ids: BTreeMap<&'a str, ParamId>,
    /// The names of each parameter's tensors, and their fields.
    tensors: BTreeMap<ParamId, Vec<(&'a str, &'a str)>>,
    scalars: BTreeMap<ParamId, Vec<(&'a str, burn_pack::Scalar)>>,
}

impl<'a> SavedState<'a> {
    fn of(layout: &'a Layout, saved: &'a Tensors, interrupter: &'a Interrupter) -> Result<Self, ResumeError> {
        let ids = layout.places().map(|(id, place)| (place.path.as_str(), id)).collect();
        let mut tensors = BTreeMap::<_, Vec<_>>::new();
        for name in saved.names() {
            let (id, field) = of_id(&ids, name)?;
            tensors.entry(id).or_default().push((name, field));
        }
        let mut scalars = BTreeMap::<_, Vec<_>>::new();
        for (id, field, value) in checked(&ids, layout, saved.scalars())? {
            scalars.entry(id).or_default().push((field, value));
        }
        Ok(Self { layout, saved, interrupter, ids, tensors, scalars })
    }

    /// Reads this rank's part of the states of some parameters, and counts their tensors.
    fn of_params<'b>(
        &self,
        params: impl IntoIterator<Item = &'b ParamId>,
    ) -> Result<(OptimizerStates, usize), ResumeError> {
        let (mut states, mut count) = (OptimizerStates::new(), 0);
        for id in params {
            // A parameter's group in the optimizer may depend on its path.
            let place = self.layout.place(*id);
            if place.is_some_and(ParameterPlace::is_away) {
                continue;
            }
            let path = place.map(|place| place.path.clone());
            let mut state = ParamState { path, ..ParamState::default() };
            for (name, field) in self.tensors.get(id).into_iter().flatten() {
                let (Some(place), Some(info)) = (place, self.saved.info(name)) else {
                    continue;
                };
                go_on(self.interrupter)?;
                let dtype = tensor_dtype(name, info.dtype)?;
                let (shape, bytes) = read_part(self.saved, name, &info.shape, place)?;
                state.axes = state.axes.max(shape.len());
                let data = TensorData::from_bytes(Bytes::from_bytes_vec(bytes), shape, dtype);
                state.tensors.push((field.to_string(), data));
                count += 1;
            }
            let numbers = self.scalars.get(id);
            for (field, value) in numbers.into_iter().flatten() {
                match (*field, usize::try_from(*value)) {
                    (AXES, Ok(axes)) => state.axes = axes,
                    _ => state.scalars.push((field.to_string(), *value)),
                }
            }
            if numbers.is_some() || !state.tensors.is_empty() {
                states.insert(*id, state);
            }
        }
        Ok((states, count))
    }
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

    use super::super::resume::plausible;
    use super::*;

    /// All registered optimizers with their defaults, and SGD with its velocity.
    fn recipes() -> Vec<BoxedOptimizer> {
        let parsed = |text: &str| serde_json::from_str(text).unwrap();
        let optimizers = Optimizers::built_in();
        let defaults = optimizers.names().iter().map(|name| parsed(&format!(r#"{{"{name}": {{}}}}"#)));
        defaults.chain([parsed(r#"{"Sgd": {"momentum": 0.9}}"#)]).collect()
    }

    /// The tensors and scalars that a run with this optimizer saves after one update, and the layout of its model.
    fn saved(recipe: &BoxedOptimizer, model: &Linear) -> (Vec<Piece>, BTreeMap<String, Scalar>, Layout) {
        let device = Device::flex().autodiff();
        let (model, mut optimizer) = (model.clone(), Groups::new().build(model, &**recipe).unwrap());
        let loss = model.forward(Tensor::<2>::ones([2, 64], &device)).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let model = optimizer.step(1e-3, model, grads);
        let layout = Layout::of(&model, &mut Stages::none(), &Communicator::solo(), None);
        let (pieces, scalars) = pieces(optimizer.states(None).unwrap(), &layout);
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
