//! The progress of a run: everything besides the weights that its future and its report depend on.

use std::collections::VecDeque;

use firebrick_datasets::Cursor;
use firebrick_strategies::{SavedNumber, SkipReason};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::observe::numbers::{EvaluationNumbers, StepNumbers};
use crate::score::BestBy;

/// Number of updates in the mean of the reported training loss.
pub(crate) const RECENT: usize = 100;

/// Steps in a row with a non-finite loss after which a run counts as diverged.
const MANY_INFINITE: u64 = 10;

/// Skipped steps in a row, or steps in a row with a non-finite loss, after which a run ends with an error.
const MOST_SKIPS: u64 = 100;

/// The host-side state of a run, which a checkpoint carries to the next process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// The position in the data.
    pub cursor: Cursor,
    /// Finished rounds. A round ends with an evaluation.
    pub rounds: usize,
    /// Whether the last step of this round is made, and only its evaluation is missing.
    pub evaluation_due: bool,
    /// Updates made before this round. Older checkpoints do not have it.
    #[serde(default)]
    pub round_start: u64,
    /// Steps of this round so far, those without an update included. Older checkpoints do not have it.
    #[serde(default, rename = "round_windows")]
    pub round_steps: u64,
    /// Loss and items of the recent updates.
    pub recent: VecDeque<(SavedNumber, usize)>,
    /// Steps that made no update.
    pub skipped: u64,
    pub skipped_in_a_row: u64,
    /// Steps in a row with a non-finite loss, whether they made an update or not.
    pub infinite_in_a_row: u64,
    /// The rank on which it began, if there are several.
    pub infinite_first: Option<usize>,
    #[serde(default, with = "saved_evaluation")]
    pub validation: Option<EvaluationNumbers>,
    #[serde(default, with = "saved_evaluation")]
    pub best: Option<EvaluationNumbers>,
    /// Evaluations since the best one.
    pub evaluations_since_best: usize,
}

impl Progress {
    /// Prepares the progress of a run that resumes after `updates` updates.
    pub fn going_on(self, updates: u64) -> Self {
        let last = self.validation.as_ref().map_or(updates, |last| last.step);
        let is_known = self.rounds == 0 || self.round_start > 0;
        let round_start = if is_known { self.round_start } else { last }.min(updates);
        // Older checkpoints only have the updates.
        let round_steps = self.round_steps.max(updates - round_start);
        Self { round_start, round_steps, ..self }
    }

    /// Adds a step, and counts what shows that the run diverges. `infinite` is the first of several ranks with a
    /// non-finite part of the loss.
    ///
    /// # Errors
    ///
    /// [`TrainError::OnlySkips`] or [`TrainError::Diverged`] after many such steps in a row.
    pub fn add(&mut self, numbers: &StepNumbers, infinite: Option<usize>) -> Result<(), TrainError> {
        self.round_steps = self.round_steps.saturating_add(1);
        if self.skipped_in_a_row == 0 && self.infinite_in_a_row == 0 {
            self.infinite_first = infinite;
        }
        // A step without items has no loss.
        if numbers.items > 0 {
            let finite = numbers.loss.is_finite();
            self.infinite_in_a_row = if finite { 0 } else { self.infinite_in_a_row.saturating_add(1) };
        }
        match &numbers.skipped {
            None => self.skipped_in_a_row = 0,
            Some(reason) => {
                self.skipped = self.skipped.saturating_add(1);
                self.skipped_in_a_row = self.skipped_in_a_row.saturating_add(1);
                if self.skipped_in_a_row >= MOST_SKIPS {
                    return Err(self.only_skips(reason));
                }
            }
        }
        if self.infinite_in_a_row >= MOST_SKIPS {
            return Err(TrainError::Diverged { updates: self.infinite_in_a_row, first: self.infinite_first });
        }
        if numbers.skipped.is_none() {
            self.add_loss(numbers.loss, numbers.items);
        }
        Ok(())
    }

    /// Adds the loss of an update, the mean over `items` items.
    fn add_loss(&mut self, loss: f64, items: usize) {
        self.recent.push_back((SavedNumber(loss), items));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Records an evaluation, and returns whether it is the best so far.
    pub fn evaluated(&mut self, numbers: EvaluationNumbers, by: &BestBy) -> bool {
        self.validation = Some(numbers.clone());
        let best = self.best.as_ref().map(|best| by.value(best.loss, &best.scores));
        let is_best = by.is_better(by.value(numbers.loss, &numbers.scores), best);
        self.evaluations_since_best = if is_best { 0 } else { self.evaluations_since_best.saturating_add(1) };
        if is_best {
            self.best = Some(numbers);
        }
        is_best
    }

    /// Returns whether the losses are consistent with sound weights. They are not if the validation loss was finite
    /// once and no longer is, or if the losses of many steps in a row were not finite. A single such step may
    /// contain a bad sample, and validation data whose loss was never finite says nothing about the weights.
    pub fn is_sound(&self) -> bool {
        let validated = self.validation.as_ref().is_none_or(|numbers| numbers.loss.is_finite());
        let diverged = self.infinite_in_a_row >= MANY_INFINITE;
        !diverged && (validated || self.best.is_none() && self.infinite_in_a_row == 0)
    }

    /// Refuses the weights of a run that was diverging at its end, whose last step was `last`.
    ///
    /// # Errors
    ///
    /// [`TrainError::NotFinite`] if the last validation loss is not finite. [`TrainError::OnlySkips`] if the gradients
    /// of the last steps, or of all, were not finite. A few such steps may be an overflow or a bad sample.
    pub fn require_finite(&self, last: &StepNumbers) -> Result<(), TrainError> {
        if let Some(EvaluationNumbers { step, loss, .. }) = self.validation
            && !loss.is_finite()
        {
            return Err(TrainError::NotFinite { step, loss });
        }
        let reason = last.skipped.as_ref().filter(|reason| **reason == SkipReason::NonFinite.to_string());
        match reason {
            Some(reason) if last.step == 0 || self.skipped_in_a_row >= MANY_INFINITE => {
                Err(self.only_skips(reason))
            }
            _ => Ok(()),
        }
    }

    /// Builds the error of a run that makes no more updates, with the reason of the last step.
    fn only_skips(&self, reason: &str) -> TrainError {
        TrainError::OnlySkips {
            count: self.skipped_in_a_row,
            reason: reason.into(),
            first: self.infinite_first,
        }
    }

    /// Returns the mean loss of the recent updates, weighted by items.
    pub fn recent_loss(&self) -> f64 {
        let items: usize = self.recent.iter().map(|(_, items)| items).sum();
        let sum: f64 = self.recent.iter().map(|(loss, items)| loss.0 * *items as f64).sum();
        sum / items.max(1) as f64
    }
}

/// An evaluation in a checkpoint.
///
/// A checkpoint keeps infinity and NaN apart, which a line of the log has as `null`: the best evaluation so far, and
/// whether a run diverged, depend on them.
mod saved_evaluation {
    use std::collections::BTreeMap;

