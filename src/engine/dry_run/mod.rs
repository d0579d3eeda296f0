//! Tries a model in a smaller dtype before the run.
//!
//! Burn's operations take operands of one dtype, and panic where a model that was written for f32
//! mixes two: weights in bf16 with an input, a mask or a norm's scale in f32. So one forward and one
//! backward pass are made of the first micro-batch, and what goes wrong in them is told as an error
//! that names the place.

mod silence;
mod watch;

use burn::module::{Flag, Module, ModuleMapper, Param, ParamId};
use burn::tensor::{FloatDType, Tensor};
use firebrick_datasets::{Batch, Batches, Cursor, Requests};
use firebrick_strategies::{ParamMap, Pass, StrategyError, float_name, map_params, relift};
use firebrick_world::Communicator;

use crate::data::Stream;
use crate::engine::agreement::any;
use crate::engine::feed::{Share, cut};
use crate::engine::session::Session;
use crate::memory::reset_peak;
use crate::{Data, Objective, TrainError};

pub use silence::{Caught, caught};

use watch::{Reads, watched};

/// Makes the passes that strategies have cast, and none where they cast nothing.
///
/// It finds what Burn refuses, and that is for its backend to tell: the CPU's compares dtypes in each
/// operation, while kernels for GPUs are made for the dtypes that they are given.
///
/// Nothing of the run changes: parameters are only read, the batch is made anew for the first step,
/// and dropout and whatever else acts in training only is off, so that no random number is drawn
/// and no running mean moves. All ranks try the same batch, so that they exchange the same.
pub(crate) fn dry_run<M, B>(session: &mut Session<M>, data: &Data<B>, window: usize) -> Result<(), TrainError>
where
    M: Objective<B>,
    B: Batch,
{
    let pass = session.pass().apart();
    if pass.dtype() != FloatDType::F32 {
        let batch = || first_batch(&data.train, data, window);
        Trial { pass, world: session.world().clone() }.make(session.replica(), batch)?;
        // What the trial took is not the run's.
        reset_peak();
    }
    let dtype = session.evaluation_dtype();
    if let Some(valid) = &data.valid
        && dtype != FloatDType::F32
    {
        let batch = || first_batch(valid, data, 1);
        let pass = session.pass().apart().evaluating(dtype);
        let world = session.world().clone();
        Trial { pass, world }.make(&session.evaluator()?, batch)?;
        reset_peak();
    }
    Ok(())
}

/// The first micro-batch that has something to learn from, of as many as anyone would wait for.
fn first_batch<B: Batch>(
    batches: &Stream<B>,
    data: &Data<B>,
    window: usize,
) -> Result<Option<B>, TrainError> {
    for request in
        Requests::new(batches.clone(), Cursor::default(), cut(data, window, Share::WHOLE)?).take(16)
    {
        let request = request?;
        let batch = batches.batch(request.epoch, request.positions)?;
        if batch.items() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// A forward pass, and where training is tried a backward pass too.
struct Trial {
    pass: Pass,
    world: Communicator,
}

impl Trial {
    /// An error where the model panics, and the same model in f32 does not. One that panics in f32
    /// as well will do so in its first step, for all to see.
    fn make<M, B>(
        &self,
        model: &M,
        batch: impl Fn() -> Result<Option<B>, TrainError>,
    ) -> Result<(), TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        let Some(first) = batch()? else { return Ok(()) };
        let reads = Reads::default();
        let model = at_rest(model.clone());
        let failed = self.attempt(watched(model.clone(), &reads), first)?.err();
        if !any(&self.world, "the trial", failed.is_some())? {
            return Ok(());
        }
        let wide = map_params(model, &mut Widen);
        let in_f32 = self.pass.apart().computing_in(FloatDType::F32);
        let in_f32 = Trial { pass: in_f32, world: self.world.clone() };
        let again = match batch()? {
            Some(again) => in_f32.attempt(wide, again)?,
            None => Ok(()),
        };
        let in_f32_too = any(&self.world, "the trial in f32", again.is_err())?;
        let Some(Caught { message, operation }) = failed.filter(|_| !in_f32_too) else { return Ok(()) };
        let suspect = reads.suspect(self.pass.dtype());
        Err(TrainError::MixedDtypes {
            dtype: float_name(self.pass.dtype()),
            operation: operation.map_or_else(String::new, |name| format!("`{name}` failed: ")) + &message,
            after: suspect.map_or("no parameter".into(), |(path, dtype)| format!("`{path}`, in {dtype}")),
        })
    }

    /// What it panics with, if it does. An error is that of another rank.
    fn attempt<M: Objective<B>, B: Batch>(
        &self,
        model: M,
        batch: B,
    ) -> Result<Result<(), Caught>, TrainError> {
        let (model, pass) = self.pass.enter(&model)?;
        let result = caught(|| {
            if pass.is_training() {
                drop(model.loss(batch, &pass).sum.backward());
            } else {
                // A device that computes later is to fail here.
                let _ = model.evaluate(batch, &pass).loss.sum.try_into_data();
            }
            // Failures that are no panics are told by the step that meets them.
            let _ = pass.device().sync();
        });
        match pass.check() {
            Err(error @ StrategyError::World(_)) => Err(error.into()),
            // Told by the step that meets it.
            _ => Ok(result),
        }
    }
}

/// The model with everything off that acts in training only.
fn at_rest<M: Module>(model: M) -> M {
    struct Off;
    impl ModuleMapper for Off {
        fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
            flag.with_value(false)
        }
    }
    model.map(&mut Off)
}

struct Widen;

impl ParamMap for Widen {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        relift(value.clone().inner().cast(FloatDType::F32), &value)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Dropout, DropoutConfig};

    use super::*;

    #[test]
    fn a_model_at_rest_drops_nothing_and_the_one_it_was_cloned_from_still_does() {
        let device = crate::testing::device().autodiff();
        let dropout: Dropout = DropoutConfig::new(0.5).init();
        let x = Tensor::<1>::ones([64], &device);
        let rest = at_rest(dropout.clone());
        assert_eq!(rest.forward(x.clone()).into_data(), x.clone().into_data());
        assert_ne!(dropout.forward(x.clone()).into_data(), x.into_data());
    }
}
