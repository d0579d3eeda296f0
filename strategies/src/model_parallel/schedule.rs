//! The order in which a stage of a pipeline runs the micro-batches of an optimizer step.

use serde::{Deserialize, Serialize};

/// The order in which the ranks of a pipeline run the forward and backward passes of the `m` micro-batches of an optimizer
/// step. Each order gives the same gradients. With `p` ranks and passes that all take as long, the ranks wait for one another
/// (p-1)/m of the time in which they compute: the *bubble*. Narayanan et al., 2021, arXiv:2104.04473, section 2.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineSchedule {
    /// All forward passes, then all backward passes (Huang et al., 2019, arXiv:1811.06965). A rank holds the activations of `m`
    /// micro-batches.
    GPipe,
    /// As many forward passes as there are stages after this one, then one forward and one backward pass in turns, and the
    /// remaining backward passes (1F1B; Narayanan et al., 2019, arXiv:1806.03377). Rank `r` holds the activations of at most `p - r`
    /// micro-batches.
    #[default]
    OneForwardOneBackward,
    /// The same with so many stages on each rank, which are `p` stages apart: interleaved 1F1B. With `v` of them, the bubble is
    /// a v-th of what it was if `m` is a multiple of `p`, and the ranks send `v` times as much.
    Interleaved(usize),
}

/// A pass of a rank through one of its stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipelineStep {
    /// The forward pass of a micro-batch through the `chunk`-th stage of the rank.
    Forward {
        /// The number of the micro-batch in its optimizer step.
        micro_batch: usize,
        /// Which of the rank's stages.
        chunk: usize,
    },
    /// The backward pass.
    Backward {
        /// The number of the micro-batch in its optimizer step.
        micro_batch: usize,
        /// Which of the rank's stages.
        chunk: usize,
    },
}

impl PipelineStep {
    fn micro_batch(self) -> usize {
        match self {
            Self::Forward { micro_batch, .. } | Self::Backward { micro_batch, .. } => micro_batch,
        }
    }
}

impl PipelineSchedule {
    /// Returns the number of stages on each rank.
    pub fn chunks(self) -> usize {
        match self {
            Self::GPipe | Self::OneForwardOneBackward => 1,
            Self::Interleaved(chunks) => chunks.max(1),
        }
    }

    /// Returns what one of so many ranks does in an optimizer step, in this order.
    ///
    /// ```
    /// use firebrick_strategies::{PipelineSchedule, PipelineStep};
    ///
    /// let micro_batches = |rank| -> Vec<String> {
    ///     let steps = PipelineSchedule::OneForwardOneBackward.steps(3, rank, 2);
    ///     let name = |step: &PipelineStep| match step {
    ///         PipelineStep::Forward { micro_batch, .. } => format!("F{micro_batch}"),
    ///         PipelineStep::Backward { micro_batch, .. } => format!("B{micro_batch}"),
    ///     };
    ///     steps.iter().map(name).collect()
    /// };
    /// assert_eq!(micro_batches(0), ["F0", "F1", "B0", "F2", "B1", "B2"]);
    /// assert_eq!(micro_batches(1), ["F0", "B0", "F1", "B1", "F2", "B2"]);
    /// ```
    pub fn steps(self, micro_batches: usize, rank: usize, ranks: usize) -> Vec<PipelineStep> {
        let chunks = self.chunks();
        // Interleaved stages take turns after a micro-batch for each rank, some of which a short global batch lacks.
        let all = chunks * if chunks > 1 { micro_batches.next_multiple_of(ranks) } else { micro_batches };
        // Ranks run a stage on so many micro-batches before they turn to their next one.
        let group = ranks * chunks;
        let place = |step: usize, backwards: bool| {
            let (micro_batch, chunk) = match chunks {
                1 => (step, 0),
                _ => (step / group * ranks + step % ranks, step % group / ranks),
            };
            (micro_batch, if backwards { chunks - 1 - chunk } else { chunk })
        };
        let forward = |step| {
            let (micro_batch, chunk) = place(step, false);
            PipelineStep::Forward { micro_batch, chunk }
        };
        let backward = |step| {
            let (micro_batch, chunk) = place(step, true);
            PipelineStep::Backward { micro_batch, chunk }
        };
        let ahead = match self {
            Self::GPipe => all,
            Self::OneForwardOneBackward => ranks - 1 - rank,
            Self::Interleaved(_) => (ranks - 1 - rank) * 2 + (chunks - 1) * ranks,
        };
        let ahead = ahead.min(all);
        let mut steps: Vec<_> = (0..ahead).map(forward).collect();
        steps.extend((ahead..all).flat_map(|step| [forward(step), backward(step - ahead)]));
        steps.extend((all - ahead..all).map(backward));
        steps.retain(|step| step.micro_batch() < micro_batches);
        steps
    }

