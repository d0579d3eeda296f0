//! The timeline of a step: what each rank computed, exchanged and waited for, and when.
//!
//! ```text
//! recorder.rs  records the chosen steps, and gathers them from all ranks
//! chrome.rs    timelines as trace events, for Perfetto and the report page
//! rows.rs      rows of events that do not overlap
//! files.rs     the files of a run
//! ```

mod chrome;
pub(crate) mod files;
pub(crate) mod recorder;
mod rows;

use firebrick_world::Event;
use serde::{Deserialize, Serialize};

pub use rows::rows;

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
