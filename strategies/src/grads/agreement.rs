//! What the ranks tell each other about an optimizer step.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use burn::tensor::Tensor;
use firebrick_world::{Communicator, numbers};

use super::SkipReason;
use crate::StrategyError;

/// The one exchange of numbers that several ranks make in an optimizer step.
///
/// It tells all ranks whether one of them skips the step, each rank's part of the loss and of the norm of sharded
/// gradients, and the trainer's own numbers. Whatever needs one of these first makes the exchange: a stage that asks for the
/// [norm](crate::Grads::norm), or the trainer after the last stage. Ranks that get there at different stages, because one of them
/// skips the step, meet in the same call.
///
/// Clones are the same exchange.
///
/// ```
/// use firebrick_strategies::{Agreement, Communicator, SkipReason};
///
/// let agreement = Agreement::new(&Communicator::solo(), None, || vec![7.0]);
/// assert_eq!(agreement.made(), None);
/// let agreed = agreement.make(Some(&SkipReason::NoItems))?;
/// assert_eq!(agreed.skip, Some(SkipReason::NoItems));
/// assert_eq!(agreed.numbers, [[7.0]]);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone)]
pub struct Agreement(Arc<Inner>);

struct Inner {
    world: Communicator,
    told: Mutex<RankNumbers>,
    made: OnceLock<Agreed>,
}

/// What this rank tells the others.
struct RankNumbers {
    loss: Option<Tensor<1>>,
    numbers: Option<Box<dyn FnOnce() -> Vec<f64> + Send>>,
}

/// What each rank has told, by rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreed {
    /// The reason of the first rank that skips the step, if any does.
    pub skip: Option<SkipReason>,
    /// Each rank's part of the sum of the squares of sharded gradients.
    pub squares: Vec<f64>,
    /// What each rank computed of the gradients that all ranks have: the same, up to the rounding of their devices. The ranks
    /// use the number of the first, so that they decide alike.
    pub wholes: Vec<f64>,
    /// Each rank's part of the loss.
    pub losses: Vec<f64>,
    /// Each rank's numbers of the trainer.
    pub numbers: Vec<Vec<f64>>,
}

impl fmt::Debug for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Agreement").field(&self.0.made).finish()
    }
}

impl Agreement {
    /// Prepares the exchange: this rank's part of the loss, `[1]`, if it has one, and the trainer's `numbers`, which are asked
    /// for when the exchange is made. Ranks may have different amounts of them.
    pub fn new(
        world: &Communicator,
        loss: Option<Tensor<1>>,
        numbers: impl FnOnce() -> Vec<f64> + Send + 'static,
    ) -> Self {
        let told = Mutex::new(RankNumbers { loss, numbers: Some(Box::new(numbers)) });
        Self(Arc::new(Inner { world: world.clone(), told, made: OnceLock::new() }))
    }

    /// Returns what the ranks have told each other, once they have.
    pub fn made(&self) -> Option<&Agreed> {
        self.0.made.get()
    }

    /// Makes the exchange, unless it has been made: tells the others whether this rank skips the step.
    ///
    /// # Errors
    ///
    /// Another rank is gone, or the device has failed.
    pub fn make(&self, skip: Option<&SkipReason>) -> Result<&Agreed, StrategyError> {
        match self.made() {
            Some(agreed) => Ok(agreed),
            None => self.make_with(skip, None, None),
        }
    }

