//! The backward pass of a block, for the timeline.

use std::sync::{Arc, Mutex};

use burn::tensor::Tensor;
use firebrick_world::{Activity, Open, Timeline};

use super::graft::graft;
use super::{Bundle, TensorMap, lock};
use crate::Pass;

/// The backward pass of a block that is not recomputed: its operations are part of the model's graph, so marks around the
/// block tell when the pass enters and leaves it.
#[derive(Debug)]
pub(super) struct BackwardTime {
    timeline: Timeline,
    name: String,
    event: Mutex<Option<Open>>,
}

impl BackwardTime {
    /// Returns the time of a block, if it is recorded.
    pub fn of(timeline: &Timeline, name: impl FnOnce() -> String) -> Option<Arc<Self>> {
        let time = || Self { timeline: timeline.clone(), name: name(), event: Mutex::default() };
        timeline.is_on().then(|| Arc::new(time()))
    }

    fn enter(&self) {
        let open = || self.timeline.open(Activity::Backward, || self.name.clone());
        let mut event = lock(&self.event);
        *event = event.take().or_else(open);
    }

    /// Ends the event. It ends at the last call.
    fn pass(&self) {
        if let Some(event) = &*lock(&self.event) {
            event.close();
        }
    }

    /// Ends the event for good.
    pub fn leave(&self) {
        if let Some(event) = lock(&self.event).take() {
            event.close();
        }
    }

    /// Marks the tensors at which the backward pass leaves the block.
    pub fn input<X: Bundle>(self: &Arc<Self>, input: X, pass: &Pass) -> X {
        let time = self.clone();
        input.map_tensors(&mut Mark { pass, reached: Arc::new(move || time.pass()) })
    }

    /// Marks the tensors at which the backward pass enters the block.
    pub fn output<Y: Bundle>(self: &Arc<Self>, output: Y, pass: &Pass) -> Y {
        let time = self.clone();
        output.map_tensors(&mut Mark { pass, reached: Arc::new(move || time.enter()) })
    }
}

/// Tells when the gradient of a tensor is there.
struct Mark<'a> {
    pass: &'a Pass,
    reached: Arc<dyn Fn() + Send + Sync>,
}

impl TensorMap for Mark<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if !tensor.is_tracked() {
            return tensor;
        }
        let (reached, value) = (self.reached.clone(), self.pass.lift(tensor.clone().inner()));
        graft(tensor, value, move |grad: Tensor<D>| {
            reached();
            grad
        })
    }
}
