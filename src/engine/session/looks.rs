//! When a session looks at the memory in use.

use burn::tensor::Device;
use firebrick_world::is_host;

use crate::engine::step::Step;
use crate::memory::{Beyond, Taken};

/// Windows in which everything is measured, where a look is not free: before the optimizer has a state, and after.
const MEASURED: u64 = 2;

/// The looks of a session at the memory in use.
///
/// On the CPU a look is free, and everything is measured in each window. A device's pool is asked through the queue of
/// operations, which a look holds up. After the first windows it is asked once in each: after the last forward pass and
/// after the update, in turns. What a window does not look at is reported as it was seen last.
#[derive(Debug)]
pub(super) struct Looks {
    is_free: bool,
    /// Windows with items so far.
    windows: u64,
    /// Bytes in use before the last pass that was measured, without gradients and without what the window's passes share.
    before: usize,
    /// Bytes that the passes of the window share, and an earlier one has allocated.
    shared: usize,
    /// Bytes in use after the last step that was looked at.
    live: usize,
    /// Bytes that the last pass used which was looked at.
    activations: usize,
}

/// What one window looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Each pass from begin to end, and the end of the step.
    Everything,
    /// The end of the last forward pass.
    Pass,
    /// The end of the step.
    End,
}

impl Looks {
    pub fn new(device: &Device) -> Self {
        Self { is_free: is_host(device), windows: 0, before: 0, shared: 0, live: 0, activations: 0 }
    }

    /// Begins a window.
    pub fn begin(&mut self) -> Look {
        self.windows += 1;
        match self.is_free || self.windows <= MEASURED {
            true => Look::Everything,
            false if self.windows.is_multiple_of(2) => Look::End,
            false => Look::Pass,
        }
    }

    /// Reports the bytes in use after a window without a pass.
    pub fn without_pass(&self, step: &mut Step, device: &Device) {
        match self.is_free {
            true => step.sample_memory(device),
            false => step.set_live(self.live),
        }
    }

    /// Begins a pass, of whose bytes an earlier pass of the window has allocated the `shared` ones.
    pub fn begin_pass(&mut self, look: Look, shared: usize, device: &Device) -> Option<Beyond> {
        let beyond = (look == Look::Everything).then(|| Beyond::begin(device))?;
        self.before = beyond.before().saturating_sub(shared);
        self.shared = shared;
        Some(beyond)
    }

    /// Looks after a forward pass, the window's last or not.
    pub fn after_forward(&self, look: Look, is_last: bool, step: &mut Step, device: &Device) {
        if look == Look::Everything || (look == Look::Pass && is_last) {
            step.sample_memory(device);
        }
    }

    /// Ends a pass, before which the stages held gradients of so many bytes on the device.
    pub fn end_pass(&self, beyond: Option<Beyond>, held: usize, step: &mut Step, device: &Device) -> Taken {
        let taken = match (beyond, step.live()) {
            (Some(beyond), _) => {
                let Taken { activations, most } = beyond.end(device);
                Taken { activations: activations + self.shared, most: most + self.shared }
            }
            (None, Some(live)) => {
                let activations = live.saturating_sub(self.before + held);
                Taken { activations, most: activations }
            }
            (None, None) => return Taken { activations: self.activations, most: self.activations },
        };
        step.add_activations(taken.activations);
        taken
    }

    /// Ends a window: reports what it did not look at, and keeps what it did.
    pub fn end(&mut self, look: Look, step: &mut Step, device: &Device) {
        match look {
            // The last micro-batch has no pass if it has no items.
            Look::Pass if step.live().is_some() => self.activations = step.activations(),
            Look::Pass | Look::End => step.add_activations(self.activations),
            Look::Everything => self.activations = step.activations(),
        }
        match look {
            Look::Pass => step.set_live(self.live),
            Look::Everything | Look::End => {
                step.sample_memory(device);
                self.live = step.live().unwrap_or(0);
            }
        }
    }
}
