//! The laws that every strategy obeys, as checks that you can call in the tests of your own.
//!
//! ```
//! use burn::tensor::Device;
//! use firebrick_strategies::{Accumulate, Clip, Composed, conformance};
//!
//! let device = Device::flex().autodiff();
//! conformance::check(&Composed::new().with(Accumulate(4)).with(Clip::norm(0.1)), &device, 1e-4)?;
//! // A bound that no gradient reaches changes nothing.
//! conformance::check_identity(&Clip::norm(1e30), &device)?;
//! # Ok::<(), conformance::ConformanceError>(())
//! ```
//!
//! The checks train [`Probe`], a small model, on one rank, and [`check_on_ranks`] on several. What a strategy does to
//! memory and time, they do not see.

mod drive;
mod probe;

use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread;

use burn::tensor::Device;
use firebrick_world::{Communicator, World};

use crate::{
    Accumulate, Adaptation, Composed, Composition, Paths, SavedStates, Setup, StrategyError, Zero,
    each_distinct_param, each_param, with_values,
};
use drive::{Drive, Spread};

pub use probe::Probe;

/// A law that all strategies obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Law {
    /// A recipe holds no live state: a clone that is started again trains the same model, to the bit.
    Recipe,
    /// A stage whose state was restored continues like the one that saved it, to the bit.
    Restore,
    /// The whole model that is gathered from a fresh master is the model that it was made from.
    Gather,
    /// The master in tensors of its own is the master that was published, to the bit.
    Alias,
    /// Parameters that are published by themselves are those that are published together, to the bit.
    Each,
    /// An optimizer step of several micro-batches equals one large batch of the same samples.
    Accumulate,
    /// A setting without effect changes no bit of the trained model.
    Identity,
    /// Several ranks that share each global batch train the model that one rank trains.
    Ranks,
}

/// A strategy breaks a law.
#[derive(Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConformanceError {
    /// The strategy returned an error.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A parameter has other values than the law says.
    #[error(
        "{law:?}: `{parameter}` differs by {difference:.1e} of its scale, at most {tolerance:.1e} is expected; see `conformance::Law`"
    )]
    Parameter {
        /// The law.
        law: Law,
        /// The parameter's path.
        parameter: String,
        /// The largest difference of an element, as a share of the largest value or update.
        difference: f64,
        /// The largest difference that the law allows.
        tolerance: f64,
    },
    /// A restored run saves another state than the uninterrupted one.
    #[error("Restore: the saved state is {found} after a restore, but {expected} without one")]
    State {
        /// What the uninterrupted run saves.
        expected: String,
        /// What the restored run saves.
        found: String,
    },
}

/// Checks [`Law::Recipe`], [`Law::Gather`], [`Law::Each`], [`Law::Alias`], [`Law::Restore`] and [`Law::Accumulate`], in
/// this order.
///
/// `device` is an autodiff device. `tolerance` is the largest difference for [`Law::Gather`], relative to a parameter's
/// largest value, and for [`Law::Accumulate`], relative to its largest update: about 1e-4 for a strategy that computes
/// in f32, and 5e-2 for one in half precision.
///
/// # Errors
///
/// The first law that the strategy breaks, or its own error.
pub fn check(
    recipe: &(impl Composition<Probe> + Clone),
    device: &Device,
    tolerance: f64,
) -> Result<(), ConformanceError> {
    let mut whole = run(recipe, device, 0..6)?;
    // What the first run has changed in the recipe, a second one would begin with.
    same(Law::Recipe, whole.master(), run(&recipe.clone(), device, 0..6)?.master(), None, 0.0)?;
    check_master(recipe, device, tolerance)?;
    check_restore(recipe, device, &mut whole)?;
    if whole.sums() {
        return check_accumulate(recipe, device, tolerance);
    }
    check_accumulate(&Composed::new().with(Accumulate(2)).with(recipe.clone()), device, tolerance)
}

fn run(
    recipe: &impl Composition<Probe>,
    device: &Device,
    steps: Range<usize>,
) -> Result<Drive, StrategyError> {
    let mut drive = Drive::start(recipe, adapted(recipe, device)?, device)?;
    for number in steps {
        drive.step(number, Spread::Even)?;
    }
    Ok(drive)
}

fn check_master(
    recipe: &impl Composition<Probe>,
    device: &Device,
    tolerance: f64,
) -> Result<(), ConformanceError> {
    let model = adapted(recipe, device)?;
    let mut stages = recipe.start(&mut Setup::new(&model, device))?;
    let master = stages.init_master(model.clone())?;
    stages.updated(&master);
    if let Some(gathered) = stages.gather_full(master.clone(), None)? {
        same(Law::Gather, &model, &gathered, None, tolerance)?;
    }
    let replica = stages.publish(master.clone())?;
    let mut flat = Vec::new();
    each_distinct_param(&master, |param| flat.push((param.id(), param.flat())));
    let mut apart = HashMap::new();
    for param in flat {
        apart.extend(stages.publish_each(vec![param])?);
    }
    let apart = stages.publish_rest(with_values(master.clone(), apart))?;
    same(Law::Each, &replica, &apart, None, 0.0)?;
    drop(replica);
    let replica = apart;
    let alias = stages.alias_master(master.clone(), &replica);
    drop(replica);
    same(Law::Alias, &master, &stages.unalias_master(alias), None, 0.0)
}

