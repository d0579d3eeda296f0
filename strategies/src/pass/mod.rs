//! One forward pass.
//!
//! ```text
//! mod.rs      Pass: its mode, and what its layers know of the batch
//! segment/    the segment around each block: its plan, its parameters and gradients, and its recomputation
//! context.rs  the tokens of a batch among the ranks of a context axis
//! ring.rs     attention over the keys and values of these ranks, which go around
//! sequence.rs  the positions of a batch among the ranks of a tensor axis, between the layers that they divide
//! stage.rs    a pass through one stage of a pipeline
//! tensor.rs   layers that the ranks of a tensor axis compute together
//! columns.rs  what the first of these layers read, gathered again in the backward pass
//! vocabulary.rs  a vocabulary that they divide
//! dropout.rs  Dropout: a mask that is a function of each element's position
//! ```

mod columns;
mod context;
mod dropout;
mod ring;
mod segment;
mod sequence;
mod stage;
mod tensor;
mod vocabulary;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Gradients, Tensor};

use firebrick_kernels::{Draws, Ragged, Samples, attends_in_tiles, with_unread_products};
use firebrick_world::{Communicator, Timeline};

use crate::{Grads, StrategyError};

use columns::LastGathered;
pub use context::ContextColumns;
pub use dropout::Dropout;
pub use segment::{
    Bundle, OffloadedParam, OffloadedParams, OffloadedRead, SUMS_IN_FLIGHT, SegmentPlan, TensorMap, Units,
    Which,
};
use segment::{EnteredModel, Root, lock};
use sequence::Sequence;
use stage::StagePass;

/// The state of one forward pass.
///
/// A model passes it down to its layers, and calls [`segment`](Self::segment) around each of its blocks.
#[derive(Clone, Debug)]
pub struct Pass {
    training: bool,
    device: Device,
    dtype: FloatDType,
    draws: Draws,
    plan: Arc<SegmentPlan>,
    /// The id of the segment that this pass is in; 0 outside all segments.
    segment: u64,
    /// Counts segments and random number sites so far, in this segment.
    met: Arc<AtomicU64>,
    /// Counts segments so far, in this segment.
    segments: Arc<AtomicU64>,
    /// Where the samples of a batch stand.
    samples: Samples,
    /// The positions of the batch that this rank has between the layers that ranks share, if they divide them.
    sequence: Option<Arc<Sequence>>,
    /// What the segment has gathered for layers that gather it again in the backward pass, if they are to.
    gathered: Option<LastGathered>,
    /// The number of the first head or feature, in layers of which this rank has a share.
    first_of_share: usize,
    /// The stage of a pipeline that the pass goes through, if it goes through one alone.
    stage: Option<Arc<StagePass>>,
    /// The model of the pass, if segments provide the parameters of its blocks.
    entered: Option<Arc<EnteredModel>>,
    /// What the passes of an optimizer step share.
    root: Option<Arc<Root>>,
    /// Whether the pass is in a block whose parameters have been provided.
    inside_unit: bool,
    /// Whether the results may have gradients.
    recorded: bool,
    /// Whether the pass recomputes its segment for the gradients alone.
    unread: bool,
    /// Whether this rank contributes nothing to the ranks' collectives.
    empty_batch: bool,
    label_smoothing: f64,
    /// Records what the pass computes, and when.
    timeline: Timeline,
    /// Whether a loss has read `label_smoothing`.
    smooths: Arc<AtomicBool>,
    /// Whether a model has asked which tokens of a batch it computes.
    divided: Arc<AtomicBool>,
}

impl Pass {
    /// Creates a pass that computes gradients. `device` is the device of the batch.
    pub fn train(device: &Device) -> Self {
        Self {
            training: true,
            device: device.clone(),
            dtype: FloatDType::F32,
            draws: Draws::default(),
            plan: Arc::default(),
            segment: 0,
            met: Arc::default(),
            segments: Arc::default(),
            samples: Samples::Columns,
            sequence: None,
            gathered: None,
            first_of_share: 0,
            stage: None,
            entered: None,
            root: None,
            inside_unit: false,
            recorded: true,
            unread: false,
            empty_batch: false,
            label_smoothing: 0.0,
            timeline: Timeline::default(),
            smooths: Arc::default(),
            divided: Arc::default(),
        }
    }

    /// Creates a pass that only evaluates.
    pub fn evaluate(device: &Device) -> Self {
        Self { training: false, ..Self::train(device) }
    }

    /// Creates an evaluation pass through the same model in this dtype, outside autodiff.
    pub fn evaluating(&self, dtype: FloatDType) -> Self {
        let plan = self.plan.clone();
        Self::evaluate(&self.device.clone().inner()).computing_in(dtype).planned(plan)
    }

