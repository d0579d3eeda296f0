//! A session's rank among the others: what they tell each other of a step, and what they exchange in it.

use firebrick_datasets::Batch;
use firebrick_strategies::{Agreed, Agreement};
use firebrick_world::Communicator;

use crate::TrainError;
use crate::engine::agreement::{GlobalCounts, PartOfStep, RankCounts, StepOfAll, Tells};
use crate::engine::feed::{Feed, RankBatch, Share};
use crate::engine::step::Step;
use crate::observe::rank_report::Exchanged;

/// A rank of a run, which may be its only one.
pub(super) struct Ranks {
    /// This rank's communicator.
    pub world: Communicator,
    /// So many ranks in a row train on the same samples.
    per_batch: usize,
    /// Counts what is exchanged for each step.
    counted: ExchangeTally,
    /// The counts of the next global batch, if the ranks have told each other of it.
    next: Option<GlobalCounts>,
}

impl Ranks {
    pub fn new(world: Communicator, per_batch: usize) -> Self {
        Self { world, per_batch, counted: ExchangeTally::default(), next: None }
    }

    /// The rank's share of each global batch.
    pub fn share(&self) -> Share {
        Share::of(&self.world, self.per_batch)
    }

    /// Returns the counts of the rank's share of a global batch. What ranks share counts on the first of them only.
    fn counts_of<B: Batch>(&self, batch: &RankBatch<B>) -> RankCounts {
        RankCounts::of(batch, self.world.rank().is_multiple_of(self.per_batch))
    }

    /// Begins a step: returns from where to count what it exchanges.
    pub fn begin(&mut self) -> Exchanged {
        self.counted.begin(&self.world)
    }

    /// Ends a step that began there, and returns what it has exchanged.
    pub fn end(&mut self, from: &Exchanged) -> Exchanged {
        self.counted.end(&self.world, from)
    }

    /// Counts what was exchanged between two steps, since it began there, in the next one.
    pub fn end_between(&mut self, from: &Exchanged) {
        self.counted.end_between(&self.world, from);
    }

    /// Takes what no step has counted yet.
    pub fn rest(&mut self) -> Exchanged {
        self.counted.rest()
    }

    /// Returns what all ranks know of a global batch: what they told each other in the step before, or tell now.
    ///
    /// # Errors
    ///
    /// The same as [`GlobalCounts::agree`].
    pub fn global_counts<B: Batch>(&mut self, batch: &RankBatch<B>) -> Result<GlobalCounts, TrainError> {
        match self.next.take() {
            Some(of_all) => Ok(of_all),
            None => GlobalCounts::agree(&self.world, self.counts_of(batch)),
        }
    }

    /// Prepares what this rank tells the others in a step, if there are others: its part of the loss, its share of the
    /// next global batch, what the training loop tells, and whom the rank has waited for since `before`.
    pub fn telling<B: Batch>(
        &self,
        updates: u64,
        step: &mut Step,
        feed: &mut Feed<B>,
        Tells { stops, saving, may_end }: Tells,
        before: &Exchanged,
    ) -> Option<Agreement> {
        if self.world.size() == 1 {
            return None;
        }
        let next = if may_end { None } else { feed.peek() };
        let next = next.map(|next| self.counts_of(next)).unwrap_or_default();
        let part = PartOfStep { updates, stops, saving, next };
        let (world, before) = (self.world.clone(), before.clone());
        let numbers = move || part.numbers(Exchanged::of(&world).since(&before).slowest());
        Some(Agreement::new(&self.world, step.take_loss(), numbers))
    }

    /// Keeps what the ranks have told each other in a step.
    ///
    /// # Errors
    ///
    /// The same as [`StepOfAll::of`].
    pub fn told(&mut self, agreed: &Agreed, step: &mut Step) -> Result<(), TrainError> {
        let of_all = StepOfAll::of(agreed, self.world.rank())?;
        self.next = of_all.next.clone();
        step.of_all = Some(of_all);
        Ok(())
    }
}

/// Counts what a rank exchanges for its steps, also after they have ended.
///
/// A step ends when the host has queued it. Other threads send its results once the device has computed them, which may be
/// after that. The next step counts these bytes.
#[derive(Debug, Default)]
struct ExchangeTally {
    /// What had been exchanged when the last step ended.
    ended: Option<Exchanged>,
    /// What was exchanged after it had ended.
    between: Exchanged,
}

impl ExchangeTally {
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
        let mut counted = ExchangeTally::default();
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
