//! What evaluation says of a model besides its loss, and by what the best one is told.

use std::collections::BTreeMap;

use crate::{Loss, TrainError};

/// What a model makes of one batch in evaluation: its loss, and counts for the scores.
///
/// Counts are summed over all batches and ranks, and [`Objective::scores`](crate::Objective::scores) makes scores of
/// the sums: the F1 of a data set is that of its counts, and not a mean of its batches' F1.
#[derive(Debug)]
pub struct Evaluation {
    /// The summed loss.
    pub loss: Loss,
    /// What can be added up, in an order that the model knows: as many numbers for each batch.
    pub counts: Vec<f64>,
}

impl From<Loss> for Evaluation {
    fn from(loss: Loss) -> Self {
        Self { loss, counts: Vec::new() }
    }
}

/// A number that says how good a model is.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// What it is called where it is shown, logged, and chosen as [`best_by`](crate::Trainer::best_by).
    pub name: &'static str,
    /// Its value; not a number where there is nothing to score.
    pub value: f64,
    /// Whether a better model has more of it.
    pub higher_is_better: bool,
}

impl Score {
    /// One that a better model has more of, as of an F1.
    pub fn higher(name: &'static str, value: f64) -> Self {
        Self { name, value, higher_is_better: true }
    }

    /// One that a better model has less of, as of a perplexity.
    pub fn lower(name: &'static str, value: f64) -> Self {
        Self { name, value, higher_is_better: false }
    }
}

/// The scores of an evaluation by name, as files keep them.
pub type Scores = BTreeMap<String, f64>;

/// The number by which the best evaluation is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum BestBy {
    #[default]
    Loss,
    Score {
        name: String,
        higher_is_better: bool,
    },
}

impl BestBy {
    /// The one that is wanted, out of the scores that a model has.
    ///
    /// # Errors
    ///
    /// [`TrainError::Score`]: it has none of that name.
    pub fn of(wanted: Option<&String>, scores: &[Score]) -> Result<Self, TrainError> {
        let Some(wanted) = wanted else { return Ok(Self::Loss) };
        match scores.iter().find(|score| score.name == wanted) {
            Some(score) => Ok(Self::Score { name: wanted.clone(), higher_is_better: score.higher_is_better }),
            None => Err(TrainError::Score {
                score: wanted.clone(),
                known: scores.iter().map(|score| score.name).collect(),
            }),
        }
    }

    /// Whether more of it is better.
    pub fn is_higher(&self) -> bool {
        matches!(self, Self::Score { higher_is_better: true, .. })
    }

    /// The number itself; not a number where the loss is not finite: what a broken model scores says nothing.
    pub fn value(&self, loss: f64, scores: &Scores) -> f64 {
        match self {
            _ if !loss.is_finite() => f64::NAN,
            Self::Loss => loss,
            Self::Score { name, .. } => scores.get(name).copied().unwrap_or(f64::NAN),
        }
    }

    /// Whether a value is the better one; what is not a number never is.
    pub fn is_better(&self, value: f64, than: Option<f64>) -> bool {
        value.is_finite()
            && than.is_none_or(|than| match self.is_higher() {
                true => !than.is_finite() || value > than,
                false => !than.is_finite() || value < than,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_one_is_lower_or_higher_and_always_a_number() {
        let f1 = BestBy::Score { name: "f1".into(), higher_is_better: true };
        for (by, value, than, is_better) in [
            (BestBy::Loss, 1.0, Some(2.0), true),
            (BestBy::Loss, 2.0, Some(2.0), false),
            (BestBy::Loss, f64::NAN, None, false),
            (BestBy::Loss, 9.0, None, true),
            (f1.clone(), 2.0, Some(1.0), true),
            (f1.clone(), 1.0, Some(2.0), false),
            (f1.clone(), 1.0, Some(f64::NAN), true),
        ] {
            assert_eq!(by.is_better(value, than), is_better, "{by:?} {value} {than:?}");
        }
        let scores = Scores::from([("f1".into(), 0.5)]);
        assert_eq!((f1.value(3.0, &scores), BestBy::Loss.value(3.0, &scores)), (0.5, 3.0));
        assert!(f1.value(f64::NAN, &scores).is_nan());
    }
}
