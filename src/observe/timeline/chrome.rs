//! Timelines as Chrome trace events.
//!
//! The format of <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>: [Perfetto](https://ui.perfetto.dev)
//! and `chrome://tracing` open it. Each rank is a process, and each row of a lane a thread.

use std::collections::BTreeMap;

use firebrick_world::{Activity, Event, Lane};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{RankTimeline, StepTimeline, rows};

/// Rows of a lane that have thread numbers of their own.
const ROWS: usize = 1000;

/// What a reader needs of a file.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<Entry>,
    other_data: Step,
}

/// The step, and when each rank began and how long it took.
#[derive(Serialize, Deserialize)]
struct Step {
    step: u64,
    ranks: Vec<(f64, f64)>,
}

#[derive(Deserialize)]
struct Entry {
    pid: usize,
    /// Microseconds.
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
    #[serde(default)]
    args: Value,
}

/// What the times of an entry do not say about an event.
#[derive(Serialize, Deserialize)]
struct About {
    of: String,
    activity: Activity,
    #[serde(default)]
    bytes: u64,
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Computation => "computation",
        Lane::Communication => "communication",
        Lane::Waiting => "waiting",
    }
}

impl StepTimeline {
    /// Returns the timeline in Chrome's trace event format.
    ///
    /// ```
    /// use firebrick::observe::timeline::{RankTimeline, StepTimeline};
    ///
    /// let timeline = StepTimeline { step: 7, ranks: vec![RankTimeline::default(); 2] };
    /// assert_eq!(StepTimeline::parse(&timeline.to_chrome()), Some(timeline));
    /// ```
    pub fn to_chrome(&self) -> String {
        let mut entries = Vec::new();
        for (pid, rank) in self.ranks.iter().enumerate() {
            let named = |what: &str, tid: usize, args: Value| json!({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args});
            entries.push(named("process_name", 0, json!({"name": format!("rank {pid}")})));
            entries.push(named("process_sort_index", 0, json!({"sort_index": pid})));
            let rows = rows(&rank.events);
            let thread = |(lane, row): (Lane, usize)| lane as usize * ROWS + row.min(ROWS - 1);
            let threads: BTreeMap<_, _> = rows.iter().map(|row| (thread(*row), row)).collect();
            for (tid, (lane, row)) in threads {
                let name = match row {
                    0 => lane_name(*lane).to_string(),
                    _ => format!("{} {}", lane_name(*lane), row + 1),
                };
                entries.push(named("thread_name", tid, json!({"name": name})));
                entries.push(named("thread_sort_index", tid, json!({"sort_index": tid})));
            }
            let micro = |seconds: f64| seconds * 1e6;
            entries.extend(rank.events.iter().zip(&rows).map(|(event, row)| {
                let Event { name, activity, start, end, bytes } = event;
                let about = About { of: name.clone(), activity: *activity, bytes: *bytes };
                json!({
                    "ph": "X",
                    "name": format!("{activity} {name}").trim_end(),
                    "cat": lane_name(row.0),
                    "pid": pid,
                    "tid": thread(*row),
                    "ts": micro(rank.began + start),
                    "dur": micro(end - start),
                    "args": about,
                })
            }));
        }
        let ranks = self.ranks.iter().map(|rank| (rank.began, rank.seconds)).collect();
        let step = Step { step: self.step, ranks };
        // An entry a line.
        let lines: Vec<_> = entries.iter().map(Value::to_string).collect();
        let step = json!(step);
        format!(
            "{{\"displayTimeUnit\":\"ms\",\"otherData\":{step},\"traceEvents\":[\n{}\n]}}\n",
            lines.join(",\n")
        )
    }

    /// Reads a timeline that [`to_chrome`](Self::to_chrome) has written. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let trace: Trace = serde_json::from_str(text).ok()?;
        let rank = |(began, seconds)| RankTimeline { began, seconds, events: Vec::new() };
        let mut ranks: Vec<_> = trace.other_data.ranks.into_iter().map(rank).collect();
        for Entry { pid, ts, dur, args } in trace.trace_events {
            let Ok(About { of, activity, bytes }) = serde_json::from_value(args) else { continue };
            let rank = ranks.get_mut(pid)?;
            let start = ts / 1e6 - rank.began;
            rank.events.push(Event { name: of, activity, start, end: start + dur / 1e6, bytes });
        }
        Some(Self { step: trace.other_data.step, ranks })
    }
}

#[cfg(test)]
mod tests {
    use firebrick_world::Collective;

    use super::*;

    fn timeline() -> StepTimeline {
        let event = |name: &str, activity, start, end, bytes| Event {
            name: name.into(),
            activity,
            start,
            end,
            bytes,
        };
        let (sum, wait) =
            (Activity::Exchange(Collective::ReduceScatter), Activity::Wait(Collective::ReduceScatter));
        let events = vec![
            event("the model", Activity::Backward, 0.0, 2.0, 0),
            event("blocks.1", Activity::Backward, 0.5, 1.0, 0),
            event("blocks.1", sum, 1.0, 1.5, 64),
            event("blocks.0", sum, 1.25, 2.5, 64),
            event("blocks.0", wait, 2.0, 2.5, 0),
        ];
        let ranks = [0.0, 0.25].map(|began| RankTimeline { began, seconds: 3.0, events: events.clone() });
        StepTimeline { step: 3, ranks: ranks.into() }
    }

    #[test]
    fn a_trace_has_a_process_for_each_rank_and_a_thread_for_each_row() {
        let trace: Value = serde_json::from_str(&timeline().to_chrome()).unwrap();
        let entries = trace["traceEvents"].as_array().unwrap();
        let named = |what: &str, pid: u64| -> Vec<_> {
            let of = entries.iter().filter(|entry| entry["name"] == what && entry["pid"] == pid);
            of.map(|entry| entry["args"]["name"].as_str().unwrap()).collect()
        };
        for rank in [0, 1] {
            assert_eq!(named("process_name", rank), [format!("rank {rank}")]);
            let lanes = ["computation", "computation 2", "communication", "communication 2", "waiting"];
            assert_eq!(named("thread_name", rank), lanes);
        }
        let blocks: Vec<_> =
            entries.iter().filter(|entry| entry["name"] == "reduce_scatter blocks.0").collect();
        // The second rank began a quarter of a second later.
        assert_eq!(
            blocks.iter().map(|entry| entry["ts"].as_f64().unwrap()).collect::<Vec<_>>(),
            [1.25e6, 1.5e6]
        );
        assert_eq!(
            (&blocks[0]["ph"], &blocks[0]["dur"], &blocks[0]["args"]["bytes"]),
            (&json!("X"), &json!(1.25e6), &json!(64))
        );
    }

    #[test]
    fn what_was_written_is_read_again() {
        assert_eq!(StepTimeline::parse(&timeline().to_chrome()), Some(timeline()));
        for text in ["", "{}", "{\"traceEvents\": []}"] {
            assert_eq!(StepTimeline::parse(text), None);
        }
    }
}
