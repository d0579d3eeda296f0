//! Which checkpoints are kept, and the removal of the others.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::error::Result;
use crate::file_names::{REMOVED, REPLACED, step_folder, step_of};
use crate::{Folder, Manifest, Saved};

/// A rule for which checkpoints to keep. A checkpoint stays if any condition applies.
///
/// The newest checkpoint, and the one that `latest` names, are never removed. While there is a
/// [sound](crate::Manifest::sound) checkpoint, the others count neither as newest nor as best, so the last sound
/// checkpoint stays whatever is saved after it.
///
/// ```
/// use firebrick_checkpoints::Keep;
///
/// // The two newest, the one with the lowest validation loss, and each of step 10000, 20000, ..
/// let keep = Keep::last(2).best(1).every(10_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    last: usize,
    best: usize,
    every: Option<u64>,
    highest: bool,
    lowest: bool,
}

impl Keep {
    /// Keeps the `n` newest; 0 means 1.
    pub fn last(n: usize) -> Self {
        Self { last: n, best: 0, every: None, highest: false, lowest: true }
    }

    /// Keeps all checkpoints.
    pub fn all() -> Self {
        Self::last(usize::MAX)
    }

    /// Also keeps the `n` with the lowest metric, preferring the newest among equals. Ignores those without a metric.
    pub fn best(self, n: usize) -> Self {
        Self { best: n, ..self }
    }

    /// Makes [`best`](Self::best) prefer the highest metric.
    pub fn highest(self) -> Self {
        Self { highest: true, lowest: false, ..self }
    }

    /// Makes [`best`](Self::best) keep those with the lowest metric and those with the highest one, where it is not
    /// known which is better.
    pub fn either(self) -> Self {
        Self { highest: true, lowest: true, ..self }
    }

    /// Also keeps those whose step is a multiple of `steps`; 0 means none.
    pub fn every(self, steps: u64) -> Self {
        Self { every: Some(steps).filter(|steps| *steps > 0), ..self }
    }

    /// Returns the steps to keep, of checkpoints in publication order.
    fn kept(&self, saved: &[Saved], named: Option<u64>) -> HashSet<u64> {
        let mut kept: HashSet<u64> = named.into_iter().collect();
        kept.extend(saved.last().map(|newest| newest.step));
        let counted: Vec<&Saved> = saved.iter().rev().filter(|one| one.counts_among(saved)).collect();
        kept.extend(counted.iter().take(self.last.max(1)).map(|saved| saved.step));
        if let Some(every) = self.every {
            kept.extend(saved.iter().map(|saved| saved.step).filter(|step| step % every == 0));
        }
        let mut best: Vec<(f64, &Saved)> =
            counted.into_iter().filter_map(|saved| Some((saved.metric?, saved))).collect();
        // The sorts are stable, so the newer of equal ones stays first.
        if self.lowest {
            best.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            kept.extend(best.iter().take(self.best).map(|(_, saved)| saved.step));
        }
        if self.highest {
            best.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(other.sequence.cmp(&one.sequence)));
            kept.extend(best.iter().take(self.best).map(|(_, saved)| saved.step));
        }
        kept
    }
}

impl Folder {
    /// Returns the checkpoints that [`prune`](Self::prune) would remove.
    ///
    /// # Errors
    ///
    /// Those of [`list`](Self::list).
    pub fn prunable(&self, keep: &Keep) -> Result<Vec<Saved>> {
        let mut saved = self.list()?;
        let kept = keep.kept(&saved, self.named());
        saved.retain(|saved| !kept.contains(&saved.step));
        Ok(saved)
    }

