//! The timeline of a step: what each rank computed, exchanged and waited for, and when.
//!
//! ```text
//! recorder.rs  records the chosen steps, and gathers them from all ranks
//! chrome.rs    timelines as trace events, for Perfetto and the report page
//! ```

mod chrome;
pub(crate) mod recorder;

use firebrick_world::{Event, Lane};
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
