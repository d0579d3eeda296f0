//! The timeline of a rank: what it computes, exchanges and waits for, and when.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::Collective;

/// Records what a rank does between [`begin`](Self::begin) and [`end`](Self::end).
///
/// Clones record into the same timeline. [`Communicator::timeline`](crate::Communicator::timeline) returns that of a rank:
/// its collectives record themselves, and whatever computes for the rank adds [spans](Self::span). While nothing is
/// recorded, each of them costs one atomic read.
///
/// No event makes a device wait. On a device that computes asynchronously, the times of a computation are those of its
/// submission.
///
/// ```
/// use firebrick_world::{Activity, Timeline};
///
/// let timeline = Timeline::default();
/// timeline.begin();
/// {
///     let _span = timeline.span(Activity::Forward, || "blocks.0".into());
///     // The block computes here.
/// }
/// let events = timeline.end();
/// assert_eq!((events[0].name.as_str(), events[0].activity), ("blocks.0", Activity::Forward));
/// assert!(events[0].start <= events[0].end);
/// ```
#[derive(Clone, Default)]
pub struct Timeline(Arc<Log>);

#[derive(Default)]
struct Log {
    is_on: AtomicBool,
    /// The device for which the end of an event waits.
    awaited: Option<Device>,
    record: Mutex<Record>,
}

#[derive(Default)]
struct Record {
    /// Distinguishes this record from earlier ones.
    number: u64,
    start: Option<Instant>,
    events: Vec<Event>,
}

/// One event of a timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What it is about, such as the path of a block.
    pub name: String,
    /// What happened.
    pub activity: Activity,
    /// Seconds from the beginning of the timeline.
    pub start: f64,
    /// Seconds from the beginning of the timeline.
    pub end: f64,
    /// The bytes that this rank received; 0 for anything but an exchange.
    pub bytes: u64,
}

/// What happens in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// A forward pass.
    Forward,
    /// A forward pass that is repeated for the backward pass.
    Rerun,
    /// A backward pass.
    Backward,
    /// An update of the parameters.
    Update,
    /// An exchange, from the moment when this rank sends until it has received everything.
    Exchange(Collective),
    /// The rank waits for a collective.
    Wait(Collective),
}

/// The row of a timeline that an event belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// What the rank computes, including its waits.
    Computation,
    /// What is on its way between the ranks.
    Communication,
    /// What the rank waits for.
    Waiting,
}

impl Activity {
    /// Returns the row that shows it.
    pub fn lane(self) -> Lane {
        match self {
            Self::Forward | Self::Rerun | Self::Backward | Self::Update => Lane::Computation,
            Self::Exchange(_) => Lane::Communication,
            Self::Wait(_) => Lane::Waiting,
        }
    }
}

impl Display for Activity {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Forward => to.write_str("forward"),
            Self::Rerun => to.write_str("re-run"),
            Self::Backward => to.write_str("backward"),
            Self::Update => to.write_str("update"),
            Self::Exchange(kind) => write!(to, "{kind}"),
            Self::Wait(kind) => write!(to, "wait for {kind}"),
        }
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "Timeline({})", if self.is_on() { "recording" } else { "off" })
    }
}

impl Timeline {
    /// Creates a timeline in which an event ends when the device has computed all that was queued until then: its times are those
    /// of the computation, and nothing is computed beside it.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::{Activity, Timeline};
    ///
    /// let device = Device::flex();
    /// let timeline = Timeline::awaiting(&device);
    /// timeline.begin();
    /// let span = timeline.span(Activity::Forward, || "a sum".into());
    /// let sum = Tensor::<1>::ones([64], &device).sum();
    /// drop(span);
    /// assert_eq!(timeline.end().len(), 1);
    /// # let _ = sum;
    /// ```
    pub fn awaiting(device: &Device) -> Self {
        Self(Arc::new(Log { awaited: Some(device.clone()), ..Log::default() }))
    }

    /// Begins to record, and forgets what was recorded before.
    pub fn begin(&self) {
        let mut record = self.record();
        *record = Record { number: record.number + 1, start: Some(Instant::now()), events: Vec::new() };
        self.0.is_on.store(true, Relaxed);
    }