    /// Returns the number of micro-batches, of one stage, whose activations a rank holds at most.
    pub fn held(self, micro_batches: usize, rank: usize, ranks: usize) -> usize {
        let (mut now, mut most) = (0usize, 0);
        for step in self.steps(micro_batches, rank, ranks) {
            match step {
                PipelineStep::Forward { .. } => now += 1,
                PipelineStep::Backward { .. } => now -= 1,
            }
            most = most.max(now);
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    const ALL: [PipelineSchedule; 4] = [
        PipelineSchedule::GPipe,
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::Interleaved(2),
        PipelineSchedule::Interleaved(3),
    ];

    /// Runs all ranks, where a forward pass takes 1 and a backward pass 2 units of time, and returns when the last one ends: `None`
    /// if ranks wait for one another for ever.
    fn end(schedule: PipelineSchedule, micro_batches: usize, ranks: usize) -> Option<usize> {
        let (chunks, mut done) = (schedule.chunks(), HashMap::new());
        let stages = ranks * chunks;
        let steps: Vec<_> = (0..ranks).map(|rank| schedule.steps(micro_batches, rank, ranks)).collect();
        let (mut next, mut free) = (vec![0; ranks], vec![0; ranks]);
        loop {
            let mut moved = false;
            for rank in 0..ranks {
                let Some(step) = steps[rank].get(next[rank]) else { continue };
                let (after, cost, key) = match *step {
                    PipelineStep::Forward { micro_batch, chunk } => {
                        let stage = chunk * ranks + rank;
                        let after = (stage > 0).then(|| (true, micro_batch, stage - 1));
                        (after, 1, (true, micro_batch, stage))
                    }
                    PipelineStep::Backward { micro_batch, chunk } => {
                        let stage = chunk * ranks + rank;
                        let after = if stage + 1 < stages {
                            (false, micro_batch, stage + 1)
                        } else {
                            (true, micro_batch, stage)
                        };
                        (Some(after), 2, (false, micro_batch, stage))
                    }
                };
                let ready = match after {
                    None => 0,
                    Some(after) => match done.get(&after) {
                        None => continue,
                        Some(at) => *at,
                    },
                };
                free[rank] = free[rank].max(ready) + cost;
                done.insert(key, free[rank]);
                next[rank] += 1;
                moved = true;
            }
            if !moved {
                let all = steps.iter().zip(&next).all(|(steps, next)| *next == steps.len());
                return all.then(|| free.into_iter().max().unwrap());
            }
        }
    }

    #[test]
    fn each_pass_runs_once_and_no_rank_waits_for_ever() {
        for schedule in ALL {
            for ranks in 2..6 {
                for micro_batches in 1..4 * ranks {
                    let all = 2 * micro_batches * schedule.chunks();
                    for rank in 0..ranks {
                        let steps = schedule.steps(micro_batches, rank, ranks);
                        assert_eq!(steps.iter().collect::<HashSet<_>>().len(), all);
                        assert_eq!(steps.len(), all);
                    }
                    assert!(
                        end(schedule, micro_batches, ranks).is_some(),
                        "{schedule:?} {ranks} {micro_batches}"
                    );
                }
            }
        }
    }

    /// Narayanan et al., 2021, equations 2.2 and 2.2.2, exactly.
    #[test]
    fn ranks_wait_as_long_as_the_bubble() {
        for schedule in ALL {
            for (ranks, micro_batches) in [(2, 4), (4, 4), (4, 8), (3, 12)] {
                let chunks = schedule.chunks();
                let computed = 3 * micro_batches * chunks;
                let bubble = end(schedule, micro_batches, ranks).unwrap() - computed;
                // (p-1)/(v m) of the time in which a rank computes.
                assert_eq!(bubble, 3 * (ranks - 1), "{schedule:?} of {ranks} ranks");
            }
        }
    }

    #[test]
    fn a_rank_holds_as_many_micro_batches_as_the_formula_says() {
        for (rank, ranks, micro_batches) in [(0, 4, 8), (1, 4, 8), (3, 4, 8), (0, 4, 2)] {
            let held = |schedule: PipelineSchedule| schedule.held(micro_batches, rank, ranks);
            assert_eq!(held(PipelineSchedule::GPipe), micro_batches);
            assert_eq!(held(PipelineSchedule::OneForwardOneBackward), (ranks - rank).min(micro_batches));
        }
        // p v + p - 1 - 2 r stages at most: here 4 of 2 chunks.
        assert_eq!(PipelineSchedule::Interleaved(2).held(8, 0, 4), 11);
    }
}
