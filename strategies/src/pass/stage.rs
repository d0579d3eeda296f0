//! A pass through one stage of a pipeline: see [`Mesh`](crate::Mesh).
//!
//! A model runs as ever, and its blocks decide: those before the stage compute nothing, the first one of the stage reads
//! what the stage before has sent, and behind the last one the pass leaves the model. In the backward pass, gradients go
//! the other way.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use burn::module::{Module, ParamId};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
use firebrick_world::{PartShape, on_host};

use super::segment::graft;
use super::{Bundle, Pass, TensorMap, lock};
use crate::model_parallel::Neighbour;
use crate::{ParamMap, Pipeline, PipelineStep, StrategyError, map_params};

/// A pass through one stage.
#[derive(Debug)]
pub(super) struct StagePass {
    pipeline: Arc<Pipeline>,
    chunk: usize,
    blocks: Range<usize>,
    is_first: bool,
    is_last: bool,
    /// The blocks that the pass has reached so far.
    reached: AtomicUsize,
    /// What the stage has read of the one before.
    read: Mutex<Vec<Leaf>>,
    /// Whether something has read what blocks before the stage returned, in the graph of a backward pass.
    skipped: Mutex<Vec<HasGradient>>,
    /// What the stage returns to the next one.
    returned: Mutex<Option<SentStates>>,
}

/// The place of a block in a pass through one stage.
pub(super) enum At {
    Before,
    /// In the stage: whether it is its first block, or its last one.
    Inside {
        first: bool,
        last: bool,
    },
}

/// Ends a model's forward pass behind the last block of a stage.
struct HasLeft;

/// A tensor that the stage before has sent, and where to find its gradient.
struct Leaf(Box<dyn FnOnce(&mut Gradients) -> TensorData + Send>);

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Leaf")
    }
}

/// Returns whether a tensor has a gradient.
struct HasGradient(Box<dyn FnOnce(&mut Gradients) -> bool + Send>);

impl std::fmt::Debug for HasGradient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Read")
    }
}

/// What a stage has sent to the next one: the shapes, and the scalar whose gradients are those that it receives.
struct SentStates {
    like: Vec<PartShape>,
    root: Box<dyn FnOnce(Vec<TensorData>) -> Tensor<1> + Send>,
}

impl std::fmt::Debug for SentStates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Returned({:?})", self.like)
    }
}

impl Pass {
    /// Returns what this rank does in an optimizer step of so many micro-batches: one forward and one backward pass of each,
    /// in turns, unless a pipeline has an order of its own.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use firebrick_strategies::{Pass, PipelineStep};
    ///
    /// let steps = Pass::train(&Device::flex()).steps(2);
    /// assert_eq!(steps.len(), 4);
    /// assert_eq!(steps[1], PipelineStep::Backward { micro_batch: 0, chunk: 0 });
    /// ```
    pub fn steps(&self, micro_batches: usize) -> Vec<PipelineStep> {
        match self.plan.pipeline() {
            Some(pipeline) => pipeline.steps(micro_batches),
            None => crate::PipelineSchedule::OneForwardOneBackward.steps(micro_batches, 0, 1),
        }
    }

    /// Creates the pass through the `chunk`-th of this rank's stages, or through the whole model if ranks do not divide its blocks.
    pub fn of_stage(&self, chunk: usize) -> Self {
        let stage = self.plan.pipeline().map(|pipeline| {
            let [is_first, is_last] = pipeline.is_end(chunk);
            Arc::new(StagePass {
                pipeline: pipeline.clone(),
                chunk,
                blocks: pipeline.blocks(chunk),
                is_first,
                is_last,
                reached: AtomicUsize::new(0),
                read: Mutex::default(),
                skipped: Mutex::default(),
                returned: Mutex::default(),
            })
        });
        Self { stage, ..self.clone() }
    }