    /// Ends the recording, and returns its events in the order in which they began. An event that has not ended by now is left
    /// out, and so is one that began before the recording, except for an exchange of host memory: it begins at 0.
    pub fn end(&self) -> Vec<Event> {
        self.0.is_on.store(false, Relaxed);
        let mut record = self.record();
        record.start = None;
        let mut events = std::mem::take(&mut record.events);
        events.retain(|event| event.end >= event.start);
        events.sort_by(|one, other| one.start.total_cmp(&other.start));
        events
    }

    /// Returns whether events are recorded now.
    pub fn is_on(&self) -> bool {
        self.0.is_on.load(Relaxed)
    }

    /// Begins an event that lasts until the span is dropped. `name` is called only if events are recorded.
    #[must_use = "the event ends when the span is dropped"]
    pub fn span(&self, activity: Activity, name: impl FnOnce() -> String) -> Span {
        Span(self.open(activity, name))
    }

    /// Begins an event that lasts until [`Open::close`], from wherever that is called. `name` is called only if events are
    /// recorded.
    pub fn open(&self, activity: Activity, name: impl FnOnce() -> String) -> Option<Open> {
        if !self.is_on() {
            return None;
        }
        let name = name();
        let mut record = self.record();
        let start = record.start?.elapsed().as_secs_f64();
        // Ends before it starts until it is closed.
        record.events.push(Event { name, activity, start, end: f64::NEG_INFINITY, bytes: 0 });
        Some(Open { timeline: self.clone(), record: record.number, event: record.events.len() - 1 })
    }

    /// Adds an exchange that has ended, unless that was before the recording.
    pub(crate) fn exchanged(
        &self,
        kind: Collective,
        name: impl FnOnce() -> String,
        bytes: u64,
        (sent, arrived): (Instant, Instant),
    ) {
        if !self.is_on() {
            return;
        }
        let mut record = self.record();
        let Some(began) = record.start.filter(|began| arrived >= *began) else { return };
        let [start, end] = [sent, arrived].map(|at| at.saturating_duration_since(began).as_secs_f64());
        record.events.push(Event { name: name(), activity: Activity::Exchange(kind), start, end, bytes });
    }

    /// Ignores poisoning: every change under the lock is one step.
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An event that lasts until this is dropped.
#[derive(Debug)]
pub struct Span(Option<Open>);

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = &self.0 {
            open.close();
        }
    }
}

/// An event that has begun.
#[derive(Clone, Debug)]
pub struct Open {
    timeline: Timeline,
    record: u64,
    event: usize,
}

impl Open {
    /// Ends the event. It ends at the last call.
    pub fn close(&self) {
        if let Some(device) = &self.timeline.0.awaited {
            // What has failed there is the error of whoever reads it.
            let _ = device.sync();
        }
        let mut record = self.timeline.record();
        if record.number == self.record
            && let Some(start) = record.start
            && let Some(event) = record.events.get_mut(self.event)
        {
            event.end = start.elapsed().as_secs_f64();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_ends_while_it_records_is_recorded() {
        let timeline = Timeline::default();
        let never = || -> String { unreachable!("nothing is recorded") };
        drop(timeline.span(Activity::Forward, never));
        let before = Instant::now();
        timeline.begin();
        let after = Instant::now();
        let outer = timeline.span(Activity::Backward, || "outer".into());
        drop(timeline.span(Activity::Update, || "inner".into()));
        timeline.exchanged(Collective::AllGather, || "over".into(), 1, (before, before));
        timeline.exchanged(Collective::AllGather, || "early".into(), 1, (before, after));
        timeline.exchanged(Collective::AllGather, || "sum".into(), 8, (after, after));
        drop(outer);
        let open = timeline.span(Activity::Forward, || "open".into());
        let events = timeline.end();
        let names: Vec<_> = events.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["early", "sum", "outer", "inner"]);
        // What began before the recording is cut.
        assert!(events[0].start == 0.0 && events[0].end == events[1].end);
        assert!(events[2].end >= events[3].end && events[1].bytes == 8);
        // An event of an earlier recording ends nothing of a later one.
        timeline.begin();
        let next = timeline.open(Activity::Forward, || "next".into());
        drop(open);
        assert_eq!(timeline.end(), []);
        next.unwrap().close();
        assert_eq!(timeline.end(), []);
    }
}
