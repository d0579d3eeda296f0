//! A segment that keeps only its inputs and runs again in the backward pass.
//!
//! Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016 (arXiv:1604.06174).
//!
//! The outer backward pass holds the lock of its graph. The block therefore runs again on its own leaves, in its own
//! graph, and hooks pass the gradients to the outer graph:
//!
//! ```text
//! token -- join(input 1) -- join(input 2) -- join(parameter 1) -- ... -- graft(output 1)
//!                                                                     \- graft(output 2)
//! ```
//!
//! In the backward pass, each graft stores the gradient of its output. The last join runs after all grafts and runs the
//! block again; each join then takes its own gradient from the result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Gradients, Tensor};

use super::chosen::Segment;
use super::constant::Constant;
use super::entered::Way;
use super::graft::{graft, join};
use super::maps::{Inner, WantedGradients, bytes_of, shape_of};
use super::{Bundle, TensorMap, lock};
use crate::{ParamMap, Part, Pass, map_params};
use firebrick_kernels::memory::Beyond;
use firebrick_world::Activity;

/// Runs `run` on `block` and `input`, and keeps only `input` for the backward pass.
pub(crate) fn recomputed<B, X, Y, F>(block: &B, input: X, run: F, pass: Pass, segment: Segment) -> Y
where
    B: Module + 'static,
    X: Bundle,
    Y: Bundle,
    F: Fn(&B, X, &Pass) -> Y + Send + Sync + 'static,
{
    let mut wanted = WantedGradients::default();
    let input = input.map_tensors(&mut wanted);
    block.visit(&mut wanted);
    wanted.parameters.retain(|id| !pass.delivers(*id, segment.unit.is_some()));
    let own = segment.unit.as_ref().filter(|unit| unit.is_delivered());
    let own = own.map_or_else(Vec::new, |unit| unit.trained(block));
    let copy = map_params(block.clone(), &mut Inner);
    if wanted.is_empty() && own.is_empty() {
        let block = segment.provided(&copy, Way::Only).unwrap_or_else(|| block.clone());
        return run(&block, input, &pass);
    }
    let plain_input = input.clone().map_tensors(&mut Inner);
    // Runs on constants of autodiff: nothing in between is kept, but each operation is the same as in the
    // recomputation. Without autodiff, a backend fuses some operations and rounds differently.
    let constants = segment.provided(&copy, Way::Forward).unwrap_or_else(|| copy.clone());
    let constants = map_params(constants, &mut Constant(&pass));
    let once = pass.unrecorded();
    let span = pass.timeline.span(Activity::Forward, || segment.name(&copy));
    let output = run(&constants, plain_input.clone().map_tensors(&mut Constant(&pass)), &once);
    drop((span, constants));
    let mut of_output = WantedGradients::default();
    let output = output.map_tensors(&mut of_output);
    if !of_output.is_empty() {
        segment.captures(&copy);
        return output;
    }
    let output = output.map_tensors(&mut Inner);
    let kept = segment.put_away(plain_input);
    // A leaf of its own if gradients are delivered, because they are not part of this graph.
    let token = Tensor::zeros([1], pass.device()).set_require_grad(!own.is_empty());
    let replay = Arc::new(Replay {
        output_grads: Mutex::new(vec![None; of_output.inputs.len()]),
        work: Mutex::new(Some(Work {
            witness: segment.unverified(&copy).then(|| segment.put_away(output.clone())),
            block: copy,
            input: kept,
            run,
            pass: pass.again(),
            wanted: wanted.clone(),
            own,
            segment,
        })),
        found: Mutex::new(None),
    });
    let nothing_asks = wanted.is_empty();
    let mut joined = JoinToToken { token, inputs: 0, wanted, gradient: of_input(&replay) };
    if nothing_asks {
        // A leaf, in case no input carries a gradient and the segment delivers all of its gradients.
        joined.join(Tensor::<1>::zeros([1], pass.device()).require_grad(), Of::Nothing);
    }
    input.map_tensors(&mut joined);
    block.visit(&mut joined);
    output.map_tensors(&mut GraftOutputs {
        token: joined.token,
        outputs: 0,
        put: put_aside(&replay),
        pass: &pass,
    })
}

/// A segment between its forward and its backward pass.
struct Replay<B, X, Y, F> {
    output_grads: Mutex<Vec<Option<DispatchTensor>>>,
    work: Mutex<Option<Work<B, X, Y, F>>>,
    found: Mutex<Option<SegmentGradients>>,
}