    use firebrick_strategies::SavedNumber;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::observe::numbers::EvaluationNumbers;

    #[derive(Serialize, Deserialize)]
    struct SavedEvaluation {
        step: u64,
        #[serde(default = "nan")]
        loss: SavedNumber,
        #[serde(default)]
        items: usize,
        #[serde(default)]
        seconds: SavedNumber,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        scores: BTreeMap<String, SavedNumber>,
    }

    fn nan() -> SavedNumber {
        SavedNumber(f64::NAN)
    }

    pub(super) fn serialize<S: Serializer>(
        evaluation: &Option<EvaluationNumbers>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let saved = evaluation.clone().map(|EvaluationNumbers { step, loss, items, seconds, scores }| {
            let scores = scores.into_iter().map(|(name, score)| (name, SavedNumber(score))).collect();
            SavedEvaluation { step, loss: SavedNumber(loss), items, seconds: SavedNumber(seconds), scores }
        });
        saved.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<EvaluationNumbers>, D::Error> {
        let saved = Option::<SavedEvaluation>::deserialize(deserializer)?;
        Ok(saved.map(|SavedEvaluation { step, loss, items, seconds, scores }| {
            let scores = scores.into_iter().map(|(name, score)| (name, score.0)).collect();
            EvaluationNumbers { step, loss: loss.0, items, seconds: seconds.0, scores }
        }))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[derive(Serialize, Deserialize)]
        struct Saved {
            #[serde(with = "super")]
            best: Option<EvaluationNumbers>,
        }

        #[test]
        fn an_evaluation_comes_back_as_it_was() {
            let numbers = |loss, score| {
                let scores = [("f1".into(), score)].into();
                Some(EvaluationNumbers { step: 3, loss, items: 7, seconds: 0.5, scores })
            };
            let infinite = f64::INFINITY;
            for best in
                [None, numbers(0.1 + 0.2, -infinite), numbers(infinite, f64::NAN), numbers(f64::NAN, -0.0)]
            {
                let expected = format!("{best:?}");
                let saved = Saved { best };
                let json = serde_json::to_string(&saved).unwrap();
                let read: Saved = serde_json::from_str(&json).unwrap();
                assert_eq!(format!("{:?}", read.best), expected, "{json}");
            }
        }

        #[cfg(feature = "ron")]
        #[test]
        fn an_evaluation_of_an_older_checkpoint_is_read() {
            let read: Saved = ron::from_str(
                "(best: Some((step: 3, loss: inf, items: 7, scores: {\"f1\": NaN, \"bleu\": 2.0})))",
            )
            .unwrap();
            let best = read.best.unwrap();
            assert_eq!((best.loss, best.items, best.scores["bleu"]), (f64::INFINITY, 7, 2.0));
            assert!(best.scores["f1"].is_nan());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scores;

    #[test]
    fn only_a_lower_loss_is_better() {
        let mut progress = Progress::default();
        let mut evaluated = |loss| {
            let scores = Scores::new();
            let numbers = EvaluationNumbers { step: 0, loss, items: 1, seconds: 0.0, scores };
            (progress.evaluated(numbers, &BestBy::Loss), progress.evaluations_since_best)
        };
        assert_eq!(evaluated(f64::NAN), (false, 1));
        assert_eq!(evaluated(2.0), (true, 0));
        assert_eq!(evaluated(2.0), (false, 1));
        assert_eq!(evaluated(f64::NAN), (false, 2));
        assert_eq!(evaluated(1.0), (true, 0));
        assert_eq!(progress.best.unwrap().loss, 1.0);
    }

    #[test]
    fn the_recent_loss_weighs_updates_by_their_items() {
        let mut progress = Progress::default();
        (0..RECENT).for_each(|_| progress.add_loss(9.0, 1));
        (0..RECENT - 2).for_each(|_| progress.add_loss(0.0, 0));
        progress.add_loss(1.0, 30);
        progress.add_loss(5.0, 10);
        assert_eq!(progress.recent_loss(), 2.0);
    }
}