    /// Makes the exchange with this rank's sum of squares, `[1]`, and with what it computed of the gradients that all ranks
    /// have, `[1]`. Reads them and the loss with one wait for the device.
    pub(crate) fn make_with(
        &self,
        skip: Option<&SkipReason>,
        squares: Option<Tensor<1>>,
        whole: Option<Tensor<1>>,
    ) -> Result<&Agreed, StrategyError> {
        let Inner { world, told, made } = &*self.0;
        let RankNumbers { loss, numbers: own } = &mut *told.lock().unwrap_or_else(PoisonError::into_inner);
        let late = [squares, whole, loss.take()];
        let exist = late.each_ref().map(Option::is_some);
        let read = numbers(late.into_iter().flatten().collect());
        let mut read = read.map_err(|error| StrategyError::Read(error.to_string()))?.into_iter();
        let late = exist.map(|exists| if exists { read.next() } else { None }.unwrap_or(0.0));
        let mut mine = vec![code(skip)];
        mine.extend(late);
        mine.extend(own.take().map(|own| own()).unwrap_or_default());
        let all = world.numbers("the numbers of the step", &mine)?;
        let column = |at: usize| all.iter().map(|theirs| theirs[at]).collect::<Vec<_>>();
        let agreed = Agreed {
            skip: first_reason(&column(0), skip),
            squares: column(1),
            wholes: column(2),
            losses: column(3),
            numbers: all.iter().map(|theirs| theirs[4..].to_vec()).collect(),
        };
        Ok(made.get_or_init(|| agreed))
    }
}

/// Writes a reason as a number.
fn code(skip: Option<&SkipReason>) -> f64 {
    match skip {
        None => 0.0,
        Some(SkipReason::NonFinite) => 1.0,
        Some(SkipReason::NoItems) => 2.0,
        Some(SkipReason::Other(_)) => 3.0,
    }
}

/// Returns the reason of the first rank that skips, as far as this rank knows it.
fn first_reason(codes: &[f64], mine: Option<&SkipReason>) -> Option<SkipReason> {
    let (rank, code) = codes.iter().enumerate().find(|(_, code)| **code != 0.0)?;
    Some(match (*code, mine) {
        (1.0, _) => SkipReason::NonFinite,
        (2.0, _) => SkipReason::NoItems,
        (_, Some(other @ SkipReason::Other(_))) => other.clone(),
        _ => SkipReason::Other(format!("a strategy of rank {rank} skipped it")),
    })
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use firebrick_world::{Collective, World};

    use super::*;

    /// Makes the exchange on three ranks, of which each may skip.
    fn agreed(skips: [Option<SkipReason>; 3]) -> Vec<Agreed> {
        let ranks = World::threads(3).join().unwrap().into_iter().zip(skips).map(|(world, skip)| {
            std::thread::spawn(move || {
                let number = |x: f32| Tensor::<1>::from_data([x], &Device::flex());
                let own = world.rank() as f32;
                // The last rank has no items, and so no loss.
                let loss = (own < 2.0).then(|| number(own + 0.5));
                let rank = world.rank();
                let agreement = Agreement::new(&world, loss, move || vec![7.0; rank]);
                agreement.make_with(skip.as_ref(), Some(number(own)), Some(number(9.0))).unwrap();
                // Whoever asks later makes no other exchange, and cannot change what was agreed.
                let agreed = agreement.make(Some(&SkipReason::NoItems)).unwrap().clone();
                assert_eq!(agreement.made(), Some(&agreed));
                assert_eq!(world.traffic().of(Collective::Scalars).calls, 1);
                agreed
            })
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    #[test]
    fn each_rank_knows_the_numbers_of_all() {
        let expected = Agreed {
            skip: None,
            squares: vec![0.0, 1.0, 2.0],
            wholes: vec![9.0; 3],
            losses: vec![0.5, 1.5, 0.0],
            numbers: vec![vec![], vec![7.0], vec![7.0; 2]],
        };
        assert_eq!(agreed([None, None, None]), vec![expected; 3]);
    }

    #[test]
    fn all_skip_where_one_does_for_the_first_reason() {
        let skips = |skips| agreed(skips).into_iter().map(|agreed| agreed.skip.unwrap()).collect::<Vec<_>>();
        let spike = SkipReason::Other("a spike".into());
        let elsewhere = SkipReason::Other("a strategy of rank 2 skipped it".into());
        assert_eq!(skips([None, None, Some(spike.clone())]), [elsewhere.clone(), elsewhere, spike.clone()]);
        assert_eq!(skips([None, Some(SkipReason::NonFinite), Some(spike)]), vec![SkipReason::NonFinite; 3]);
    }
}