    /// Runs the model's forward pass, as far as the [stage](Self::of_stage) goes: `None` if it ends before the loss.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or the model does not run its blocks one after the other.
    pub fn forward<T>(&self, run: impl FnOnce() -> T) -> Result<Option<T>, StrategyError> {
        let Some(stage) = &self.stage else { return Ok(Some(run())) };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(_) if !stage.is_last => Err(StrategyError::StageNotLeft),
            Ok(found) => {
                self.check()?;
                match stage.reached.load(Relaxed) < stage.blocks.end {
                    true => Err(StrategyError::StageNotLeft),
                    false => Ok(Some(found)),
                }
            }
            Err(left) if left.is::<HasLeft>() => {
                self.check()?;
                Ok(None)
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Says that the blocks that follow read more than what the block before returns, as a decoder reads the output of an encoder. A pass
    /// through a [stage](Self::of_stage) ends there with an error; any other one goes on.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use firebrick_strategies::Pass;
    ///
    /// Pass::train(&Device::flex()).refuse_stages();
    /// ```
    pub fn refuse_stages(&self) {
        if let Some(stage) = &self.stage {
            self.plan.report(StrategyError::StatesReadElsewhere);
            stage.leave();
        }
    }

    /// Returns where the backward pass of the [stage](Self::of_stage) starts: at the loss, or at the gradients of what the stage has
    /// returned, which the next one sends.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn root(&self, loss: Option<Tensor<1>>) -> Result<Tensor<1>, StrategyError> {
        let returned = self.stage.as_ref().and_then(|stage| Some((stage, lock(&stage.returned).take()?)));
        match (loss, returned) {
            (_, Some((stage, SentStates { like, root }))) => {
                Ok(root(stage.pipeline.receive(stage.chunk, Neighbour::After, like)?))
            }
            (Some(loss), None) => Ok(loss),
            (None, None) => Ok(Tensor::zeros([1], &self.device).require_grad()),
        }
    }

    /// Sends the gradients of what the stage has read to the one before.
    pub(super) fn send_gradients(&self, graph: &mut Gradients) -> Result<(), StrategyError> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let skipped = std::mem::take(&mut *lock(&stage.skipped));
        if skipped.into_iter().any(|HasGradient(is_read)| is_read(graph)) {
            return Err(StrategyError::StatesReadElsewhere);
        }
        let read = std::mem::take(&mut *lock(&stage.read));
        if read.is_empty() {
            return Ok(());
        }
        let grads = read.into_iter().map(|Leaf(gradient)| gradient(graph)).collect();
        Ok(stage.pipeline.send(stage.chunk, Neighbour::Before, grads)?)
    }

    /// Returns the place of a block in this pass, if it goes through one stage. A block inside another one's segment has none.
    pub(super) fn place_in_stage<B: Module>(&self, block: &B, index: usize) -> Option<(&StagePass, At)> {
        let stage = self.stage.as_deref().filter(|_| self.segment == 0)?;
        let number = self.plan.paths().module_of(block).and_then(|path| stage.pipeline.block(path));
        let reached = stage.reached.load(Relaxed);
        if number != Some(reached) {
            self.plan.report(StrategyError::NotAPipeline { block: self.plan.name_of(block, index) });
            stage.leave();
        }
        stage.reached.store(reached + 1, Relaxed);
        let Range { start, end } = stage.blocks;
        let at = match reached < start {
            true => At::Before,
            false => At::Inside { first: reached == start, last: reached + 1 == end },
        };
        Some((stage, at))
    }

    /// Returns a block on every rank of a pipeline, in a pass that does not go through one stage: the rank that has it sends it.
    pub(super) fn block_of_all<B: Module>(&self, block: &B) -> Option<B> {
        struct OfAll<'a>(&'a Pass, &'a Pipeline);
        impl ParamMap for OfAll<'_> {
            fn map<const D: usize>(&mut self, id: ParamId, own: Tensor<D>) -> Tensor<D> {
                let path = self.0.plan.paths().path(id).unwrap_or_default();
                match self.1.of_all(path, id, own.clone()) {
                    Ok(value) => value,
                    Err(error) => {
                        self.0.plan.report(error.into());
                        self.1.zeros(id, own)
                    }
                }
            }
        }
        let pipeline = self.plan.pipeline().filter(|_| self.stage.is_none() && self.segment == 0)?;
        Some(map_params(block.clone(), &mut OfAll(self, pipeline)))
    }
}