    /// Sets the dtype of activations. Default: f32.
    pub fn computing_in(self, dtype: FloatDType) -> Self {
        Self { dtype, ..self }
    }

    /// Smooths the labels of losses by this share. Default: 0.
    pub fn smoothing_labels(self, share: f64) -> Self {
        Self { label_smoothing: share, ..self }
    }

    /// Returns the share of each label that a classification loss spreads evenly over all classes (Szegedy et al.,
    /// 2016, arXiv:1512.00567): the [set](Self::smoothing_labels) value in training, 0 otherwise, so that evaluation
    /// reports the plain loss.
    pub fn label_smoothing(&self) -> f64 {
        self.smooths.store(true, Relaxed);
        if self.training { self.label_smoothing } else { 0.0 }
    }

    /// Returns whether label smoothing is set, but no loss has read it so far.
    pub fn smooths_in_vain(&self) -> bool {
        self.label_smoothing > 0.0 && !self.smooths.load(Relaxed)
    }

    /// Creates a pass like this one with these random numbers. Default: seed 0, epoch 0, and rows counted from 0.
    pub fn drawing(&self, draws: Draws) -> Self {
        Self { draws, ..self.again() }
    }

    /// Creates a pass like this one that leaves this one unchanged: what it learns about segments stays separate.
    pub fn apart(&self) -> Self {
        Self { plan: Arc::new(self.plan.afresh()), root: None, ..self.again() }
    }

    /// Creates a pass like this one for the micro-batches of one optimizer step, and of no later one. Under stage 3 of
    /// [`Zero`](crate::Zero), the first pass that [enters](Self::enter) the model gathers its parameters outside blocks,
    /// and the others read the same ones. They are dropped with the step's [last micro-batch](Self::gradients), or with
    /// this pass and all passes made from it; drop these before the update, which needs memory of its own.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::Device};
    /// use firebrick_strategies::{Communicator, Composition, Setup, Zero};
    ///
    /// let device = Device::flex().autodiff();
    /// let model = LinearConfig::new(64, 32).init(&device);
    /// let mut setup = Setup::new(&model, &device).among(Communicator::rehearsal(2));
    /// let mut zero = Zero::stage(3).start(&mut setup)?;
    /// let step = setup.into_pass().of_step();
    /// let master = zero.init_master(model)?;
    /// let replica = zero.publish(master)?;
    /// for _micro_batch in 0..2 {
    ///     let (model, _pass) = step.enter(&replica)?;
    ///     assert_eq!(model.weight.val().dims(), [64, 32]);
    ///     assert_eq!(step.shared_bytes(), 64 * 32 * 4); // the bias is small, so each rank holds it anyway
    /// }
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn of_step(&self) -> Self {
        Self { root: Some(Arc::default()), ..self.again() }
    }

    /// Returns the bytes on the device that the passes of an [optimizer step](Self::of_step) share now.
    pub fn shared_bytes(&self) -> usize {
        self.root.as_ref().map_or(0, |root| root.bytes(&self.device.clone().inner()))
    }

