//! One forward pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Gradients, Tensor};

use crate::segment::{Constant, Entered, Met, Unit, Way, delivered, recomputed};
use crate::{Bundle, Communicator, Draws, Grads, SegmentPlan, StrategyError, map_params};

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
    /// The model that it goes through, where parameters of blocks come and go.
    entered: Option<Arc<Entered>>,
    /// Whether it is in a block whose parameters have come.
    inside_unit: bool,
    /// Whether what is computed may have gradients.
    recorded: bool,
    /// Whether this rank adds nothing to what the ranks do together.
    silent: bool,
    label_smoothing: f64,
    /// Whether a loss has asked for it.
    smooths: Arc<AtomicBool>,
}

/// Gives parameters their first values: what has none in a segment is taken for one that waits elsewhere.
fn wake<B: Module>(block: &B) {
    struct Wake;
    impl ModuleVisitor for Wake {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            param.base();
        }
    }
    block.visit(&mut Wake);
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
            entered: None,
            inside_unit: false,
            recorded: true,
            silent: false,
            label_smoothing: 0.0,
            smooths: Arc::default(),
        }
    }

    /// A pass that only measures.
    pub fn evaluate(device: &Device) -> Self {
        Self { training: false, ..Self::train(device) }
    }

    /// A pass that only measures, through the same model in this dtype, outside autodiff.
    pub fn evaluating(&self, dtype: FloatDType) -> Self {
        let plan = self.plan.clone();
        Self::evaluate(&self.device.clone().inner()).computing_in(dtype).planned(plan)
    }

    /// Activations are to be in this dtype. Default: f32.
    pub fn computing_in(self, dtype: FloatDType) -> Self {
        Self { dtype, ..self }
    }

    /// Losses are to smooth labels by this share. Default: 0.
    pub fn smoothing_labels(self, share: f64) -> Self {
        Self { label_smoothing: share, ..self }
    }

    /// The share of each label that a loss over classes spreads evenly over all of them (Szegedy et al., 2016,
    /// arXiv:1512.00567): while training, as [set](Self::smoothing_labels), and 0 otherwise, so that evaluation
    /// reports the plain loss.
    pub fn label_smoothing(&self) -> f64 {
        self.smooths.store(true, Relaxed);
        if self.training { self.label_smoothing } else { 0.0 }
    }

    /// Whether labels are to be smoothed, and no loss has asked for it so far.
    pub fn smooths_in_vain(&self) -> bool {
        self.label_smoothing > 0.0 && !self.smooths.load(Relaxed)
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

    /// The model as one pass reads it, and that pass. Without a strategy that shards or offloads parameters
    /// both are what they were.
    ///
    /// Under such a strategy the parameters of blocks are not in this model: their segment brings them. What
    /// is in no block is gathered, or fetched, here. Every rank enters at the same time.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn enter<M: Module>(&self, model: &M) -> Result<(M, Self), StrategyError> {
        if !self.plan.handling().delivers() {
            return Ok((model.clone(), self.clone()));
        }
        let (model, entered) = Entered::new(model, &self.plan, &self.device, self.silent)?;
        Ok((model, Self { entered: Some(entered), ..self.clone() }))
    }

    /// A pass of a rank that has nothing to learn from where others have: it takes part in what they do
    /// together, and adds nothing.
    pub fn silent(self, silent: bool) -> Self {
        Self { silent, ..self }
    }

    /// Whether the ranks exchange something in this pass, so that all of them must make it.
    pub fn is_collective(&self) -> bool {
        self.ranks().is_some()
    }

    /// The ranks that exchange something in this pass, where there are several.
    pub fn ranks(&self) -> Option<&Communicator> {
        let world = self.plan.handling().sharding.as_ref()?.world();
        (world.size() > 1).then_some(world)
    }

    /// The gradients that a backward pass found for the parameters of the model that it
    /// [entered](Self::enter): those of Burn's graph, and those that segments have delivered. `closes` tells
    /// whether this is the window's last micro-batch.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check): what makes them useless; another rank that is gone.
    pub fn gradients<M: Module>(
        &self,
        mut graph: Gradients,
        model: &M,
        closes: bool,
    ) -> Result<Grads, StrategyError> {
        struct OfGraph<'a>(&'a mut Gradients, GradientsParams);
        impl ModuleVisitor for OfGraph<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                // What has no value here waits elsewhere, and its segment delivers its gradient.
                if param.is_initialized()
                    && param.base().is_require_grad()
                    && let Some(grad) = param.val().grad_remove(self.0)
                {
                    self.1.register(param.id, grad);
                }
            }
        }
        self.check()?;
        let mut found = OfGraph(&mut graph, GradientsParams::new());
        if !self.silent {
            model.visit(&mut found);
        }
        let Some(entered) = &self.entered else { return Ok(Grads::new(found.1, closes)) };
        let delivered = entered.take_delivered(model, &mut found.1)?;
        Ok(Grads::new(found.1, closes).with_delivered(delivered))
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
        if !self.entered.as_ref().is_some_and(|entered| entered.is_provided()) {
            wake(block);
        }
        let index = self.segments.fetch_add(1, Relaxed) as usize;
        let met = Met { id: self.next_site(), index, outermost: self.segment == 0 };
        let unit = self.entered.as_ref().filter(|_| !self.inside_unit);
        let unit = unit.and_then(|entered| entered.unit(block));
        let inside_unit = self.inside_unit || unit.is_some();
        let inside = Self { segment: met.id, inside_unit, ..self.again() };
        // Without autodiff nothing is kept that could be computed again.
        let keeps = self.training && self.recorded && self.device.is_autodiff();
        if !keeps {
            return match unit.filter(Unit::is_provided) {
                Some(unit) => run(&self.lift_block(unit.provide(block, Way::Forward)), input, &inside),
                None => run(block, input, &inside),
            };
        }
        match self.plan.recomputed(block, &input, met, unit.clone()) {
            Some(segment) => recomputed(block, input, run, inside, segment),
            None => match unit.filter(Unit::is_delivered) {
                Some(unit) => delivered(block, input, run, inside, unit),
                None => run(block, input, &inside),
            },
        }
    }

    /// Whether a segment of this pass delivers this parameter's gradient: of a block whose segment this is, or
    /// of one that is still to come.
    pub(crate) fn delivers(&self, id: ParamId, is_unit: bool) -> bool {
        let comes = is_unit || !self.inside_unit;
        comes && self.entered.as_ref().is_some_and(|entered| entered.delivers(id))
    }

    /// The same pass where nothing is kept for a backward pass.
    pub(crate) fn unrecorded(&self) -> Self {
        Self { recorded: false, ..self.clone() }
    }

    /// A block outside autodiff, as constants of this pass.
    fn lift_block<B: Module>(&self, block: B) -> B {
        match self.device.is_autodiff() {
            true => map_params(block, &mut Constant(self)),
            false => block,
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
