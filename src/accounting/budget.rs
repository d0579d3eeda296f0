//! The device budget of a run, and the error for a run that exceeds it.

use std::fmt;

use thiserror::Error;

use crate::accounting::byte_size::ByteSize;
use crate::accounting::{ParameterBytes, Placement, part};

/// Bytes on the device at one moment, by purpose.
///
/// On the CPU, device and host share the memory; what a strategy offloads to the host is not counted here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDevice {
    /// Activations of the forward and backward pass, at the peak. 0 unless the program counts memory, for which it
    /// installs [`memory::Counting`](crate::memory::Counting).
    pub activations: usize,
    /// Gradients of this micro-batch and those accumulated before it; in an update, the gradients passed to the
    /// optimizer.
    pub gradients: usize,
    /// State of the optimizer. Before the first update, its expected size, if known.
    pub optimizer: usize,
    /// The parameters that the optimizer updates.
    pub master: usize,
    /// The replica, which the forward pass reads, on top of the master.
    pub replica: usize,
    /// The averaged parameters.
    pub averaged: usize,
}

impl OnDevice {
    /// The bytes between two steps.
    pub(crate) fn between_steps(bytes: &ParameterBytes) -> Self {
        let Placement { master_on_host, replica_on_host, .. } = bytes.placement;
        let unless = |on_host: bool, bytes: usize| if on_host { 0 } else { bytes };
        Self {
            optimizer: unless(master_on_host, bytes.optimizer),
            master: unless(master_on_host, bytes.master),
            averaged: unless(master_on_host, bytes.averaged),
            replica: unless(replica_on_host, bytes.replica),
            ..Self::default()
        }
    }

    /// Returns the sum of all parts.
    pub fn total(&self) -> usize {
        self.parts().iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the name and the bytes of each part.
    pub fn parts(&self) -> [(&'static str, usize); 6] {
        [
            (part::ACTIVATIONS, self.activations),
            (part::GRADIENTS, self.gradients),
            (part::OPTIMIZER, self.optimizer),
            (part::MASTER, self.master),
            (part::REPLICA, self.replica),
            (part::AVERAGED, self.averaged),
        ]
    }
}

/// When a run exceeded its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the first step, from the expected size of its parameters, without activations.
    Start,
    /// In a forward and backward pass.
    Pass,
    /// In an update.
    Update,
}

/// A run used, or would use, more bytes on the device than its budget.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct OverBudget {
    /// The budget in bytes.
    pub budget: usize,
    /// The bytes used, or expected.
    pub found: OnDevice,
    /// When the run exceeded its budget.
    pub moment: Moment,
}

impl OverBudget {
    /// Returns an error if `found` exceeds the budget.
    pub(crate) fn check(budget: usize, found: OnDevice, moment: Moment) -> Result<(), Box<Self>> {
        if found.total() <= budget { Ok(()) } else { Err(Box::new(Self { budget, found, moment })) }
    }

