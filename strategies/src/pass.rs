//! One forward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Tensor};

use crate::segment::{Met, recomputed};
use crate::{Bundle, Draws, SegmentPlan, StrategyError};

/// What a model needs to know of the forward pass that it is in.
///
/// A model passes it down to whatever asks for it, and calls [`segment`](Self::segment) around each
/// of its blocks.
#[derive(Clone, Debug)]
pub struct Pass {
    training: bool,
    device: Device,
    dtype: FloatDType,
    draws: Draws,
    plan: Arc<SegmentPlan>,
    /// Of the segment that this pass is in; 0 outside all.
    segment: u64,
    /// Segments and places of random numbers met so far, in this segment.
    met: Arc<AtomicU64>,
    /// Segments met so far, in this segment.
    segments: Arc<AtomicU64>,
    /// The column at which the sample of each row starts, where not all start at 0.
    starts: Option<Arc<[usize]>>,
}

impl Pass {
    /// A pass whose gradients are wanted. `device` is where the batch belongs.
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
            starts: None,
        }
    }

    /// A pass that only measures.
    pub fn evaluate(device: &Device) -> Self {
        Self { training: false, ..Self::train(device) }
    }

    /// Activations are to be in this dtype. Default: f32.
    pub fn computing_in(self, dtype: FloatDType) -> Self {
        Self { dtype, ..self }
    }

    /// A new pass like this one, whose random numbers come from here. Default: seed 0, epoch 0, and
    /// rows counted from 0.
    pub fn drawing(&self, draws: Draws) -> Self {
        Self { draws, ..self.again() }
    }

    /// A pass like this one that leaves no trace in it: what becomes known of segments stays apart.
    pub fn apart(&self) -> Self {
        Self { plan: Arc::new(self.plan.afresh()), ..self.again() }
    }

    /// Segments are treated as planned. Default: each is run as it is.
    pub fn planned(self, plan: Arc<SegmentPlan>) -> Self {
        Self { plan, ..self }
    }

    /// Whether gradients are wanted.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Where the batch's tensors belong: the device of the model's replica.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The dtype that activations are in. A parameter may be kept in another: a layer returns the
    /// dtype that it was given.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// The seed, the epoch and the first sample of the batch.
    pub fn draws(&self) -> Draws {
        self.draws
    }

    /// The same pass, for tensors in which the sample of each row starts at these columns: with
    /// padding at the left. Random numbers count positions from there, so that they do not depend
    /// on how far a row is padded. A row of several samples counts as one.
    ///
    /// An encoder and a decoder, whose rows are padded differently, each get a pass of their own
    /// from the same one.
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
    /// assert_eq!(drop(5, 0), drop(8, 3)); // five positions, without padding and after three of it
    /// ```
    pub fn starting_at(&self, starts: Vec<usize>) -> Self {
        let starts = starts.iter().any(|&start| start > 0).then(|| starts.into());
        Self { starts, ..self.clone() }
    }

    pub(crate) fn starts(&self) -> Option<&[usize]> {
        self.starts.as_deref()
    }

    /// A number for the next place that draws random numbers or opens a segment: the same in each
    /// pass over the same model, and in each re-run of a segment.
    pub(crate) fn next_site(&self) -> u64 {
        Draws::mix(self.segment, self.met.fetch_add(1, Relaxed))
    }

    /// Runs one block of the model on `input`.
    ///
    /// The segment is the unit that strategies act on: what drops and re-runs activations, gathers
    /// or fetches parameters, does so for one segment at a time. `run` may therefore be called more
    /// than once and on a copy of `block`, so it reads parameters and the pass from its arguments
    /// only, and every tensor that carries a gradient (an encoder's output, say) is part of `input`.
    /// Of several outputs, all that are used go into one loss: the segment has one backward pass.
    ///
    /// ```
    /// use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// use firebrick_strategies::Pass;
    ///
    /// let device = Device::flex();
    /// let blocks = vec![LinearConfig::new(8, 8).init(&device); 3];
    /// let pass = Pass::evaluate(&device);
    /// let x = Tensor::<2>::ones([4, 8], &device);
    /// let y = blocks.iter().fold(x, |x, block| pass.segment(block, x, |block, x, _| block.forward(x)));
    /// assert_eq!(y.dims(), [4, 8]);
    /// ```
    pub fn segment<B, X, Y, F>(&self, block: &B, input: X, run: F) -> Y
    where
        B: Module + 'static,
        X: Bundle,
        Y: Bundle,
        F: Fn(&B, X, &Pass) -> Y + Send + Sync + 'static,
    {
        let index = self.segments.fetch_add(1, Relaxed) as usize;
        let met = Met { id: self.next_site(), index, outermost: self.segment == 0 };
        let inside = Self { segment: met.id, ..self.again() };
        // Without autodiff nothing is kept that could be computed again.
        let keeps = self.training && self.device.is_autodiff();
        match keeps.then(|| self.plan.recomputed(block, &input, met)).flatten() {
            Some(segment) => recomputed(block, input, run, inside, segment),
            None => run(block, input, &inside),
        }
    }

    /// What a segment of this pass did that makes its gradients useless, once. Whoever ran the
    /// backward pass asks before it uses them.
    ///
    /// # Errors
    ///
    /// Those of [`SegmentPlan::check`].
    pub fn check(&self) -> Result<(), StrategyError> {
        self.plan.check()
    }

    /// The same pass, with nothing met yet.
    pub(crate) fn again(&self) -> Self {
        Self { met: Arc::default(), segments: Arc::default(), ..self.clone() }
    }

    /// A tensor outside autodiff, as a constant of this pass.
    pub(crate) fn lift<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        match self.device.gradient_checkpointing_strategy() {
            None => value,
            Some(strategy) => Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy),
        }
    }
}
