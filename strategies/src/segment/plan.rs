//! What strategies decide about the segments of a model.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::DispatchTensor;
use burn::module::{Flag, Module, ModuleVisitor, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use super::budget::{Budget, Cost};
use super::replay::bytes_of;
use super::{Bundle, TensorMap};
use crate::memory::{Beyond, Usage};
use crate::{Paths, StrategyError};

/// What strategies have decided about the segments of a model, and what has become known of them.
///
/// Strategies fill it in when they start; the pass asks it at each segment.
#[derive(Debug, Default)]
pub struct SegmentPlan {
    recompute: Option<Which>,
    host: Option<Device>,
    elementwise: bool,
    paths: Paths,
    verified: Mutex<HashSet<u64>>,
    fault: Mutex<Option<StrategyError>>,
}

/// Which segments are recomputed.
#[derive(Debug)]
pub(crate) enum Which {
    /// The first of every so many.
    Every(usize),
    /// Those at these paths.
    Paths(HashSet<String>),
    /// As few as make the others fit.
    Within(Mutex<Budget>),
}

/// A segment that a pass comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    /// The same in each pass over the same model.
    pub id: u64,
    /// Its place among the segments of its level, from 0.
    pub index: usize,
    /// Whether it stands in no other segment.
    pub outermost: bool,
}

/// A segment that is to be recomputed.
pub(crate) struct Segment {
    plan: Arc<SegmentPlan>,
    id: u64,
    name: String,
    outermost: bool,
}

impl Which {
    pub fn within(bytes: usize) -> Self {
        Self::Within(Mutex::new(Budget::new(bytes)))
    }
}

impl SegmentPlan {
    /// A plan that leaves every segment as it is.
    pub fn of<M: Module>(model: &M) -> Self {
        Self { paths: Paths::of(model), ..Self::default() }
    }

    /// The paths of the model's parameters and modules.
    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Whether Burn's own element-wise scheme is to be used.
    pub fn is_elementwise(&self) -> bool {
        self.elementwise
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.recompute.is_some() || self.elementwise
    }

    pub(crate) fn recompute(&mut self, which: Which, host: Option<Device>) {
        self.recompute = Some(which);
        self.host = host;
    }

    pub(crate) fn recompute_elementwise(&mut self) {
        self.elementwise = true;
    }

    /// What a segment did that makes going on pointless, once.
    ///
    /// A model's forward pass returns no error, so whoever ran it asks here before it uses the
    /// gradients.
    ///
    /// # Errors
    ///
    /// A segment that read a tracked tensor which is not part of its input, that cannot be re-run
    /// to the same result, or a budget that nothing fits.
    pub fn check(&self) -> Result<(), StrategyError> {
        lock(&self.fault).take().map_or(Ok(()), Err)
    }

    fn report(&self, fault: StrategyError) {
        lock(&self.fault).get_or_insert(fault);
    }