    /// Lists remedies, the cheapest first, each with its run file entry, its Rust call and its effect.
    fn remedies(&self) -> Vec<String> {
        let OnDevice { activations, gradients, optimizer, master, replica, averaged } = self.found;
        let others = [gradients, optimizer, master, replica, averaged];
        let mut remedies = Vec::new();
        if others.iter().all(|other| *other <= activations) && activations > 0 {
            remedies.push(
                "`Recompute(every: 1)`, `.with(Recompute::every_block())` in Rust, or a smaller micro-batch: \
                 `batch: (micro: ..)` lower and `accumulate: ..` higher, `.micro_batch(..)` and \
                 `Accumulate(..)` in Rust: fewer activations"
                    .into(),
            );
        }
        let of_master = optimizer + master + averaged;
        if of_master > 0 {
            let moves = ByteSize(of_master);
            remedies.push(format!(
                "`Offload(optimizer)`, `.with(Offload::optimizer())` in Rust: moves {moves} to the host"
            ));
        }
        if replica > 0 || master > 0 {
            remedies.push(
                "`Offload(parameters)`, `.with(Offload::parameters())` in Rust: has two blocks at a time on the \
                 device"
                    .into(),
            );
        }
        remedies.push(
            "`Zero(stage: 3)` with several ranks, `.with(Zero::stage(3).over(..))` in Rust: divides all but \
             the activations among them"
                .into(),
        );
        remedies
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = match self.moment {
            Moment::Start => "before the first step it is known that it will have",
            Moment::Pass => "in a forward and backward pass it had",
            Moment::Update => "in an update it had",
        };
        let mut parts: Vec<_> = self.found.parts().into_iter().filter(|(_, bytes)| *bytes > 0).collect();
        // The sort is stable: equal parts keep their order.
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        write!(
            f,
            "the run may have {} on the device (`device_budget`), and {when} {}:",
            ByteSize(self.budget),
            ByteSize(self.found.total())
        )?;
        for (index, (name, bytes)) in parts.iter().enumerate() {
            let largest = if index == 0 { ", the largest part" } else { "" };
            write!(f, "\n  {} of {name}{largest}", ByteSize(*bytes))?;
        }
        write!(
            f,
            "\nwhat would help, the least costly first, among the `strategies` of a run file or in Rust:"
        )?;
        for (index, remedy) in self.remedies().iter().enumerate() {
            write!(f, "\n  {}. {remedy}", index + 1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: ParameterBytes = ParameterBytes {
        parameters: 1000,
        master: 4000,
        replica: 2000,
        averaged: 400,
        gradients: 2000,
        optimizer: 8000,
        disk: None,
        packed: 0,
        placement: Placement { master_on_host: false, replica_on_host: false, held_on_host: false },
    };

    fn over(found: OnDevice) -> String {
        let budget = found.total() - 1;
        OverBudget::check(found.total(), found, Moment::Pass).unwrap();
        OverBudget::check(budget, found, Moment::Pass).unwrap_err().to_string()
    }

    #[test]
    fn what_is_on_the_host_is_not_on_the_device() {
        let on = |master_on_host, replica_on_host| {
            let placement = Placement { master_on_host, replica_on_host, held_on_host: false };
            let bytes = ParameterBytes { placement, ..BYTES };
            let found = OnDevice::between_steps(&bytes);
            assert_eq!(found.total(), bytes.by_place().1);
            [found.optimizer, found.master, found.averaged, found.replica]
        };
        assert_eq!(on(false, false), [8000, 4000, 400, 2000]);
        assert_eq!(on(true, false), [0, 0, 0, 2000]);
        assert_eq!(on(true, true), [0, 0, 0, 0]);
        assert_eq!(on(false, true), [8000, 4000, 400, 0]);
    }

    #[test]
    fn the_parts_are_named_with_their_bytes_and_the_largest_first() {
        let found = OnDevice { activations: 5_000_000, ..OnDevice::between_steps(&BYTES) };
        let message = over(found);
        let order = ["5.00 MB of activations, the largest", "8.00 kB of optimizer", "4.00 kB of master"];
        let places = order.map(|part| message.find(part).unwrap_or_else(|| panic!("{part}: {message}")));
        assert!(places.is_sorted(), "{message}");
        assert!(!message.contains("gradients"), "there are none: {message}");
    }

    #[test]
    fn what_helps_depends_on_what_is_there() {
        let steps = ["Recompute(every: 1)", "Offload(optimizer)", "Offload(parameters)", "Zero(stage: 3)"];
        let helps = |placement, activations| {
            let bytes = ParameterBytes { placement, ..BYTES };
            let message = over(OnDevice { activations, ..OnDevice::between_steps(&bytes) });
            let places = steps.map(|step| message.find(step));
            let found: Vec<_> = places.iter().flatten().collect();
            assert!(found.is_sorted(), "in their order: {message}");
            places.map(|place| place.is_some())
        };
        let device = Placement::default();
        let offloaded = Placement { master_on_host: true, ..device };
        let streamed = Placement { replica_on_host: true, ..offloaded };
        assert_eq!(helps(device, 9000), [true, true, true, true]);
        assert_eq!(helps(device, 7000), [false, true, true, true], "the optimizer state is more");
        assert_eq!(helps(offloaded, 7000), [true, false, true, true]);
        assert_eq!(helps(offloaded, 100), [false, false, true, true]);
        assert_eq!(helps(streamed, 100), [true, false, false, true]);
    }

    #[test]
    fn each_remedy_is_told_for_run_files_and_for_rust() {
        let message = over(OnDevice { activations: 9000, ..OnDevice::between_steps(&BYTES) });
        for line in message.lines().filter(|line| line.contains(". `")) {
            assert!(line.contains(".with(") && line.contains("in Rust"), "{line}");
        }
        assert!(message.contains("moves 12.4 kB to the host"), "{message}");
    }
}