    /// Removes the checkpoints that `keep` does not keep, and returns their paths. Call it after a save, never before.
    ///
    /// Considers only complete checkpoints. Renames each before removing it, so that none is ever partly there.
    ///
    /// # Errors
    ///
    /// The first [`CheckpointError::Io`], after trying all others. The next call retries the failed removals.
    /// The kept checkpoints are not touched.
    ///
    /// [`CheckpointError::Io`]: crate::CheckpointError::Io
    pub fn prune(&self, keep: &Keep) -> Result<Vec<PathBuf>> {
        let saved = self.list()?;
        let kept = keep.kept(&saved, self.named());
        let (mut removed, mut failed) = (Vec::new(), None);
        for old in saved.iter().filter(|saved| !kept.contains(&saved.step)) {
            match self.remove_checkpoint(old) {
                Ok(()) => removed.push(old.path.clone()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Err(error) = self.sweep(&saved) {
            failed = failed.or(Some(error));
        }
        failed.map_or(Ok(removed), Err)
    }

    /// Removes what an earlier removal left.
    fn sweep(&self, complete: &[Saved]) -> Result<()> {
        for name in self.names()? {
            let half_removed = name.strip_prefix(REMOVED).is_some_and(|step| step_of(step).is_some());
            let in_place = |step| complete.iter().any(|saved| saved.path.ends_with(step_folder(step)));
            let replaced = name.strip_prefix(REPLACED).and_then(step_of).is_some_and(in_place);
            let path = self.path().join(&name);
            if half_removed || (replaced && Manifest::unknown_format(&path).is_none()) {
                self.remove(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds checkpoints of these steps and metrics, published in this order; a metric of -inf means not sound.
    fn saved(all: &[(u64, f64)]) -> Vec<Saved> {
        let saved = all.iter().zip(1..).map(|(&(step, metric), sequence)| Saved {
            step,
            path: step_folder(step).into(),
            metric: Some(metric).filter(|metric| metric.is_finite()),
            sequence,
            sound: metric != f64::NEG_INFINITY,
        });
        saved.collect()
    }

    fn kept(keep: Keep, all: &[(u64, f64)], named: Option<u64>) -> Vec<u64> {
        let mut kept: Vec<u64> = keep.kept(&saved(all), named).into_iter().collect();
        kept.sort();
        kept
    }

    #[test]
    fn any_rule_keeps_a_checkpoint() {
        let all = [(1, 3.0), (2, 1.0), (3, 2.0), (4, f64::NAN), (5, 1.0), (6, 4.0)];
        assert_eq!(kept(Keep::last(2), &all, Some(6)), [5, 6]);
        assert_eq!(kept(Keep::last(1).best(1), &all, None), [5, 6]);
        assert_eq!(kept(Keep::last(1).best(2), &all, None), [2, 5, 6]);
        assert_eq!(kept(Keep::last(1).best(9), &all, None), [1, 2, 3, 5, 6]);
        assert_eq!(kept(Keep::last(1).best(2).highest(), &all, None), [1, 6]);
        assert_eq!(kept(Keep::last(1).every(2), &all, None), [2, 4, 6]);
        assert_eq!(kept(Keep::last(0).every(0), &all, Some(3)), [3, 6]);
        assert_eq!(kept(Keep::all(), &all, None), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn unsound_checkpoints_do_not_displace_the_last_sound_one() {
        const BAD: f64 = f64::NEG_INFINITY;
        let all = [(50, 2.0), (60, 1.0), (70, BAD), (80, BAD), (90, BAD)];
        assert_eq!(kept(Keep::last(2), &all, Some(60)), [50, 60, 90]);
        assert_eq!(kept(Keep::last(1), &all, Some(90)), [60, 90]);
        assert_eq!(kept(Keep::last(1).best(1), &all, None), [60, 90]);
        // If none is sound, all count.
        assert_eq!(kept(Keep::last(2), &all[2..], None), [80, 90]);
    }

    #[test]
    fn the_newest_is_what_was_published_last() {
        // A run that went back from step 30 to 10.
        let all = [(10, 1.0), (20, 1.0), (30, 1.0), (11, 1.0)];
        assert_eq!(kept(Keep::last(2), &all, Some(11)), [11, 30]);
    }
}