/// Compares an uninterrupted run of six steps with one that is saved and restored after four.
fn check_restore(
    recipe: &impl Composition<Probe>,
    device: &Device,
    whole: &mut Drive,
) -> Result<(), ConformanceError> {
    let (saved, average, master) = run(recipe, device, 0..4)?.saved();
    let mut second = Drive::resume(recipe, master, device, |stages| {
        let mut states = SavedStates::new(saved);
        stages.restore(&mut states)?;
        states.finish()?;
        average.into_iter().for_each(|average| stages.resume_average(average));
        Ok(())
    })?;
    (4..6).try_for_each(|number| second.step(number, Spread::Even))?;
    same(Law::Restore, whole.master(), second.master(), None, 0.0)?;
    let [(expected, average, _), (found, resumed, _)] = [whole.saved(), second.saved()];
    if expected != found {
        let [expected, found] = [expected, found].map(|states| format!("{states:?}"));
        return Err(ConformanceError::State { expected, found });
    }
    match (average, resumed) {
        (Some(average), Some(resumed)) => same(Law::Restore, &average, &resumed, None, 0.0),
        _ => Ok(()),
    }
}

/// Checks [`Law::Identity`]: with these settings, the strategy trains as if it were not there.
///
/// # Errors
///
/// The strategy changes the trained model, or returns an error.
pub fn check_identity(recipe: &impl Composition<Probe>, device: &Device) -> Result<(), ConformanceError> {
    let (plain, with) = (run(&Composed::new(), device, 0..4)?, run(recipe, device, 0..4)?);
    same(Law::Identity, plain.master(), with.master(), None, 0.0)
}

/// Checks [`Law::Ranks`]: so many ranks, as threads, train the model that one rank trains. A strategy that does not sum
/// gradients over the ranks stands behind [`Zero::stage(0)`](Zero::stage).
///
/// # Errors
///
/// The ranks train another model, or the strategy returns an error.
pub fn check_on_ranks(
    recipe: &(impl Composition<Probe> + Clone),
    device: &Device,
    ranks: usize,
    tolerance: f64,
) -> Result<(), ConformanceError> {
    let model = adapted(recipe, device)?;
    let mut setup = Setup::new(&model, device);
    recipe.start(&mut setup)?;
    let recipe = match setup.order().reduces() {
        Some(_) => Composed::new().with(recipe.clone()),
        None => Composed::new().with(Zero::stage(0)).with(recipe.clone()),
    };
    let train = |world: Communicator| {
        let mut drive = Drive::start_among(&recipe, adapted(&recipe, device)?, device, world)?;
        (0..4).try_for_each(|number| drive.step(number, Spread::Even))?;
        drive.whole()
    };
    let alone = train(Communicator::solo())?;
    let world = World::threads(ranks).join().map_err(StrategyError::from)?;
    let trained: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = world.into_iter().map(|rank| scope.spawn(|| train(rank))).collect();
        // A panic of a rank is a panic of the check.
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    for whole in trained {
        if let (Some(alone), Some(whole)) = (&alone, whole?) {
            same(Law::Ranks, alone, &whole, Some(&model), tolerance)?;
        }
    }
    Ok(())
}

fn check_accumulate(
    recipe: &impl Composition<Probe>,
    device: &Device,
    tolerance: f64,
) -> Result<(), ConformanceError> {
    let run = |spread| {
        let mut drive = Drive::start(recipe, adapted(recipe, device)?, device)?;
        let before = drive.master().clone();
        drive.step(0, spread)?;
        Ok::<_, StrategyError>((before, drive.master().clone()))
    };
    let ((before, even), (_, at_once)) = (run(Spread::Even)?, run(Spread::AtOnce)?);
    same(Law::Accumulate, &at_once, &even, Some(&before), tolerance)
}

fn adapted(recipe: &impl Composition<Probe>, device: &Device) -> Result<Probe, StrategyError> {
    recipe.adapt(Probe::new(device), &mut Adaptation::seeded(0))
}

/// Compares two models, relative to each parameter's largest value, or largest change since `before`.
fn same(
    law: Law,
    expected: &Probe,
    found: &Probe,
    before: Option<&Probe>,
    tolerance: f64,
) -> Result<(), ConformanceError> {
    let paths = Paths::of(expected);
    let (expected, found) = (values(expected), values(found));
    let origin = before.map_or_else(|| expected.iter().map(|all| vec![0.0; all.len()]).collect(), values);
    for (((place, expected), found), origin) in paths.places().iter().zip(&expected).zip(&found).zip(&origin)
    {
        let most = |one: &[f64], other: &[f64]| {
            one.iter().zip(other).map(|(x, y)| (x - y).abs()).fold(0.0, |most: f64, x| {
                // `max` would drop what is not a number.
                if x.is_nan() || x > most { x } else { most }
            })
        };
        let apart = most(expected, found);
        let difference = if apart == 0.0 { 0.0 } else { apart / most(expected, origin) };
        let is_same = expected.len() == found.len() && difference <= tolerance;
        if !is_same {
            return Err(ConformanceError::Parameter {
                law,
                parameter: place.path.clone(),
                difference,
                tolerance,
            });
        }
    }
    Ok(())
}

/// Returns the values of each parameter.
fn values(model: &Probe) -> Vec<Vec<f64>> {
    let mut values = Vec::new();
    each_param(model, |param| values.push(param.to_host().iter().collect()));
    values
}

#[cfg(test)]
mod tests;