    /// Returns the model for one pass, and that pass. Without a strategy that shards or offloads parameters, both are
    /// unchanged.
    ///
    /// With such a strategy, this model lacks the parameters of blocks; each segment provides them. Parameters outside
    /// blocks are gathered, or fetched, here. Every rank must enter at the same time.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn enter<M: Module>(&self, model: &M) -> Result<(M, Self), StrategyError> {
        if !self.plan.handling().delivers() {
            self.plan.wake_outside(model);
            return Ok((model.clone(), self.clone()));
        }
        let root = self.root.as_deref();
        let (model, entered) = EnteredModel::new(model, &self.plan, &self.device, self.empty_batch, root)?;
        Ok((model, Self { entered: Some(entered), ..self.clone() }))
    }

    /// Marks the pass of a rank that has nothing to learn from while other ranks do: it takes part in the collectives
    /// and contributes nothing.
    pub fn empty_batch(self, empty_batch: bool) -> Self {
        Self { empty_batch, ..self }
    }

    /// Returns whether this rank takes part in the pass without contributing to it.
    pub fn is_empty_batch(&self) -> bool {
        self.empty_batch
    }

    /// Returns whether the ranks communicate in this pass, so that all of them must run it.
    pub fn is_collective(&self) -> bool {
        self.ranks().is_some()
    }

    /// Returns the ranks that communicate in this pass, if there are several.
    pub fn ranks(&self) -> Option<&Communicator> {
        let world = self.plan.handling().sharding.as_ref()?.world();
        (world.size() > 1).then_some(world)
    }

    /// Returns the largest of the ranks' numbers if the ranks communicate in this pass, otherwise `number`. Every rank must
    /// call it at the same time: one that computes a batch in parts learns how often the others run the model.
    ///
    /// If another rank is gone, it returns `number`, and [`check`](Self::check) the error.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use firebrick_strategies::Pass;
    ///
    /// assert_eq!(Pass::evaluate(&Device::flex()).largest_of_ranks(3), 3);
    /// ```
    pub fn largest_of_ranks(&self, number: usize) -> usize {
        let Some(world) = self.ranks() else { return number };
        match world.numbers("the parts of a batch", &[number as f64]) {
            // Numbers of parts are exact in f64.
            Ok(all) => all.concat().into_iter().fold(number, |most, theirs| most.max(theirs as usize)),
            Err(error) => {
                self.plan.report(error.into());
                number
            }
        }
    }

    /// Returns the gradients of the model that the pass [entered](Self::enter), after a backward pass: those of Burn's
    /// graph, and those that segments have delivered. `closes` is true for the last micro-batch of the optimizer
    /// step.
    ///
    /// # Errors
    ///
    /// The gradients are unusable, as [`check`](Self::check) reports; or another rank is gone.
    pub fn gradients<M: Module>(
        &self,
        mut graph: Gradients,
        model: &M,
        closes: bool,
    ) -> Result<Grads, StrategyError> {
        struct OfGraph<'a>(&'a mut Gradients, GradientsParams);
        impl ModuleVisitor for OfGraph<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                // A parameter without a value is held elsewhere; its segment delivers its gradient.
                if param.is_initialized()
                    && param.base().is_require_grad()
                    && let Some(grad) = param.val().grad_remove(self.0)
                {
                    self.1.register(param.id, grad);
                }
            }
        }
        self.send_gradients(&mut graph)?;
        self.check()?;
        let mut found = OfGraph(&mut graph, GradientsParams::new());
        if !self.empty_batch {
            model.visit(&mut found);
        }
        if let Some(root) = self.root.as_ref().filter(|_| closes) {
            root.release();
        }
        let Some(entered) = &self.entered else { return Ok(Grads::new(found.1, closes)) };
        let delivered = entered.take_delivered(model, &mut found.1)?;
        Ok(Grads::new(found.1, closes).with_delivered(delivered))
    }

    /// Records the segments of the pass in this timeline. Default: one that nobody reads.
    pub fn timed_by(self, timeline: Timeline) -> Self {
        Self { timeline, ..self }
    }

    /// Handles segments as planned. Default: runs each segment unchanged.
    pub fn planned(self, plan: Arc<SegmentPlan>) -> Self {
        Self { plan, ..self }
    }

    /// Returns whether the pass computes gradients.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Returns the device for the batch's tensors: that of the model's replica.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the dtype of activations. A parameter may have another dtype: a layer returns the dtype of its input.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// Returns the seed, the epoch and the first sample of the batch.
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// Creates a pass for left-padded tensors, in which the sample of each row starts at the given column. Random
    /// numbers count positions from there, so they do not depend on the padding of a row. A row of several samples
    /// counts as one.
    ///
    /// An encoder and a decoder with different padding each get their own pass from the same one.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::{Dropout, Pass};
    ///
    /// let device = Device::flex();
    /// let dropout = Dropout::new(0.5);
    /// let drop = |length, start| {
    ///     let pass = Pass::train(&device).starting_at(vec![start]);
    ///     let x = Tensor::<3>::ones([1, length, 16], &device);
    ///     dropout.forward(x, &pass).narrow(1, start, 5).into_data()
    /// };
    /// assert_eq!(drop(5, 0), drop(8, 3)); // five positions, without padding and after three padded ones
    /// ```
    pub fn starting_at(&self, starts: Vec<usize>) -> Self {
        let samples = match starts.iter().any(|&start| start > 0) {
            true => Samples::Starting(starts.into()),
            false => Samples::Columns,
        };
        Self { samples, ..self.clone() }
    }

    /// Creates a pass for tensors `[1, total, ...]` that hold the samples of a batch one after the other, without
    /// padding. Random numbers are those of samples that each have a row.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_kernels::Ragged;
    /// use firebrick_strategies::{Dropout, Pass};
    ///
    /// let device = Device::flex();
    /// let dropout = Dropout::new(0.5);
    /// let x = |rows, length| Tensor::<3>::ones([rows, length, 16], &device);
    /// let padded = dropout.forward(x(2, 5), &Pass::train(&device));
    /// let ragged = dropout.forward(x(1, 8), &Pass::train(&device).ragged(Ragged::new([3, 5])));
    /// // The second sample is the second row, and stands after the three positions of the first.
    /// assert_eq!(ragged.narrow(1, 3, 5).into_data(), padded.narrow(0, 1, 1).into_data());
    /// ```
    pub fn ragged(&self, rows: Ragged) -> Self {
        Self { samples: Samples::Ragged(rows), ..self.clone() }
    }

    /// Returns whether a model should compute a padded batch as [ragged](Self::ragged) rows of its real tokens: where
    /// attention [takes them](attends_in_tiles), unless a strategy [keeps the padding](crate::KeepPadding).
    pub fn drops_padding(&self) -> bool {
        !self.plan.keeps_padding() && attends_in_tiles(&self.device, self.dtype)
    }

    /// Runs the end of a segment: its last product, and sums or dropout after it.
    ///
    /// Nobody reads the output of a [recomputed](crate::Recompute) segment, only its gradients, and none of these needs
    /// the value of that product. A recomputation therefore skips it, about a third of the products of a transformer
    /// block. (PyTorch's `checkpoint` stops early for the same reason.) What needs the product's value for a
    /// gradient, such as a norm or an activation, would get NaN.
    ///
    /// ```
    /// use burn::nn::LinearConfig;
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_strategies::Pass;
    ///
    /// let device = Device::flex();
    /// let block = LinearConfig::new(8, 8).init(&device);
    /// let x = Tensor::<2>::ones([4, 8], &device);
    /// let y = Pass::train(&device).segment(&block, x, |block, x, pass| {
    ///     pass.end_of_segment(|| x.clone() + block.forward(x))
    /// });
    /// assert_eq!(y.dims(), [4, 8]);
    /// ```
    pub fn end_of_segment<T>(&self, run: impl FnOnce() -> T) -> T {
        if self.unread { with_unread_products(run) } else { run() }
    }

    /// Returns whether a linear layer multiplies by this weight in 8 bits: in training, in a block, in bf16, under
    /// [`Amp::fp8`](crate::Amp::fp8).
    pub(crate) fn is_in_fp8(&self, weight: ParamId, shape: [usize; 2], dtype: FloatDType) -> bool {
        self.training && self.segment != 0 && dtype == FloatDType::BF16 && self.plan.is_in_fp8(weight, shape)
    }

    /// Returns the weights of blocks that stay in bf16 under [`Amp::fp8`](crate::Amp::fp8), because an axis is no multiple of
    /// 16: each once. Call it after a forward pass.
    ///
    /// # Errors
    ///
    /// No linear layer of a block multiplied in 8 bits.
    pub fn not_in_fp8(&self) -> Result<Vec<String>, StrategyError> {
        self.plan.not_in_fp8()
    }

    /// Returns where the samples of a batch stand.
    pub fn samples(&self) -> &Samples {
        &self.samples
    }

    /// Returns where the samples stand in the tensors of this rank: it has some positions of them between layers that ranks
    /// share.
    fn own_samples(&self) -> &Samples {
        self.sequence.as_ref().map_or(&self.samples, |sequence| sequence.samples())
    }

    /// Creates the same pass for tensors whose samples stand elsewhere, such as those of an encoder in a decoder.
    pub fn placed_as(&self, samples: &Samples) -> Self {
        Self { samples: samples.clone(), ..self.clone() }
    }

    /// Returns the id of the next random number site or segment: the same in each pass over the same model, and in each
    /// recomputation of a segment.
    pub(crate) fn next_site(&self) -> u64 {
        Draws::mix(self.segment, self.met.fetch_add(1, Relaxed))
    }

    /// Returns whether a segment of this pass delivers this parameter's gradient: the parameter's block is this
    /// segment's, or its segment is still to come.
    pub(crate) fn delivers(&self, id: ParamId, is_unit: bool) -> bool {
        let comes = is_unit || !self.inside_unit;
        comes && self.entered.as_ref().is_some_and(|entered| entered.delivers(id))
    }

    /// Returns the same pass, which keeps nothing for a backward pass.
    pub(crate) fn unrecorded(&self) -> Self {
        Self { recorded: false, ..self.clone() }
    }

    /// Returns an error if a segment of this pass made its gradients unusable, once. Call it after the backward pass,
    /// before you use the gradients.
    ///
    /// # Errors
    ///
    /// The same as [`SegmentPlan::check`].
    pub fn check(&self) -> Result<(), StrategyError> {
        self.plan.check()
    }

    /// Returns the same pass with its counters at 0.
    pub(crate) fn again(&self) -> Self {
        Self { met: Arc::default(), segments: Arc::default(), ..self.clone() }
    }

    /// Lifts a tensor outside autodiff into this pass, as a constant. An evaluation returns it unchanged.
    pub fn lift<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        match self.device.gradient_checkpointing_strategy() {
            None => value,
            Some(strategy) => Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy),
        }
    }
}
