//! Rows of events that do not overlap.

use firebrick_world::{Event, Lane};

/// Returns the lane of each event, and its row there: the first one that is free. Events are in the order in which they
/// began; one within another is in a later row.
///
/// ```
/// use firebrick::observe::timeline::rows;
/// use firebrick::world::{Activity, Event, Kind, Lane};
///
/// let sum = |start, end| {
///     let activity = Activity::Exchange(Kind::AllReduce);
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
