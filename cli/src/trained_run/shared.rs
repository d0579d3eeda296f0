//! A trained model that ranks share: each holds a part, and they run it together.

use burn::module::Module;
use burn::tensor::{Device, FloatDType};
use firebrick_strategies::{Composition, Pass, Setup, Zero};
use firebrick_world::Communicator;

use firebrick::TrainError;

/// This rank's part of the model, and the evaluation pass that gathers the blocks. The rest of the model is dropped.
pub(super) fn part<M: Module + 'static>(
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
