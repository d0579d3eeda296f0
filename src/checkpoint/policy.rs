//! When a run saves checkpoints, and which ones it keeps.

use firebrick_checkpoints::Keep;

/// When to save checkpoints, and how many to keep.
///
/// Checkpoints are saved in `OUTPUT/checkpoints/step-00001000/`. A run that is interrupted, by Ctrl-C, SIGTERM or its
/// [interrupter](crate::Trainer::interrupter), also saves one at the next step boundary.
///
/// # What a save costs
///
/// Training pauses while master, moments and average are copied in memory: with AdamW in f32, 12 bytes per parameter,
/// on each rank for its own part. A thread then writes, hashes and syncs the copy while training continues. A save
/// that is due before the previous one has finished waits for it.
///
/// # Failed saves
///
/// A save that fails (a full disk, a missing permission) is reported, and does not affect training or older
/// checkpoints. It is retried at the next step boundaries, up to [`retries`](Self::retries) times, and then when the
/// next save is due. A failed save is an error of the run only if it is the last one, in
/// [`Report::checkpoint_error`](crate::Report::checkpoint_error).
///
/// ```
/// use firebrick::Checkpoints;
///
/// // Every 500 updates; the last two, the best three by validation loss, and each 10,000th for good.
/// let checkpoints = Checkpoints::every(500).keep_last(2).keep_best(3).keep_every(10_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoints {
    pub(crate) every: Option<u64>,
    pub(crate) last: usize,
    pub(crate) best: usize,
    /// Whether a higher metric is better.
    pub(crate) highest: bool,
    pub(crate) kept_every: Option<u64>,
    pub(crate) retries: u32,
}

impl Checkpoints {
    /// Saves after every `updates` updates and at the end. The last two checkpoints are kept, and a failed save is
    /// retried twice.
    pub fn every(updates: u64) -> Self {
        Self { every: Some(updates), ..Self::when_stopped() }
    }

    /// Saves only if the run is interrupted.
    pub fn when_stopped() -> Self {
        Self { every: None, last: 2, best: 0, highest: false, kept_every: None, retries: 2 }
    }

    /// Keeps this many of the newest checkpoints, at least one. During the run, the checkpoint before the newest is
    /// also kept until a further step has confirmed the newest.
    pub fn keep_last(self, checkpoints: usize) -> Self {
        Self { last: checkpoints, ..self }
    }

    /// Also keeps this many checkpoints with the best evaluations. Only a checkpoint of a step that was evaluated counts,
    /// so save at a multiple of [`evaluate_every`](crate::Trainer::evaluate_every). The best has the lowest validation
    /// loss, unless you [select by a score](crate::Trainer::best_by).
    pub fn keep_best(self, checkpoints: usize) -> Self {
        Self { best: checkpoints, ..self }
    }

    /// Also keeps the checkpoints at multiples of `updates`.
    pub fn keep_every(self, updates: u64) -> Self {
        Self { kept_every: Some(updates), ..self }
    }

    /// Sets how many times to retry a failed save.
    pub fn retries(self, times: u32) -> Self {
        Self { retries: times, ..self }
    }

    /// The name of a number that is out of range, if there is one.
    pub(crate) fn out_of_range(&self) -> Option<&'static str> {
        let zero = [
            ("checkpoints every", self.every == Some(0)),
            ("checkpoints keep_last", self.last == 0),
            ("checkpoints keep_every", self.kept_every == Some(0)),
        ];
        zero.into_iter().find_map(|(name, is_zero)| is_zero.then_some(name))
    }

    /// Which checkpoints to keep, with the `last` newest.
    pub(crate) fn keep(&self, last: usize) -> Keep {
        let keep = Keep::last(last).best(self.best).every(self.kept_every.unwrap_or(0));
        if self.highest { keep.highest() } else { keep }
    }

    /// Whether a save is due after this many updates.
    pub(crate) fn is_due(&self, updates: u64) -> bool {
        self.every.is_some_and(|every| updates > 0 && updates.is_multiple_of(every))
    }
}
