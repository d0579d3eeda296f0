//! A trained model that ranks share: each holds a part, and they run it together.

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use firebrick_strategies::{Pass, Setup, Strategy, Zero};
use firebrick_world::Communicator;
use serde::Serialize;
use serde::de::DeserializeOwned;

use firebrick::TrainError;

/// This rank's part of the model, and the evaluation pass that gathers the blocks. The rest of the model is dropped.
pub(super) fn part<M: Module>(
    model: M,
    device: &Device,
    world: &Communicator,
) -> Result<(M, Pass), TrainError> {
    let mut setup = Setup::new(&model, device).among(world.clone());
    let mut stage = Zero::stage(3).start(&mut setup)?;
    let pass = setup.into_pass().evaluating(FloatDType::F32);
    let master = stage.init_master(model)?;
    let replica = stage.publish(master.clone())?;
    Ok((stage.evaluator(&master, replica)?.valid(), pass))
}

/// The values of all ranks, in rank order.
///
/// # Errors
///
/// A rank is lost.
pub(super) fn of_all<T: Serialize + DeserializeOwned>(
    world: &Communicator,
    what: &str,
    mine: &T,
) -> Result<Vec<T>, TrainError> {
    let unread = |error: serde_json::Error| TrainError::file(what, "passing it on", error);
    let bytes = serde_json::to_vec(mine).map_err(unread)?;
    let numbers: Vec<f64> = bytes.into_iter().map(f64::from).collect();
    let all = world.numbers(what, &numbers)?.into_iter().map(|numbers| {
        let bytes: Vec<u8> = numbers.into_iter().map(|number| number as u8).collect();
        serde_json::from_slice(&bytes).map_err(unread)
    });
    all.collect()
}
