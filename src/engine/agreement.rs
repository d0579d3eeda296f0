//! What ranks exchange about a step, so that all decide alike.
//!
//! A single rank exchanges nothing.

use firebrick_datasets::Batch;
use firebrick_strategies::SkipReason;
use firebrick_world::Communicator;

use crate::TrainError;
use crate::engine::feed::{MicroBatch, Window};
use crate::observe::rank_report::Exchanged;
use crate::score::EvaluationSums;

/// A window, over all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WindowOfAll {
    /// Supervised items of each micro-batch, over all ranks.
    pub items: Vec<usize>,
    /// Tokens of the whole window, over all ranks.
    pub tokens: usize,
    /// The first rank that asks to end the run after this window.
    pub stops: Option<usize>,
}

impl WindowOfAll {
    /// Exchanges each rank's part of a window, and whether it asks to end the run.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or is at another position in the data.
    pub fn agree<B: Batch>(
        world: &Communicator,
        window: &Window<B>,
        stops: bool,
    ) -> Result<Self, TrainError> {
        let items = window.batches.iter().map(MicroBatch::items);
        let tokens = window.batches.iter().map(MicroBatch::tokens).sum::<usize>();
        if world.size() == 1 {
            return Ok(Self { items: items.collect(), tokens, stops: stops.then_some(0) });
        }
        let place = [window.epoch, window.after.epoch, window.after.consumed as u64].map(|x| x as f64);
        let mut mine = vec![f64::from(u8::from(stops)), tokens as f64];
        mine.extend(place);
        mine.extend(items.map(|items| items as f64));
        let all = world.numbers("the window's items", &mine)?;
        if let Some(rank) = all.iter().position(|theirs| theirs.len() != mine.len() || theirs[2..5] != place)
        {
            return Err(TrainError::OtherData { rank });
        }
        let sum = |at: usize| all.iter().map(|theirs| theirs[at]).sum::<f64>() as usize;
        Ok(Self {
            items: (5..mine.len()).map(sum).collect(),
            tokens: sum(1),
            stops: all.iter().position(|theirs| theirs[0] != 0.0),
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

/// What ranks exchange when they read a step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LossOfAll {
    /// The sum of the loss over all items.
    pub loss: f64,
    /// The first of several ranks with a non-finite part of the loss.
    pub infinite: Option<usize>,
    /// The rank that was waited for longest, and the seconds that another rank waited for it.
    pub slowest: Option<(usize, f64)>,
}

impl LossOfAll {
    /// Exchanges each rank's part of the loss, and the ranks that it waited for.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn agree(world: &Communicator, loss: f64, exchanged: &Exchanged) -> Result<Self, TrainError> {
        if world.size() == 1 {
            return Ok(Self { loss, infinite: None, slowest: None });
        }
        let (slowest, seconds) = exchanged.slowest().unwrap_or((0, 0.0));
        let all = world.numbers("the loss", &[loss, slowest as f64, seconds])?;
        let longest = all.iter().max_by(|one, other| one[2].total_cmp(&other[2]));
        Ok(Self {
            loss: all.iter().map(|theirs| theirs[0]).sum(),
            infinite: all.iter().position(|theirs| !theirs[0].is_finite()),
            slowest: longest.filter(|theirs| theirs[2] > 0.0).map(|theirs| (theirs[1] as usize, theirs[2])),
        })
    }
}

/// Returns the reason if any rank must skip an update, so that all ranks skip it.
///
/// # Errors
///
/// Another rank is gone.
pub(crate) fn agreed_skip(
    world: &Communicator,
    mine: Option<SkipReason>,
) -> Result<Option<SkipReason>, TrainError> {
    if world.size() == 1 {
        return Ok(mine);
    }
    let code = match mine {
        None => 0.0,
        Some(SkipReason::NonFinite) => 1.0,
        Some(SkipReason::NoItems) => 2.0,
        Some(SkipReason::Other(_)) => 3.0,
    };
    let all = world.numbers("whether to skip the update", &[code])?;
    let first = all.iter().flatten().enumerate().find(|(_, code)| **code != 0.0);
    Ok(first.map(|(rank, code)| match (*code, mine) {
        (1.0, _) => SkipReason::NonFinite,
        (2.0, _) => SkipReason::NoItems,
        (_, Some(other @ SkipReason::Other(_))) => other,
        _ => SkipReason::Other(format!("a strategy of rank {rank} skipped it")),
    }))
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

    /// Builds a window of rows of these lengths, with an empty micro-batch for each 0.
    fn window(lengths: &[usize], consumed: usize) -> Window<TokenBatch> {
        let batch = |&length: &usize| MicroBatch {
            batch: (length > 0).then(|| TokenBatch::from_rows(vec![vec![1; length]], 0).unwrap()),
            first: 0,
        };
        let after = Cursor { epoch: 0, consumed };
        Window { epoch: 0, batches: lengths.iter().map(batch).collect(), after }
    }

    #[test]
    fn items_and_tokens_are_summed_and_one_rank_stops_all() {
        let lengths: [&[usize]; 3] = [&[3, 2], &[4, 0], &[1, 0]];
        let expected = WindowOfAll { items: vec![5, 1], tokens: 10, stops: Some(1) };
        let agreed = on_ranks(3, |world| {
            WindowOfAll::agree(&world, &window(lengths[world.rank()], 8), world.rank() > 0).unwrap()
        });
        assert_eq!(agreed, vec![expected; 3]);
    }

    #[test]
    fn ranks_at_another_position_of_the_data_end() {
        let errors = on_ranks(2, |world| {
            let consumed = 8 + world.rank();
            WindowOfAll::agree(&world, &window(&[3], consumed), false).unwrap_err().to_string()
        });
        assert!(errors[0].contains("rank 1 is at another position"), "{}", errors[0]);
        assert!(errors[1].contains("rank 0 is at another position"), "{}", errors[1]);
    }

    #[test]
    fn all_skip_where_one_does_for_the_first_reason() {
        let own = |rank: usize| (rank == 2).then(|| SkipReason::Other("a spike".into()));
        let agreed = on_ranks(3, |world| agreed_skip(&world, own(world.rank())).unwrap());
        let elsewhere = SkipReason::Other("a strategy of rank 2 skipped it".into());
        assert_eq!(agreed, [Some(elsewhere.clone()), Some(elsewhere), own(2)]);
        assert_eq!(on_ranks(2, |world| agreed_skip(&world, None).unwrap()), [None, None]);
    }

    #[test]
    fn what_one_rank_says_all_know() {
        for alone in [1, 3] {
            let said = on_ranks(alone, |world| any(&world, "first", world.rank() == 0).unwrap());
            assert_eq!(said, vec![true; alone]);
        }
        assert_eq!(on_ranks(2, |world| any(&world, "nobody", false).unwrap()), [false, false]);
    }

    #[test]
    fn the_loss_is_the_sum_and_the_slowest_rank_is_the_one_waited_for_longest() {
        // Rank 1 waited for rank 2 for three seconds, rank 0 for rank 1 for one; rank 2 waited for nobody.
        let waited = [vec![0.0, 1.0, 0.5], vec![0.0, 0.0, 3.0], vec![0.0; 3]];
        let losses = [0.5, f64::NAN, 0.25];
        let agreed = |losses: [f64; 3]| {
            on_ranks(3, |world| {
                let exchanged = Exchanged { waited: waited[world.rank()].clone(), ..Default::default() };
                LossOfAll::agree(&world, losses[world.rank()], &exchanged).unwrap()
            })
        };
        let expected = LossOfAll { loss: 1.75, infinite: None, slowest: Some((2, 3.0)) };
        assert_eq!(agreed([0.5, 1.0, 0.25]), vec![expected; 3]);
        assert!(agreed(losses).iter().all(|of_all| of_all.loss.is_nan() && of_all.infinite == Some(1)));
    }
}