impl StagePass {
    /// Leaves the model.
    fn leave(&self) -> ! {
        resume_unwind(Box::new(HasLeft))
    }

    /// Returns what a block before the stage returns, in the shapes of the states that it reads: [`STAND_IN`] from the last one, so that
    /// the first block of the stage can tell whether something has changed it, and no numbers from the others.
    pub fn skip<X: Bundle, Y: Bundle>(&self, input: X, pass: &Pass) -> Y {
        let Some(states) = states::<X, Y>(&input) else { self.unlike(pass) };
        let is_last = self.reached.load(Relaxed) == self.blocks.start;
        let value = if is_last { STAND_IN } else { f32::NAN };
        let mut stand_ins = StandIns { value, pass, read: Vec::new() };
        let states = states.map_tensors(&mut stand_ins);
        lock(&self.skipped).extend(stand_ins.read);
        states
    }

    /// Returns the input of the first block of the stage, with the states that the stage before has sent.
    pub fn read<X: Bundle, Y: Bundle>(&self, input: X, pass: &Pass) -> X {
        if self.is_first {
            return input;
        }
        let Some(states) = states::<X, Y>(&input) else { self.unlike(pass) };
        let mut like =
            Like { shapes: Vec::new(), is_new: self.pipeline.is_new(self.chunk), has_changed: false };
        states.clone().map_tensors(&mut like);
        if like.has_changed {
            pass.plan.report(StrategyError::StatesReadElsewhere);
            self.leave();
        }
        let sent =
            self.pipeline.receive(self.chunk, Neighbour::Before, like.shapes).unwrap_or_else(|error| {
                pass.plan.report(error.into());
                self.leave()
            });
        let mut received = MakeLeaves { sent: sent.into_iter(), leaves: Vec::new(), pass };
        let states = states.map_tensors(&mut received);
        *lock(&self.read) = received.leaves;
        with_states(input, states)
    }

    /// Sends what the last block of the stage returns to the next stage, and leaves the model; the last stage goes on to the loss.
    pub fn send<Y: Bundle>(&self, output: Y, pass: &Pass) -> Y {
        if self.is_last {
            return output;
        }
        let mut sent = ReadParts { parts: Vec::new() };
        let output = output.map_tensors(&mut sent);
        let like = sent.parts.iter().map(PartShape::of).collect();
        if let Err(error) = self.pipeline.send(self.chunk, Neighbour::After, sent.parts) {
            pass.plan.report(error.into());
        }
        if pass.recorded && pass.device.is_autodiff() {
            let device = pass.device.clone();
            let root = move |grads: Vec<TensorData>| {
                let mut roots = Roots { grads: grads.into_iter(), device: &device, sum: None };
                output.map_tensors(&mut roots);
                roots.sum.unwrap_or_else(|| Tensor::zeros([1], &device).require_grad())
            };
            *lock(&self.returned) = Some(SentStates { like, root: Box::new(root) });
        }
        self.leave()
    }

    fn unlike(&self, pass: &Pass) -> ! {
        pass.plan.report(StrategyError::UnlikeStates);
        self.leave()
    }
}

/// Returns the states that a block reads and returns: its whole input if that is of the type of its output, and otherwise the
/// first tensor of as many axes as the output has.
fn states<X: Bundle, Y: Bundle>(input: &X) -> Option<Y> {
    struct First<Y>(Option<Y>);
    impl<Y: Bundle> TensorMap for First<Y> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            if self.0.is_none() {
                self.0 = (&tensor as &dyn Any).downcast_ref::<Y>().cloned();
            }
            tensor
        }
    }
    if let Some(whole) = (input as &dyn Any).downcast_ref::<Y>() {
        return Some(whole.clone());
    }
    let mut first = First(None);
    input.clone().map_tensors(&mut first);
    first.0
}

