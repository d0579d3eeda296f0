//! Attributes what a rank exchanges to the steps of its run.

use firebrick_world::Communicator;

use crate::observe::rank_report::Exchanged;

/// Counts what a rank exchanges for its steps, also after they have ended.
///
/// A step ends when the host has queued it. Other threads send its results once the device has computed them, which may be
/// after that. The next step counts these bytes.
#[derive(Debug, Default)]
pub(super) struct Counted {
    /// What had been exchanged when the last step ended.
    ended: Option<Exchanged>,
    /// What was exchanged after it had ended.
    between: Exchanged,
}

impl Counted {
    /// Returns from where to count what is exchanged from now on: from the end of the last step, unless the rank has made a
    /// call since then, such as those of an evaluation.
    pub fn begin(&mut self, world: &Communicator) -> Exchanged {
        let now = Exchanged::of(world);
        self.ended.take().filter(|ended| ended.calls() == now.calls()).unwrap_or(now)
    }

    /// Returns what was exchanged for a step that began `from` there.
    pub fn end(&mut self, world: &Communicator, from: &Exchanged) -> Exchanged {
        self.end_between(world, from);
        self.rest()
    }

    /// Counts what was exchanged between two steps in the next one.
    pub fn end_between(&mut self, world: &Communicator, from: &Exchanged) {
        let now = Exchanged::of(world);
        self.between.add(&now.since(from));
        self.ended = Some(now);
    }

    /// Takes what no step has counted yet.
    pub fn rest(&mut self) -> Exchanged {
        std::mem::take(&mut self.between)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use burn::tensor::{Device, Tensor};
    use firebrick_world::{Gathering, World};

    use super::*;

    fn gather(rank: &Communicator) -> Gathering {
        rank.begin_all_gather("", vec![Tensor::<1>::ones([1], &Device::flex())], &Device::flex()).unwrap()
    }

    /// Returns the bytes that a step counts which gathers one element, those of a step after it, and those between two steps
    /// after a call that is no step's.
    fn counts(rank: &Communicator) -> [(u64, u64); 3] {
        let mut counted = Counted::default();
        let from = counted.begin(rank);
        let late = gather(rank);
        let step = counted.end(rank, &from);
        // Received after the step.
        late.wait().unwrap();
        let from = counted.begin(rank);
        let next = counted.end(rank, &from);
        gather(rank).wait().unwrap();
        let from = counted.begin(rank);
        counted.end_between(rank, &from);
        [step.bytes(), next.bytes(), counted.rest().bytes()]
    }

    #[test]
    fn what_moves_after_a_step_counts_and_what_other_calls_move_does_not() {
        let ranks = World::threads(2).join().unwrap().into_iter();
        let ranks: Vec<_> = ranks.map(|rank| thread::spawn(move || counts(&rank))).collect();
        for rank in ranks {
            assert_eq!(rank.join().unwrap(), [(4, 0), (0, 4), (0, 0)]);
        }
    }
}
