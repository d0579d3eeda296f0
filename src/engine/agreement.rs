//! What ranks exchange about a step, so that all decide alike: numbers, once in each step.
//!
//! A single rank exchanges nothing.

use firebrick_datasets::Batch;
use firebrick_strategies::Agreed;
use firebrick_world::Communicator;

use crate::TrainError;
use crate::engine::feed::{MicroBatch, RankBatch};
use crate::score::EvaluationSums;

/// The items and tokens of a global batch, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GlobalCounts {
    /// Supervised items of each micro-batch, over all ranks.
    pub items: Vec<usize>,
    /// Tokens of the whole global batch.
    pub tokens: usize,
}

/// What a rank tells the others of its share of a global batch: where in the data it is, its tokens and its items.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankCounts(Vec<f64>);

impl RankCounts {
    /// How many numbers say where in the data the global batch is.
    const PLACE: usize = 3;

    /// Counts a rank's share. A rank whose samples another one `counts` has no items and no tokens of its own.
    pub fn of<B: Batch>(batch: &RankBatch<B>, counts: bool) -> Self {
        let own = |number: usize| if counts { number as f64 } else { 0.0 };
        let place = [batch.epoch, batch.after.epoch, batch.after.consumed as u64].map(|x| x as f64);
        let tokens = batch.micro_batches.iter().map(MicroBatch::tokens).sum::<usize>();
        let items = batch.micro_batches.iter().map(|micro_batch| own(micro_batch.items()));
        Self(place.into_iter().chain([own(tokens)]).chain(items).collect())
    }

    /// Sums the parts of all ranks. The error is the first rank that is at another position in the data than `own`.
    fn summed(all: &[&[f64]], own: usize) -> Result<GlobalCounts, usize> {
        let (own, place) = (all[own], |part: &[f64]| part.get(..Self::PLACE).map(<[f64]>::to_vec));
        let is_elsewhere = |part: &&[f64]| part.len() != own.len() || place(part) != place(own);
        if let Some(rank) = all.iter().position(is_elsewhere) {
            return Err(rank);
        }
        let mut sums =
            (Self::PLACE..own.len()).map(|at| all.iter().map(|part| part[at]).sum::<f64>() as usize);
        let tokens = sums.next().unwrap_or(0);
        Ok(GlobalCounts { tokens, items: sums.collect() })
    }
}

impl GlobalCounts {
    /// Exchanges the counts of the ranks. Only the first step of a run needs it, or one after a step at which the run
    /// could have ended: those of any other step are part of the exchange of the step before.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or is at another position in the data.
    pub fn agree(world: &Communicator, mine: RankCounts) -> Result<Self, TrainError> {
        let all = match world.size() {
            1 => vec![mine.0],
            _ => world.numbers("the items of the step", &mine.0)?,
        };
        let parts: Vec<_> = all.iter().map(Vec::as_slice).collect();
        RankCounts::summed(&parts, world.rank()).map_err(|rank| TrainError::OtherData { rank })
    }
}

/// What the training loop tells in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Tells {
    /// Whether this rank asks to end the run after the step.
    pub stops: bool,
    /// Whether this rank still works on its part of a save.
    pub saving: bool,
    /// Whether the run may end with the step, so that none may follow.
    pub may_end: bool,
}

/// What a rank tells the others in a step, besides what [`Agreed`] names.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartOfStep {
    /// The updates made so far.
    pub updates: u64,
    /// Whether the rank asks to end the run after this step.
    pub stops: bool,
    /// Whether the rank still works on its part of a save.
    pub saving: bool,
    /// The counts of its share of the next global batch, if the run goes on and the rank could draw it.
    pub next: RankCounts,
}

impl PartOfStep {
    /// The numbers before the counts of the next global batch.
    const FIXED: usize = 5;

    /// Returns the part as numbers, with the rank that this one has waited for longest in the step, and the seconds.
    pub fn numbers(&self, slowest: Option<(usize, f64)>) -> Vec<f64> {
        let (slowest, seconds) = slowest.unwrap_or((0, 0.0));
        let flag = |flag: bool| f64::from(u8::from(flag));
        let fixed = [self.updates as f64, flag(self.stops), flag(self.saving), slowest as f64, seconds];
        fixed.into_iter().chain(self.next.0.iter().copied()).collect()
    }
}

