//! A training run at work: master, replica, optimizer, and one step of them.

use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::{
    Draws, Grads, Outcome, Pass, Settled, Setup, SkipReason, Stage, Strategy, float_name, tie, tied,
};

use crate::accounting::{FirstUpdate, ParameterBytes, dtypes, tensor_bytes};
use crate::feed::{MicroBatch, Window};
use crate::memory::Beyond;
use crate::step::Step;
use crate::{Loss, Objective, Schedule, TrainError};

/// The live state between two steps.
pub(crate) struct Session<M, S> {
    stage: S,
    weights: Weights<M>,
    optimizer: ModuleOptimizer,
    schedule: Schedule,
    /// Updates that the schedule is stretched over.
    total_updates: u64,
    updates: u64,
    /// Of the random numbers that the model draws.
    seed: u64,
    tied: bool,
    /// A training pass as the strategies want it.
    pass: Pass,
    evaluation_dtype: FloatDType,
    bytes: ParameterBytes,
}

/// Master and replica. Only inside an update are they not both there: the optimizer changes the
/// master in place where nothing else holds its tensors.
struct Weights<M> {
    pair: Option<(M, M)>,
}

impl<M> Weights<M> {
    fn new(pair: (M, M)) -> Self {
        Self { pair: Some(pair) }
    }

    fn pair(&self) -> (&M, &M) {
        let (master, replica) = self.pair.as_ref().expect("master and replica are back after each update");
        (master, replica)
    }
}

/// Master and replica. What outlives a step is made in the device's pool for that, apart from the
/// activations that come and go with each step. An update's own temporaries are made there too: they
/// have the sizes of parameters, and the next update takes them again.
fn published<M: Module, S: Stage<M>, I: Send>(
    device: &Device,
    stage: &mut S,
    input: I,
    master: impl Fn(I) -> M + Send + Sync,
) -> (M, M) {
    device.memory_persistent_allocations((input, stage), |(input, stage)| {
        let master = master(input);
        let replica = stage.publish(master.clone());
        (master, replica)
    })
}

impl<M: Module, S: Stage<M>> Session<M, S> {
    /// Starts the strategies on the model. Returns the session and the micro-batches of a window.
    pub fn start<R: Strategy<M, Stage = S>>(
        strategies: &R,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        seed: u64,
        total_updates: impl FnOnce(usize) -> Result<u64, DataError>,
    ) -> Result<(Self, usize), TrainError> {
        if optimizer.has_gradient_clipping() {
            return Err(TrainError::OptimizerClips);
        }
        let device = model.devices().first().cloned().unwrap_or_default().autodiff();
        let model = if model.devices().iter().all(Device::is_autodiff) { model } else { model.train() };
        let mut setup = Setup::new(&model, &device);
        let mut stage = strategies.start(&mut setup)?;
        let window = setup.window();
        let evaluation_dtype = setup.evaluation_dtype();
        let pass = setup.into_pass();
        let owned = (model, &mut stage);
        let master = device.memory_persistent_allocations(owned, |(model, stage)| stage.own(model));
        let before = dtypes(&master);
        let weights = Weights::new(published(&device, &mut stage, master, |master| master));
        let (master, replica) = weights.pair();
        let changed = before.into_iter().zip(dtypes(master)).find(|(before, after)| before != after);
        if let Some(((path, _), _)) = changed {
            return Err(TrainError::SharedState { path });
        }
        let tied = tied(master);
        let bytes = ParameterBytes::of(master, replica);
        let session = Self {
            stage,
            weights,
            optimizer,
            schedule,
            total_updates: total_updates(window)?,
            updates: 0,
            seed,
            tied,
            pass,
            evaluation_dtype,
            bytes,
        };
        Ok((session, window))
    }

    /// One window: forward and backward of each micro-batch, then the update, or none.
    pub fn step<B: Batch>(&mut self, window: Window<B>) -> Result<Step, TrainError>
    where
        M: Objective<B>,
    {
        let started = Instant::now();
        let items = window.items();
        let mut step = Step::new(self.updates, items, window.tokens());
        step.loss_scale = self.stage.loss_scale();
        if items == 0 {
            self.skip(SkipReason::NoItems, &mut step)?;
            step.sample_memory(self.device());
            step.bytes = self.bytes;
            return Ok(step);
        }
        let last = window.batches.len() - 1;
        let mut outcome = Outcome::Hold;
        for (index, MicroBatch { batch, first }) in window.batches.into_iter().enumerate() {
            let params = match batch.items() {
                // Nothing to learn from: not even a NaN of its activations may count.
                0 => GradientsParams::new(),
                _ => {
                    let draws = Draws { seed: self.seed, epoch: window.epoch, first };
                    self.gradients(batch, draws, items, &mut step)?
                }
            };
            let master = self.weights.pair().0;
            outcome = self.stage.collect(master, Grads::new(params, index == last))?;
        }
        self.settle(outcome, &mut step)?;
        step.sample_memory(self.device());
        step.bytes = self.bytes;
        step.seconds = started.elapsed().as_secs_f64();
        Ok(step)
    }

