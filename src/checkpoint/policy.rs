//! When a run saves itself, and which checkpoints it keeps.

use firebrick_checkpoints::Keep;

/// When a run is saved so that it can be resumed, and how many checkpoints stay.
///
/// Checkpoints go into `OUTPUT/checkpoints/step-00001000/`. A run that is interrupted, by Ctrl-C, SIGTERM or
/// its [interrupter](crate::Trainer::interrupter), is saved at the next step boundary too.
///
/// # What a save costs
///
/// Training stands still while master, moments and average are copied in memory: 12 bytes per parameter in f32
/// with AdamW, on each rank what it holds. They are written, hashed and synced by a thread beside the training. A
/// save that is due before the last one is done waits for it.
///
/// # Where it fails
///
/// A save that fails (a full disk, a missing permission) is reported, and leaves training and all older
/// checkpoints as they are. It is tried again at the next step boundaries, as often as [`retries`](Self::retries)
/// says, and then when the next one is due. Only where a run ends and its last save failed is that an
/// error of the run, in [`Report::checkpoint_error`](crate::Report::checkpoint_error).
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
    /// Whether the best are those whose number is highest.
    pub(crate) highest: bool,
    pub(crate) kept_every: Option<u64>,
    pub(crate) retries: u32,
}

impl Checkpoints {
    /// After every so many updates, and at the end. The last two are kept, and a failed save is tried
    /// again twice.
    pub fn every(updates: u64) -> Self {
        Self { every: Some(updates), ..Self::when_stopped() }
    }

    /// Only where the run is interrupted.
    pub fn when_stopped() -> Self {
        Self { every: None, last: 2, best: 0, highest: false, kept_every: None, retries: 2 }
    }

    /// Keeps the newest so many, at least one. While the run goes on, a newest one that no window has confirmed yet
    /// is kept besides the one before it.
    pub fn keep_last(self, checkpoints: usize) -> Self {
        Self { last: checkpoints, ..self }
    }

    /// Keeps those of the best evaluation too, as it was last made before the save: of the lowest validation
    /// loss, unless a [score decides](crate::Trainer::best_by).
    pub fn keep_best(self, checkpoints: usize) -> Self {
        Self { best: checkpoints, ..self }
    }

    /// Keeps those at multiples of so many updates too.
    pub fn keep_every(self, updates: u64) -> Self {
        Self { kept_every: Some(updates), ..self }
    }

    /// Tries a failed save again so many times.
    pub fn retries(self, times: u32) -> Self {
        Self { retries: times, ..self }
    }

    /// A number that cannot be, with its name.
    pub(crate) fn out_of_range(&self) -> Option<&'static str> {
        let zero = [
            ("checkpoints every", self.every == Some(0)),
            ("checkpoints keep_last", self.last == 0),
            ("checkpoints keep_every", self.kept_every == Some(0)),
        ];
        zero.into_iter().find_map(|(name, is_zero)| is_zero.then_some(name))
    }

    /// Which checkpoints stay, with the `last` newest.
    pub(crate) fn keep(&self, last: usize) -> Keep {
        let keep = Keep::last(last).best(self.best).every(self.kept_every.unwrap_or(0));
        if self.highest { keep.highest() } else { keep }
    }

    /// Whether a save is due after so many updates.
    pub(crate) fn is_due(&self, updates: u64) -> bool {
        self.every.is_some_and(|every| updates > 0 && updates.is_multiple_of(every))
    }
}
