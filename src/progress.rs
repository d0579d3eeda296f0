//! How far a run has come: what its future and its report depend on, besides the weights.

use std::collections::VecDeque;

use firebrick_datasets::Cursor;
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::log::EvaluationNumbers;
use crate::score::BestBy;

/// Windows over which the reported training loss is the mean.
pub(crate) const RECENT: usize = 100;

/// Windows in a row with a loss that is not finite which say that the run has diverged.
pub(crate) const MANY_INFINITE: u64 = 10;

/// What a run carries from step to step on the side of the host, and from one process to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Progress {
    /// Where the data stands.
    pub cursor: Cursor,
    /// Rounds that are over: a round ends with an evaluation.
    pub rounds: usize,
    /// Whether this round's last step is made, and only its evaluation is missing.
    pub evaluation_due: bool,
    /// Updates made when this round began. Older checkpoints do not tell.
    #[serde(default)]
    pub round_start: u64,
    /// Loss and items of the last windows.
    pub recent: VecDeque<(f64, usize)>,
    /// Windows that made no update.
    pub skipped: u64,
    pub skipped_in_a_row: u64,
    /// Windows whose loss was not finite, whether they made an update or not.
    pub infinite_in_a_row: u64,
    /// The rank that it began with, where there are several.
    pub infinite_first: Option<usize>,
    pub validation: Option<EvaluationNumbers>,
    pub best: Option<EvaluationNumbers>,
    /// Evaluations since the best one.
    pub evaluations_since_best: usize,
}

impl Progress {
    /// Of a run that goes on after so many updates.
    pub fn going_on(self, updates: u64) -> Self {
        let last = self.validation.as_ref().map_or(updates, |last| last.step);
        let is_known = self.rounds == 0 || self.round_start > 0;
        let round_start = if is_known { self.round_start } else { last };
        Self { round_start: round_start.min(updates), ..self }
    }

    /// A window's loss, over so many items.
    pub fn add_loss(&mut self, loss: f64, items: usize) {
        self.recent.push_back((loss, items));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// An evaluation, and whether it is the best so far.
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

    /// Whether the losses say nothing against the weights. They do where the validation loss was finite once and is
    /// no longer, and where those of many windows in a row were not. A single such window may hold a bad sample,
    /// and validation data whose loss never was finite tells of itself.
    pub fn is_sound(&self) -> bool {
        let validated = self.validation.as_ref().is_none_or(|numbers| numbers.loss.is_finite());
        let diverged = self.infinite_in_a_row >= MANY_INFINITE;
        !diverged && (validated || self.best.is_none() && self.infinite_in_a_row == 0)
    }

    /// The error of a run that makes no updates any more, for the reason of the last window.
    pub fn only_skips(&self, reason: &str) -> TrainError {
        TrainError::OnlySkips {
            count: self.skipped_in_a_row,
            reason: reason.into(),
            first: self.infinite_first,
        }
    }

    /// The mean loss of the last windows, each item counted once.
    pub fn recent_loss(&self) -> f64 {
        let items: usize = self.recent.iter().map(|(_, items)| items).sum();
        let sum: f64 = self.recent.iter().map(|(loss, items)| loss * *items as f64).sum();
        sum / items.max(1) as f64
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
    fn the_recent_loss_weighs_windows_by_their_items() {
        let mut progress = Progress::default();
        (0..RECENT).for_each(|_| progress.add_loss(9.0, 1));
        (0..RECENT - 2).for_each(|_| progress.add_loss(0.0, 0));
        progress.add_loss(1.0, 30);
        progress.add_loss(5.0, 10);
        assert_eq!(progress.recent_loss(), 2.0);
    }
}