/// Everything that the recomputation needs.
struct Work<B, X, Y, F> {
    /// Outside autodiff, like `input`.
    block: B,
    input: X,
    run: F,
    pass: Pass,
    wanted: WantedGradients,
    /// The gradients that the segment delivers.
    own: Vec<Part>,
    segment: Segment,
    /// The output of the forward pass, if the recomputation is to be verified.
    witness: Option<Y>,
}

/// The gradients of the inputs, by index, and of the parameters.
struct SegmentGradients {
    inputs: Vec<Option<DispatchTensor>>,
    parameters: HashMap<ParamId, DispatchTensor>,
}

/// The tensor that a gradient belongs to.
#[derive(Clone, Copy)]
enum Of {
    Input(usize),
    Parameter(ParamId),
    /// No tensor: only triggers the recomputation.
    Nothing,
}

type GradientOf = Arc<dyn Fn(Of) -> Option<DispatchTensor> + Send + Sync>;
type PutAside = Arc<dyn Fn(usize, DispatchTensor) + Send + Sync>;

fn of_input<B, X, Y, F>(replay: &Arc<Replay<B, X, Y, F>>) -> GradientOf
where
    B: Module + 'static,
    X: Bundle,
    Y: Bundle,
    F: Fn(&B, X, &Pass) -> Y + Send + Sync + 'static,
{
    let replay = replay.clone();
    Arc::new(move |of| replay.gradient(of))
}

fn put_aside<B, X, Y, F>(replay: &Arc<Replay<B, X, Y, F>>) -> PutAside
where
    B: Module + 'static,
    X: Bundle,
    Y: Bundle,
    F: Send + Sync + 'static,
{
    let replay = replay.clone();
    Arc::new(move |output, grad| lock(&replay.output_grads)[output] = Some(grad))
}

impl<B, X, Y, F> Replay<B, X, Y, F>
where
    B: Module + 'static,
    X: Bundle,
    Y: Bundle,
    F: Fn(&B, X, &Pass) -> Y,
{
    fn gradient(&self, of: Of) -> Option<DispatchTensor> {
        let mut found = lock(&self.found);
        let found = found.get_or_insert_with(|| self.run_again());
        match of {
            Of::Input(place) => found.inputs[place].take(),
            Of::Parameter(id) => found.parameters.remove(&id),
            Of::Nothing => None,
        }
    }

    fn run_again(&self) -> SegmentGradients {
        let work = lock(&self.work).take().expect("Burn runs each step of a backward pass once");
        let Work { block: stored, input, run, pass, wanted, own, segment, witness } = work;
        // Its backward pass follows at once, so that nothing is gathered again.
        let pass = Pass { unread: witness.is_none(), gathered: None, ..pass };
        let block = segment.provided(&stored, Way::Backward).unwrap_or_else(|| stored.clone());
        if let Some(unit) = segment.unit.as_ref().filter(|unit| unit.has_empty_batch()) {
            unit.deliver(&stored, own, HashMap::new());
            return SegmentGradients { inputs: vec![None; wanted.inputs.len()], parameters: HashMap::new() };
        }
        let span = pass.timeline.span(Activity::Rerun, || segment.name(&stored));
        let input = segment.fetch(input, pass.device());
        let (inputs, parameters) = (Vec::new(), Vec::new());
        let mut leaves = Leaves { wanted: &wanted, own: &own, pass: &pass, inputs, parameters };
        let block = map_params(block, &mut leaves);
        let input = input.map_tensors(&mut leaves);
        let (inputs, parameters) = (leaves.inputs, leaves.parameters);
        let meter = segment.meter(shape_of(&input), bytes_of(&input), pass.device());
        let output = run(&block, input, &pass);
        meter.read();
        drop(span);
        let span = pass.timeline.span(Activity::Backward, || segment.name(&stored));
        // A device's pool only records a peak when it is asked.
        Beyond::observe(pass.device());
        if let Some(witness) = witness {
            segment.verify(&block, segment.fetch(witness, pass.device()), output.clone());
        }
        let grads = std::mem::take(&mut *lock(&self.output_grads));
        let mut roots = Roots { grads: grads.into_iter(), pass: &pass, sum: None };
        output.map_tensors(&mut roots);
        drop(block);
        let Some(root) = roots.sum else {
            segment.deliver(&stored, own, &mut HashMap::new());
            return SegmentGradients { inputs: vec![None; inputs.len()], parameters: HashMap::new() };
        };
        let mut grads = root.backward();
        let mut found = SegmentGradients {
            inputs: inputs.into_iter().map(|leaf| leaf.and_then(|leaf| leaf(&mut grads))).collect(),
            parameters: parameters
                .into_iter()
                .filter_map(|(id, leaf)| Some((id, leaf(&mut grads)?)))
                .collect(),
        };
        drop((span, grads));
        let delivered = segment.deliver(&stored, own, &mut found.parameters);
        let bytes = |grad: &DispatchTensor| grad.shape().num_elements() * grad.dtype().size();
        let found_bytes: usize = found.parameters.values().map(bytes).sum();
        segment.leaves(found_bytes + delivered, pass.device());
        found
    }
}