/// What all ranks know of a step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StepOfAll {
    /// The sum of the loss over all items.
    pub loss: f64,
    /// The first of several ranks with a non-finite part of the loss.
    pub infinite: Option<usize>,
    /// The rank that was waited for longest, and the seconds that another rank waited for it.
    pub slowest: Option<(usize, f64)>,
    /// The first rank that asks to end the run after this step.
    pub stops: Option<usize>,
    /// Whether any rank still works on its part of a save.
    pub saving: bool,
    /// The counts of the next global batch, unless a rank has none or is elsewhere in the data.
    pub next: Option<GlobalCounts>,
}

impl StepOfAll {
    /// Reads what the ranks have agreed on; this is the rank `own`.
    ///
    /// # Errors
    ///
    /// Another rank has made another number of updates.
    pub fn of(agreed: &Agreed, own: usize) -> Result<Self, TrainError> {
        let Agreed { losses, numbers, .. } = agreed;
        let updates = |rank: usize| numbers[rank][0] as u64;
        if let Some(rank) = (0..numbers.len()).find(|rank| updates(*rank) != updates(own)) {
            return Err(TrainError::OtherUpdates { rank, theirs: updates(rank), own: updates(own) });
        }
        let of_rank = |at: usize| numbers.iter().map(move |theirs| theirs[at]);
        let longest = of_rank(3).zip(of_rank(4)).max_by(|one, other| one.1.total_cmp(&other.1));
        let next: Vec<_> = numbers.iter().map(|theirs| &theirs[PartOfStep::FIXED..]).collect();
        Ok(Self {
            loss: losses.iter().sum(),
            infinite: losses.iter().position(|loss| !loss.is_finite()),
            slowest: longest
                .filter(|(_, seconds)| *seconds > 0.0)
                .map(|(rank, seconds)| (rank as usize, seconds)),
            stops: of_rank(1).position(|stops| stops != 0.0),
            saving: of_rank(2).any(|saving| saving != 0.0),
            // What does not fit is found again, and named, when the next step begins.
            next: match next[own].is_empty() {
                true => None,
                false => RankCounts::summed(&next, own).ok(),
            },
        })
    }
}

/// The sums of an evaluation, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SumsOfAll {
    pub sums: EvaluationSums,
    /// The first rank that asks to end the run now.
    pub stops: Option<usize>,
}

impl SumsOfAll {
    /// Exchanges each rank's part, and whether it asks to end the run.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn agree(world: &Communicator, part: &EvaluationSums, stops: bool) -> Result<Self, TrainError> {
        let mut mine = vec![part.loss, part.items as f64, f64::from(u8::from(stops))];
        mine.extend(&part.counts);
        let all = world.numbers("the validation loss", &mine)?;
        let stops = all.iter().position(|theirs| theirs[2] != 0.0);
        let mut sums = EvaluationSums::default();
        all.iter().for_each(|theirs| sums.add(theirs[0], theirs[1] as usize, &theirs[3..]));
        Ok(Self { sums, stops })
    }
}