/// Puts other states into the input of a block.
fn with_states<X: Bundle, Y: Bundle>(input: X, states: Y) -> X {
    struct ReplaceStates<Y>(Option<Y>);
    impl<Y: Bundle> TensorMap for ReplaceStates<Y> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let fits = (&tensor as &dyn Any).is::<Y>();
            let put = self.0.take_if(|_| fits);
            put.and_then(|put| (&put as &dyn Any).downcast_ref::<Tensor<D>>().cloned()).unwrap_or(tensor)
        }
    }
    match (&states as &dyn Any).downcast_ref::<X>() {
        Some(whole) => whole.clone(),
        None => input.map_tensors(&mut ReplaceStates(Some(states))),
    }
}

/// What stands in for the states that a stage receives: exact in each float dtype.
const STAND_IN: f32 = 0.158_203_13;

/// Makes leaves that stand in for what others compute, and remembers how to tell whether something has read them.
struct StandIns<'a> {
    value: f32,
    pass: &'a Pass,
    read: Vec<HasGradient>,
}

impl TensorMap for StandIns<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let device = self.pass.device.clone().inner();
        let one = Tensor::<D>::full([1; D], self.value, (&device, tensor.dtype()));
        if !self.pass.device.is_autodiff() {
            return one.expand(tensor.shape());
        }
        let leaf = self.pass.lift(one).require_grad();
        let found = leaf.clone();
        self.read.push(HasGradient(Box::new(move |grads| found.grad_remove(grads).is_some())));
        leaf.expand(tensor.shape())
    }
}

/// The shapes of tensors, and whether any of them is something else than what [stands in](STAND_IN) for states, if this is to be
/// checked.
struct Like {
    shapes: Vec<PartShape>,
    is_new: bool,
    has_changed: bool,
}

impl TensorMap for Like {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let dtype = tensor.dtype();
        self.shapes.push(PartShape { shape: tensor.dims().to_vec(), dtype, sum: dtype });
        if self.is_new {
            self.has_changed |= on_host(tensor.clone()).iter::<f32>().any(|value| value != STAND_IN);
        }
        tensor
    }
}

/// Makes leaves of what has been sent.
struct MakeLeaves<'a> {
    sent: std::vec::IntoIter<TensorData>,
    leaves: Vec<Leaf>,
    pass: &'a Pass,
}

impl TensorMap for MakeLeaves<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let Some(sent) = self.sent.next() else { return tensor };
        let dtype = sent.dtype();
        let device = self.pass.device.clone().inner();
        let leaf = self.pass.lift(Tensor::<D>::from_data(sent, (&device, dtype)));
        if !self.pass.device.is_autodiff() {
            return leaf;
        }
        let leaf = leaf.require_grad();
        let found = leaf.clone();
        self.leaves.push(Leaf(Box::new(move |grads: &mut Gradients| {
            let grad = found.grad_remove(grads).unwrap_or_else(|| found.clone().inner().zeros_like());
            on_host(grad)
        })));
        leaf
    }
}

/// Reads what is sent.
struct ReadParts {
    parts: Vec<TensorData>,
}

impl TensorMap for ReadParts {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.parts.push(on_host(tensor.clone()));
        tensor
    }
}

/// The sum of scalars whose gradients are the given gradients of tensors.
struct Roots<'a> {
    grads: std::vec::IntoIter<TensorData>,
    device: &'a Device,
    sum: Option<Tensor<1>>,
}

impl TensorMap for Roots<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let Some(grad) = self.grads.next() else { return tensor };
        if tensor.is_tracked() {
            let dtype = grad.dtype();
            let grad = Tensor::<D>::from_data(grad, (&self.device.clone().inner(), dtype));
            let root = graft(tensor.clone(), Tensor::zeros([1], self.device), move |_| grad.clone());
            self.sum = Some(match self.sum.take() {
                None => root,
                Some(sum) => sum + root,
            });
        }
        tensor
    }
}
