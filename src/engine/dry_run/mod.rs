//! Tries a model in a smaller dtype before the run.
//!
//! Burn's operations need operands of one dtype. A model written for f32 may mix two, such as bf16 weights and an f32
//! input, mask or norm scale, and then Burn panics. The dry run makes one forward and one backward pass of the first
//! micro-batch, and turns such a panic into an error that names the parameter and the operation.

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

pub(crate) use silence::text_of;
pub use silence::{Caught, caught};

use watch::{Reads, watched};

/// Runs a trial pass if a strategy changed the compute dtype, for training and for evaluation.
///
/// It finds what the backend refuses. The CPU's compares dtypes in each operation; on GPUs, Burn's element-wise kernels read both
/// operands in the dtype of the first.
///
/// The run itself stays as it is: the pass only reads parameters, the first step makes its batch again, and dropout
/// and all else that acts in training only is off, so no random number is drawn and no running mean moves. All ranks
/// try the same batch, so that they exchange the same.
pub(crate) fn dry_run<M, B>(
    session: &mut Session<M>,
    data: &Data<B>,
    per_step: usize,
) -> Result<(), TrainError>
where
    M: Objective<B>,
    B: Batch,
{
    let pass = session.pass().apart();
    if pass.dtype() != FloatDType::F32 {
        let batch = || first_batch(&data.train, data, per_step);
        Trial { pass, world: session.world().clone() }.make(session.replica(), batch)?;
        // The memory of the trial is not part of the run's peak.
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

/// Returns the first micro-batch with a supervised item, among the first 16.
pub(super) fn first_batch<B: Batch>(
    batches: &Stream<B>,
    data: &Data<B>,
    per_step: usize,
) -> Result<Option<B>, TrainError> {
    if batches.samples(0) == 0 {
        return Ok(None);
    }
    for request in
        Requests::new(batches.clone(), Cursor::default(), cut(data, per_step, Share::WHOLE)?).take(16)
    {
        let request = request?;
        let batch = batches.batch(request.epoch, request.positions)?;
        if batch.items() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

/// A forward pass, and in training a backward pass too.
struct Trial {
    pass: Pass,
    world: Communicator,
}

impl Trial {
    /// Fails if the model panics and the same model in f32 does not. A model that panics in f32 too does so in its
    /// first step.
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

    /// Returns the panic, if there is one.
    ///
    /// # Errors
    ///
    /// Another rank is lost.
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
                // Wait, so that a device that computes later fails here.
                let _ = model.evaluate(batch, &pass).loss.sum.try_into_data();
            }
            // The first step reports failures that are not panics.
            let _ = pass.device().sync();
        });
        match pass.check() {
            Err(error @ StrategyError::World(_)) => Err(error.into()),
            // The first step reports it.
            _ => Ok(result),
        }
    }
}

/// Returns the model with all off that acts in training only.
pub(super) fn at_rest<M: Module>(model: M) -> M {
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
