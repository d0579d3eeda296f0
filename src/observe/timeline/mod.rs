//! The timeline of a step: what each rank computed, exchanged and waited for, and when.
//!
//! ```text
//! recorder.rs  records the chosen steps, and gathers them from all ranks
//! chrome.rs    timelines as trace events, for Perfetto and the report page
//! ```

mod chrome;
pub(crate) mod recorder;

use firebrick_world::{Activity, Collective, Event, Lane};
use serde::{Deserialize, Serialize};

/// A step of all ranks. [`Trainer::timeline`](crate::Trainer::timeline) records it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTimeline {
    /// The update that the step made, from 1.
    pub step: u64,
    /// What each rank did, by rank.
    pub ranks: Vec<RankTimeline>,
}

/// What one rank did in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimeline {
    /// When the rank began the step, in seconds after the rank that began first. Among processes, it is as exact as their
    /// machines' clocks.
    pub began: f64,
    /// The seconds of the step.
    pub seconds: f64,
    /// The events, in the order in which they began. Their seconds are from the rank's own beginning.
    pub events: Vec<Event>,
}

impl StepTimeline {
    /// Returns the seconds from the beginning of the first rank to the end of the last one.
    pub fn seconds(&self) -> f64 {
        self.ranks.iter().map(|rank| rank.began + rank.seconds).fold(0.0, f64::max)
    }

    /// Returns the bubble of each rank of a [pipeline](crate::Mesh::pipeline), by rank: from the first pass of any rank to the last one,
    /// the seconds in which it computes no pass, as a share of those in which it does. It is (p-1)/m for p stages and m
    /// micro-batches that take as long everywhere (Narayanan et al., 2021, arXiv:2104.04473, section 2.2). `None` without a
    /// pipeline.
    ///
    /// ```
    /// use firebrick::observe::timeline::{RankTimeline, StepTimeline};
    /// use firebrick::world::{Activity, Collective, Event};
    ///
    /// let event = |activity, start, end| Event { name: String::new(), activity, start, end, bytes: 0 };
    /// let pass = |start| event(Activity::Forward, start, start + 1.0);
    /// let wait = |start, end| event(Activity::Wait(Collective::Send), start, end);
    /// // Two stages and two micro-batches, as long forward as backward. Passes include the waits for their states.
    /// let first = vec![pass(0.0), pass(1.0), wait(2.0, 3.0), pass(3.0), wait(4.0, 5.0), pass(5.0)];
    /// let waits = event(Activity::Forward, 0.0, 2.0);
    /// let second = vec![waits, wait(0.0, 1.0), pass(2.0), pass(3.0), pass(4.0)];
    /// let ranks = [first, second].map(|events| RankTimeline { began: 0.0, seconds: 6.0, events }).into();
    /// assert_eq!(StepTimeline { step: 1, ranks }.bubbles(), Some(vec![0.5, 0.5]));
    /// ```
    pub fn bubbles(&self) -> Option<Vec<f64>> {
        let is_pass = |event: &&Event| {
            matches!(event.activity, Activity::Forward | Activity::Rerun | Activity::Backward)
        };
        let is_wait = |event: &&Event| event.activity == Activity::Wait(Collective::Send);
        let all = self.ranks.iter().flat_map(|rank| &rank.events);
        if !all.clone().any(|event| is_wait(&event)) {
            return None;
        }
        let ends = self.ranks.iter().flat_map(|rank| {
            let passes = rank.events.iter().filter(is_pass);
            passes.map(|event| (rank.began + event.start, rank.began + event.end))
        });
        let (first, last) = ends.fold((f64::INFINITY, 0.0), |(first, last), (start, end)| {
            (f64::min(first, start), f64::max(last, end))
        });
        let bubble = |rank: &RankTimeline| {
            let either = covered(rank.events.iter().filter(|event| is_pass(event) || is_wait(event)));
            let computed = either - covered(rank.events.iter().filter(is_wait));
            if computed > 0.0 { (last - first - computed) / computed } else { 0.0 }
        };
        Some(self.ranks.iter().map(bubble).collect())
    }
}

/// Returns the seconds that events cover, which are in the order in which they began.
pub fn covered<'a>(events: impl Iterator<Item = &'a Event>) -> f64 {
    let (mut sum, mut until) = (0.0, f64::NEG_INFINITY);
    for Event { start, end, .. } in events {
        sum += (end - start.max(until)).max(0.0);
        until = until.max(*end);
    }
    sum
}

/// The start of the names of the files. The number of the step and [`EXTENSION`] follow.
const FILES: &str = "timeline-";
const EXTENSION: &str = ".json";

/// Returns the name of the file of a step.
pub fn file_name(step: u64) -> String {
    format!("{FILES}{step}{EXTENSION}")
}

/// Returns the step of a file of this name, if it is a timeline.
pub fn step_of(file_name: &str) -> Option<u64> {
    file_name.strip_prefix(FILES)?.strip_suffix(EXTENSION)?.parse().ok()
}

/// Returns the lane of each event, and its row there: the first one that is free. Events are in the order in which they
/// began; one within another is in a later row.
///
/// ```
/// use firebrick::observe::timeline::rows;
/// use firebrick::world::{Activity, Event, Collective, Lane};
///
/// let sum = |start, end| {
///     let activity = Activity::Exchange(Collective::AllReduce);
///     Event { name: "a block".into(), activity, start, end, bytes: 8 }
/// };
/// let found = rows(&[sum(0.0, 2.0), sum(1.0, 3.0), sum(2.0, 4.0)]);
/// assert_eq!(found, [0, 1, 0].map(|row| (Lane::Communication, row)));
/// ```
pub fn rows(events: &[Event]) -> Vec<(Lane, usize)> {
    // The end of the last event of each row.
    let mut ends: Vec<(Lane, Vec<f64>)> = Vec::new();
    let place = |event: &Event| {
        let lane = event.activity.lane();
        let at = ends.iter().position(|(known, _)| *known == lane).unwrap_or_else(|| {
            ends.push((lane, Vec::new()));
            ends.len() - 1
        });
        let rows = &mut ends[at].1;
        let row = rows.iter().position(|end| *end <= event.start).unwrap_or(rows.len());
        match rows.get_mut(row) {
            Some(end) => *end = event.end,
            None => rows.push(event.end),
        }
        (lane, row)
    };
    events.iter().map(place).collect()
}