type Leaf = Box<dyn FnOnce(&mut Gradients) -> Option<DispatchTensor>>;

/// Makes leaves of the tensors that need a gradient, and remembers where to find it.
struct Leaves<'a> {
    wanted: &'a WantedGradients,
    own: &'a [Part],
    pass: &'a Pass,
    inputs: Vec<Option<Leaf>>,
    parameters: Vec<(ParamId, Leaf)>,
}

impl Leaves<'_> {
    fn leaf<const D: usize>(&self, value: Tensor<D>, wanted: bool) -> (Tensor<D>, Option<Leaf>) {
        let leaf = self.pass.lift(value).set_require_grad(wanted);
        let found = leaf.clone();
        let of_leaf = move |grads: &mut Gradients| found.grad_remove(grads).map(Tensor::into_dispatch);
        (leaf, wanted.then(|| Box::new(of_leaf) as Leaf))
    }
}

impl TensorMap for Leaves<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (tensor, leaf) = self.leaf(tensor, self.wanted.inputs[self.inputs.len()]);
        self.inputs.push(leaf);
        tensor
    }
}

impl ParamMap for Leaves<'_> {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        let wanted = self.wanted.parameters.contains(&id) || self.own.iter().any(|part| part.id == id);
        let (value, leaf) = self.leaf(value, wanted);
        self.parameters.extend(leaf.map(|leaf| (id, leaf)));
        value
    }

    fn wakes(&self, _: ParamId) -> bool {
        false
    }
}

/// Joins the inputs and parameters that need a gradient to the token.
struct JoinToToken {
    token: Tensor<1>,
    inputs: usize,
    wanted: WantedGradients,
    gradient: GradientOf,
}

impl JoinToToken {
    fn join<const D: usize>(&mut self, tensor: Tensor<D>, of: Of) {
        let gradient = self.gradient.clone();
        let (shape, dtype, device) = (tensor.shape(), tensor.dtype(), tensor.device().inner());
        // An unread leaf has no gradient, as in Burn; any other tensor needs one.
        let is_leaf = tensor.is_require_grad();
        let found = move |_: Tensor<1>| match gradient(of) {
            Some(grad) => Some(Tensor::from_dispatch(grad)),
            None if is_leaf => None,
            None => Some(Tensor::zeros(shape.clone(), (&device, dtype))),
        };
        self.token = join(self.token.clone(), tensor, found);
    }
}

impl TensorMap for JoinToToken {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let place = self.inputs;
        self.inputs += 1;
        if self.wanted.inputs[place] {
            self.join(tensor.clone(), Of::Input(place));
        }
        tensor
    }
}

impl ModuleVisitor for JoinToToken {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let before = self.wanted.parameters.len();
        self.wanted.parameters.retain(|id| *id != param.id);
        if self.wanted.parameters.len() < before {
            self.join(param.base(), Of::Parameter(param.id));
        }
    }
}

/// Creates outputs from values; for Burn, they are computed from the token.
struct GraftOutputs<'a> {
    token: Tensor<1>,
    outputs: usize,
    put: PutAside,
    pass: &'a Pass,
}

impl TensorMap for GraftOutputs<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let (put, place) = (self.put.clone(), self.outputs);
        self.outputs += 1;
        let zero = self.token.clone().inner();
        let value = self.pass.lift(tensor);
        graft(self.token.clone(), value, move |grad: Tensor<D>| {
            put(place, grad.into_dispatch());
            zero.clone()
        })
    }
}

/// The sum of scalars whose gradients are the given gradients of the outputs.
struct Roots<'a> {
    grads: std::vec::IntoIter<Option<DispatchTensor>>,
    pass: &'a Pass,
    sum: Option<Tensor<1>>,
}

impl TensorMap for Roots<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if let Some(grad) = self.grads.next().flatten()
            && tensor.is_tracked()
        {
            let grad = Tensor::<D>::from_dispatch(grad);
            let root = graft(tensor.clone(), Tensor::zeros([1], self.pass.device()), move |_| grad.clone());
            self.sum = Some(match self.sum.take() {
                None => root,
                Some(sum) => sum + root,
            });
        }
        tensor
    }
}