    /// The segment, if it is to be recomputed.
    pub(crate) fn recomputed<B, X>(self: &Arc<Self>, block: &B, input: &X, met: Met) -> Option<Segment>
    where
        B: Module,
        X: Bundle,
    {
        let path = || self.paths.module_of(block);
        let is_recomputed = match self.recompute.as_ref()? {
            Which::Every(count) => met.index.is_multiple_of(*count),
            Which::Paths(paths) => path().is_some_and(|path| paths.contains(path)),
            Which::Within(_) if !met.outermost => false,
            Which::Within(budget) => {
                let mut budget = lock(budget);
                budget.recomputes(met.id, bytes_of(input)).unwrap_or_else(|needs| {
                    self.report(StrategyError::Budget { budget: budget.bytes(), needed: needs.0 });
                    true
                })
            }
        };
        let name = || path().map_or_else(|| format!("number {}", met.index), str::to_string);
        is_recomputed.then(|| Segment {
            plan: self.clone(),
            id: met.id,
            name: name(),
            outermost: met.outermost,
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Segment {
    /// Where its inputs wait for the backward pass, if not where they are.
    pub fn host(&self) -> Option<&Device> {
        self.plan.host.as_ref()
    }

    /// Its parameters' gradients are found, so many bytes. Those of a segment in another one are
    /// found again by that one.
    pub fn leaves(&self, gradients: usize, device: &Device) {
        if self.outermost {
            Beyond::left(gradients, device);
        }
    }

    /// Its result carries a gradient of something that it was not given.
    pub fn captures(&self) {
        self.plan.report(StrategyError::Captured { segment: self.name.clone() });
    }

    /// Whether it has yet to be seen that it gives the same result twice.
    pub fn unverified(&self) -> bool {
        !lock(&self.plan.verified).contains(&self.id)
    }

    /// Holds the result of the re-run to that of the first run.
    pub fn verify<B: Module, Y: Bundle>(&self, block: &B, first: Y, again: Y) {
        let mut expected = Values(Vec::new());
        first.map_tensors(&mut expected);
        let mut compared = Compared { expected: expected.0.into_iter(), difference: 0.0 };
        again.map_tensors(&mut compared);
        let difference = compared.difference;
        if difference > SAME {
            let mut random = Random::default();
            block.visit(&mut random);
            self.plan.report(StrategyError::Irreproducible {
                segment: self.name.clone(),
                difference,
                hint: random.hint(),
            });
        }
        lock(&self.plan.verified).insert(self.id);
    }

    /// Measures what the segment's operations save, where the plan needs to know.
    pub fn meter<'a>(&'a self, input: usize, device: &'a Device) -> Meter<'a> {
        let before = match self.plan.recompute {
            Some(Which::Within(_)) => in_use(device),
            _ => None,
        };
        Meter { segment: self, input, device, before }
    }
}

/// Bytes in use before a segment ran again.
pub(crate) struct Meter<'a> {
    segment: &'a Segment,
    input: usize,
    device: &'a Device,
    before: Option<usize>,
}

impl Meter<'_> {
    /// The segment has run, and all that it saves is there.
    pub fn read(self) {
        let Some(Which::Within(budget)) = &self.segment.plan.recompute else { return };
        if let (Some(before), Some(after)) = (self.before, in_use(self.device)) {
            let kept = after.saturating_sub(before);
            lock(budget).learn(self.segment.id, Cost { input: self.input, kept });
        }
    }
}

fn in_use(device: &Device) -> Option<usize> {
    // What a device has yet to do may still allocate.
    device.sync().ok()?;
    Usage::of(device).map(|usage| usage.live)
}

/// The largest share of the largest value by which two runs of one segment may differ: a GPU may
/// choose another kernel, in tf32 even, while a dropped element differs by all that it is.
const SAME: f64 = 1e-2;

struct Values(Vec<DispatchTensor>);

impl TensorMap for Values {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.push(tensor.clone().into_dispatch());
        tensor
    }
}

/// The largest difference, relative to the largest value; of values that are not finite, none.
struct Compared {
    expected: std::vec::IntoIter<DispatchTensor>,
    difference: f64,
}

impl TensorMap for Compared {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if let Some(expected) = self.expected.next() {
            let expected = Tensor::<D>::from_dispatch(expected).cast(FloatDType::F32);
            let found = tensor.clone().inner().cast(FloatDType::F32);
            let largest = expected.clone().abs().max();
            let both = Tensor::cat(vec![(found - expected).abs().max(), largest], 0);
            let both: Vec<f32> = both.try_into_data().map(|data| data.iter().collect()).unwrap_or_default();
            if let [difference, largest] = both[..] {
                self.difference = self.difference.max(f64::from(difference) / f64::from(largest).max(1e-30));
            }
        }
        tensor
    }
}

/// Modules of Burn that act in training only, and by themselves: dropout, noise, batch norm.
#[derive(Default)]
struct Random {
    containers: Vec<String>,
    found: Vec<String>,
}

impl ModuleVisitor for Random {
    fn enter_module(&mut self, _: &str, container: &str) {
        self.containers.push(container.trim_start_matches("Struct:").to_string());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.containers.pop();
    }

    fn visit_flag(&mut self, flag: &Param<Flag>) {
        // The flag itself is the innermost field of the module that it belongs to.
        let owner =
            self.containers.iter().rev().find(|name| !matches!(name.as_str(), "Flag" | "Vec" | "Tuple"));
        if let Some(owner) = owner.filter(|_| flag.is_enabled())
            && !self.found.contains(owner)
        {
            self.found.push(owner.clone());
        }
    }
}

impl Random {
    fn hint(&self) -> String {
        match self.found.is_empty() {
            true => String::new(),
            false => format!(" (it holds {} of Burn)", self.found.join(", ")),
        }
    }
}
