//! Metrics of an evaluation besides the loss, and the one that selects the best model.

use std::collections::BTreeMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use crate::TrainError;

/// A metric of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The name to show, to log, and to select as [`best_by`](crate::Trainer::best_by).
    pub name: &'static str,
    /// The value; NaN if there is nothing to score.
    pub value: f64,
    /// Whether a higher value is better.
    pub higher_is_better: bool,
}

impl Score {
    /// Creates a score for which higher is better, such as an F1.
    pub fn higher(name: &'static str, value: f64) -> Self {
        Self { name, value, higher_is_better: true }
    }

    /// Creates a score for which lower is better, such as a perplexity.
    pub fn lower(name: &'static str, value: f64) -> Self {
        Self { name, value, higher_is_better: false }
    }
}

/// The sums of an evaluation, over all batches and ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvaluationSums {
    /// The sum of the losses of all items.
    pub loss: f64,
    /// Number of items.
    pub items: usize,
    /// The model's [counts](crate::Evaluation::counts); none before the first batch.
    pub counts: Vec<f64>,
}

impl EvaluationSums {
    /// Adds a batch, or the sums of a rank. One without items may have no counts.
    pub fn add(&mut self, loss: f64, items: usize, counts: &[f64]) {
        self.loss += loss;
        self.items += items;
        self.counts.resize(self.counts.len().max(counts.len()), 0.0);
        self.counts.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
}

/// Computes a score that a program adds to those of the model: see [`Trainer::score`](crate::Trainer::score). A closure
/// that takes the [sums](EvaluationSums) of an evaluation and returns a [`Score`] is one.
pub trait ScoreFn: Send + Sync {
    /// Computes the score. Before the run the trainer calls this with empty sums, to learn the name.
    fn score(&self, sums: &EvaluationSums) -> Score;
}

impl<F: Fn(&EvaluationSums) -> Score + Send + Sync> ScoreFn for F {
    fn score(&self, sums: &EvaluationSums) -> Score {
        self(sums)
    }
}

/// The scores that a program adds.
#[derive(Clone, Default)]
pub(crate) struct AddedScores(Vec<Arc<dyn ScoreFn>>);

impl AddedScores {
    pub fn add(&mut self, score: impl ScoreFn + 'static) {
        self.0.push(Arc::new(score));
    }

    /// Returns the scores of a model, and the added ones after them.
    pub fn after(&self, mut scores: Vec<Score>, sums: &EvaluationSums) -> Vec<Score> {
        scores.extend(self.0.iter().map(|score| score.score(sums)));
        scores
    }
}

impl Debug for AddedScores {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} scores", self.0.len())
    }
}

/// Rejects a score whose name another score or the loss has.
///
/// # Errors
///
/// [`TrainError::ScoreName`].
pub(crate) fn require_names(scores: &[Score]) -> Result<(), TrainError> {
    let is_taken = |(at, score): (usize, &Score)| {
        score.name.eq_ignore_ascii_case("loss") || scores[..at].iter().any(|other| other.name == score.name)
    };
    match scores.iter().enumerate().find(|score| is_taken(*score)) {
        Some((_, score)) => Err(TrainError::ScoreName { score: score.name }),
        None => Ok(()),
    }
}

/// The scores of an evaluation by name, as files store them.
pub type Scores = BTreeMap<String, f64>;

/// The number that selects the best evaluation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BestBy {
    /// The validation loss; lower is better.
    #[default]
    Loss,
    /// A score of the model.
    Score {
        /// Its name.
        name: String,
        /// Whether a higher value is better.
        higher_is_better: bool,
    },
}

impl BestBy {
    /// Finds the wanted score among those of a model.
    ///
    /// # Errors
    ///
    /// [`TrainError::Score`] if the model has no score of that name.
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

    /// Returns whether higher is better.
    pub fn is_higher(&self) -> bool {
        matches!(self, Self::Score { higher_is_better: true, .. })
    }

    /// Returns the number; NaN if the loss is not finite, because the scores of a diverged model mean nothing.
    pub fn value(&self, loss: f64, scores: &Scores) -> f64 {
        match self {
            _ if !loss.is_finite() => f64::NAN,
            Self::Loss => loss,
            Self::Score { name, .. } => scores.get(name).copied().unwrap_or(f64::NAN),
        }
    }

    /// Returns whether `value` is better than another; never for a value that is not finite.
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