/// Returns whether `mine` is true on any rank.
///
/// # Errors
///
/// Another rank is gone.
pub fn any(world: &Communicator, what: &str, mine: bool) -> Result<bool, TrainError> {
    match world.size() {
        1 => Ok(mine),
        _ => Ok(world.numbers(what, &[f64::from(u8::from(mine))])?.iter().flatten().any(|flag| *flag != 0.0)),
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::{Cursor, TokenBatch};

    use super::*;
    use crate::testing::on_ranks;

    /// Builds a share with rows of these lengths, with an empty micro-batch for each 0.
    fn share(lengths: &[usize], consumed: usize) -> RankBatch<TokenBatch> {
        let micro_batch = |&length: &usize| MicroBatch {
            batch: (length > 0).then(|| TokenBatch::from_rows(vec![vec![1; length]], 0).unwrap()),
            positions: 0..0,
        };
        let after = Cursor { epoch: 0, consumed };
        RankBatch { epoch: 0, micro_batches: lengths.iter().map(micro_batch).collect(), after }
    }

    fn own(lengths: &[usize], consumed: usize) -> RankCounts {
        RankCounts::of(&share(lengths, consumed), true)
    }

    #[test]
    fn items_and_tokens_are_summed() {
        let lengths: [&[usize]; 3] = [&[3, 2], &[4, 0], &[1, 0]];
        let expected = GlobalCounts { items: vec![5, 1], tokens: 10 };
        let agreed = on_ranks(3, |world| GlobalCounts::agree(&world, own(lengths[world.rank()], 8)).unwrap());
        assert_eq!(agreed, vec![expected; 3]);
        // Two ranks that share the tokens of their samples.
        let shared = on_ranks(2, |world| {
            let part = RankCounts::of(&share(&[3, 2], 8), world.rank() == 0);
            GlobalCounts::agree(&world, part).unwrap()
        });
        assert_eq!(shared, vec![GlobalCounts { items: vec![2, 1], tokens: 5 }; 2]);
    }

    #[test]
    fn ranks_at_another_position_of_the_data_end() {
        let errors = on_ranks(2, |world| {
            let consumed = 8 + world.rank();
            GlobalCounts::agree(&world, own(&[3], consumed)).unwrap_err().to_string()
        });
        assert!(errors[0].contains("rank 1 is at another position"), "{}", errors[0]);
        assert!(errors[1].contains("rank 0 is at another position"), "{}", errors[1]);
    }

    #[test]
    fn what_one_rank_says_all_know() {
        for alone in [1, 3] {
            let said = on_ranks(alone, |world| any(&world, "first", world.rank() == 0).unwrap());
            assert_eq!(said, vec![true; alone]);
        }
        assert_eq!(on_ranks(2, |world| any(&world, "nobody", false).unwrap()), [false, false]);
    }

    /// Returns what three ranks know of a step in which they tell these parts.
    fn of_all(losses: [f64; 3], parts: &[PartOfStep; 3]) -> Vec<Result<StepOfAll, TrainError>> {
        // Rank 1 waited for rank 2 for three seconds, rank 0 for rank 1 for one; rank 2 waited for nobody.
        let slowest = [Some((1, 1.0)), Some((2, 3.0)), None];
        let numbers = parts.iter().zip(slowest).map(|(part, slowest)| part.numbers(slowest)).collect();
        let agreed = Agreed {
            skip: None,
            squares: vec![0.0; 3],
            wholes: vec![0.0; 3],
            losses: losses.into(),
            numbers,
        };
        (0..3).map(|own| StepOfAll::of(&agreed, own)).collect()
    }

    fn part(next: &[usize]) -> PartOfStep {
        PartOfStep { updates: 5, next: own(next, 8), ..PartOfStep::default() }
    }

    #[test]
    fn a_step_tells_all_ranks_the_loss_the_slowest_who_stops_and_the_next_global_batch() {
        let parts = [
            PartOfStep { saving: true, ..part(&[3, 2]) },
            PartOfStep { stops: true, ..part(&[4, 0]) },
            PartOfStep { stops: true, ..part(&[1, 0]) },
        ];
        let next = Some(GlobalCounts { items: vec![5, 1], tokens: 10 });
        let expected = StepOfAll {
            loss: 1.75,
            infinite: None,
            slowest: Some((2, 3.0)),
            stops: Some(1),
            saving: true,
            next,
        };
        for known in of_all([0.5, 1.0, 0.25], &parts) {
            assert_eq!(known.unwrap(), expected);
        }
        for known in of_all([0.5, f64::NAN, 0.25], &parts) {
            let known = known.unwrap();
            assert!(known.loss.is_nan() && known.infinite == Some(1));
        }
    }

    #[test]
    fn the_next_global_batch_is_unknown_to_all_if_one_rank_lacks_it_or_is_elsewhere() {
        let without = PartOfStep { updates: 5, ..PartOfStep::default() };
        for other in [without, part(&[3, 2, 1])] {
            let known = of_all([0.0; 3], &[part(&[3, 2]), other, part(&[3, 2])]);
            assert!(known.into_iter().all(|known| known.unwrap().next.is_none()));
        }
    }

    #[test]
    fn ranks_that_decided_differently_end() {
        let behind = PartOfStep { updates: 4, ..part(&[3]) };
        let errors = of_all([0.0; 3], &[part(&[3]), behind, part(&[3])]);
        let errors: Vec<_> = errors.into_iter().map(|known| known.unwrap_err().to_string()).collect();
        assert!(errors[0].contains("rank 1 has made 4 updates, and this rank 5"), "{}", errors[0]);
        assert!(errors[1].contains("rank 0 has made 5 updates, and this rank 4"), "{}", errors[1]);
    }
}