    /// Forward and backward of one micro-batch: its share of the gradients of the window's mean loss.
    fn gradients<B: Batch>(
        &self,
        batch: B,
        draws: Draws,
        window: usize,
        step: &mut Step,
    ) -> Result<GradientsParams, TrainError>
    where
        M: Objective<B>,
    {
        let replica = self.weights.pair().1;
        let expected = batch.items();
        let activations = Beyond::begin(self.device());
        let Loss { sum, items } = replica.loss(batch, &self.pass.drawing(draws));
        let loss = checked(sum, items, expected)? / window as f64;
        step.add_loss(loss.clone().inner());
        step.sample_memory(self.device());
        let scaled = match self.stage.loss_scale() {
            None => loss,
            Some(scale) => loss * scale,
        };
        let grads = scaled.backward();
        // Before they are used: a segment that was run again may have told of itself.
        self.pass.check()?;
        step.add_activations(activations.end(self.device()));
        Ok(GradientsParams::from_grads(grads, replica))
    }

    /// What becomes of the window's gradients.
    fn settle(&mut self, outcome: Outcome, step: &mut Step) -> Result<(), TrainError> {
        let mut grads = match outcome {
            Outcome::Apply(grads) => grads,
            Outcome::Hold => return Err(TrainError::Held(self.stage.name())),
            Outcome::Skip(reason) => return self.skip(reason, step),
        };
        let norm = grads.norm(self.weights.pair().0);
        step.norm = Some(norm.clone());
        let skip = match grads.skip() {
            Some(reason) => Some(reason.clone()),
            None if grads.guarded() && !norm.try_into_scalar::<f32>()?.is_finite() => {
                Some(SkipReason::NonFinite)
            }
            None => None,
        };
        match skip {
            Some(reason) => self.skip(reason, step),
            None => {
                self.update(grads, step);
                Ok(self.stage.settled(&step.settled)?)
            }
        }
    }

    fn skip(&mut self, reason: SkipReason, step: &mut Step) -> Result<(), TrainError> {
        step.settled = Settled::Skipped(reason);
        Ok(self.stage.settled(&step.settled)?)
    }

    fn update(&mut self, grads: Grads, step: &mut Step) {
        let rate = self.schedule.rate(self.updates, self.total_updates);
        step.rate = rate;
        let Self { optimizer, stage, tied, bytes, pass, weights, updates, .. } = self;
        let Some((master, replica)) = weights.pair.take() else { return };
        drop(replica);
        let grads = grads.for_update(&master);
        bytes.gradients = tensor_bytes(&master, &grads);
        let state = FirstUpdate::begins(*updates == 0, *bytes, pass.device());
        let (input, is_tied) = ((optimizer, master, grads), *tied);
        let pair = published(pass.device(), stage, input, |(optimizer, master, grads)| {
            let master = optimizer.step(rate, master, grads);
            // Burn's optimizer updates the first place of a tied parameter only.
            if is_tied { tie(master) } else { master }
        });
        bytes.optimizer = state.ends(pass.device());
        *weights = Weights::new(pair);
        self.updates += 1;
        step.update = self.updates;
    }

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The master, whole.
    pub fn master(&self) -> &M {
        self.weights.pair().0
    }

    /// The copy that evaluates, the replica unless a strategy has another: outside autodiff,
    /// dropout off.
    pub fn evaluator(&mut self) -> M {
        let (master, replica) = self.weights.pair();
        self.stage.evaluator(master, replica.clone()).valid()
    }

    /// The replica, whole.
    pub fn replica(&self) -> &M {
        self.weights.pair().1
    }

    /// A training pass as the strategies want it.
    pub fn pass(&self) -> &Pass {
        &self.pass
    }

    /// The dtype that evaluation computes in.
    pub fn evaluation_dtype(&self) -> FloatDType {
        self.evaluation_dtype
    }

    /// Whether the loss is scaled.
    pub fn scales_loss(&self) -> bool {
        self.stage.loss_scale().is_some()
    }

    /// Bytes of master, replica, gradients and optimizer state.
    ///
    /// The optimizer's state is counted by reading it, which is meant for the end of a run.
    pub fn bytes(&self) -> ParameterBytes {
        self.bytes.with_optimizer(&self.optimizer)
    }

    /// The device that evaluation runs on.
    pub fn device(&self) -> &Device {
        self.pass.device()
    }
}

/// The sum of a loss, once its count and dtype are seen to be right.
pub(crate) fn checked(sum: Tensor<1>, items: usize, expected: usize) -> Result<Tensor<1>, TrainError> {
    if items != expected {
        return Err(TrainError::Items { loss: items, batch: expected });
    }
    match sum.dtype() {
        DType::F32 | DType::F64 => Ok(sum),
        other => Err(TrainError::LossDtype(float_name(other.into()).into())),
    }
}
