//! The timelines of steps: for each rank, lanes with a bar for each event.

use firebrick::observe::timeline::{RankTimeline, StepTimeline, covered, rows};
use firebrick_world::{Activity, Event, Lane};

use super::axis::Axis;
use super::escape::escape;
use super::number::{Unit, count};
use super::tables::section;

/// The width of a drawing.
const WIDTH: f64 = 1000.0;
/// The height of a row of bars, and of what is between two lanes.
const ROW: f64 = 16.0;
const GAP: f64 = 6.0;
/// The most bars of a rank; more would not be told apart.
const MOST_BARS: usize = 5000;
/// The most ranks that are drawn of a step.
const MOST_RANKS: usize = 16;

/// The colours of bars, and what they are of.
const LEGEND: [(&str, &str); 6] = [
    ("forward", "forward"),
    ("rerun", "forward again, for the backward pass"),
    ("backward", "backward"),
    ("update", "update"),
    ("exchange", "on its way between the ranks"),
    ("wait", "the rank waits"),
];

fn class(activity: Activity) -> &'static str {
    match activity {
        Activity::Forward => "forward",
        Activity::Rerun => "rerun",
        Activity::Backward => "backward",
        Activity::Update => "update",
        Activity::Exchange(_) => "exchange",
        Activity::Wait(_) => "wait",
    }
}

/// Returns the section of these steps; empty without any.
pub(crate) fn html(steps: &[StepTimeline]) -> String {
    if steps.is_empty() {
        return String::new();
    }
    let is_drawn = |class: &str| {
        let mut events = steps.iter().flat_map(|step| &step.ranks).flat_map(|rank| &rank.events);
        events.any(|event| self::class(event.activity) == class)
    };
    let entries = LEGEND.iter().filter(|(class, _)| is_drawn(class));
    let entries: String =
        entries.map(|(class, name)| format!("<li class=\"{class}\"><i></i>{name}</li>")).collect();
    let steps: String = steps.iter().map(of_step).collect();
    let hint =
        "<p>A bar of a computation includes the waits below it. Point at a bar for its name and times.</p>";
    section("Timelines", &format!("<ul class=\"legend bars\">{entries}</ul>\n{hint}\n{steps}"))
}

fn of_step(timeline: &StepTimeline) -> String {
    let StepTimeline { step, ranks } = timeline;
    let seconds = timeline.seconds();
    let axis = Axis::linear(0.0, seconds * 1e3, Unit::Plain);
    let drawn: String = ranks
        .iter()
        .take(MOST_RANKS)
        .enumerate()
        .map(|(number, rank)| of_rank(number, rank, &axis))
        .collect();
    let left_out = match ranks.len().saturating_sub(MOST_RANKS) {
        0 => String::new(),
        more => format!("<p>{} more ranks are in the file of the step.</p>\n", count(more as f64)),
    };
    let bubble = timeline.bubbles().map_or_else(String::new, |bubbles| {
        let percents = bubbles.iter().map(|bubble| 100.0 * bubble);
        let (least, most) = percents
            .fold((f64::INFINITY, 0.0), |(least, most), one| (f64::min(least, one), f64::max(most, one)));
        format!(", bubble {least:.0} to {most:.0}% beside computing")
    });
    let columns: String = axis
        .ticks
        .iter()
        .map(|tick| format!("<span style=\"left:{:.2}%\">{}</span>", tick.at * 100.0, escape(&tick.label)))
        .collect();
    format!(
        "<figure class=\"chart timeline\">\n<figcaption>Step {} <small>{} s{bubble}</small></figcaption>\n{drawn}\
         <div class=\"lanes\"><div class=\"axis\" aria-hidden=\"true\">ms</div>\
         <div class=\"columns\" aria-hidden=\"true\">{columns}</div></div>\n{left_out}</figure>\n",
        count(*step as f64),
        Unit::Plain.format(seconds),
    )
}

fn of_rank(number: usize, rank: &RankTimeline, axis: &Axis) -> String {
    let rows = rows(&rank.events);
    let rows_of =
        |lane: Lane| rows.iter().filter(|row| row.0 == lane).map(|row| row.1 + 1).max().unwrap_or(0);
    let mut tops = Vec::new();
    let mut height = GAP;
    for lane in [Lane::Computation, Lane::Communication, Lane::Waiting] {
        tops.push(height);
        let rows = rows_of(lane) as f64;
        height += if rows > 0.0 { rows * ROW + GAP } else { 0.0 };
    }
    let place = |seconds: f64| axis.place((rank.began + seconds) * 1e3) * WIDTH;
    let bar = |(event, (lane, row)): (&Event, &(Lane, usize))| {
        let (x, y) = (place(event.start), tops[*lane as usize] + *row as f64 * ROW);
        // A bar is visible, however short its event.
        let width = (place(event.end) - x).max(0.5);
        format!(
            "<rect class=\"{}\" x=\"{x:.2}\" y=\"{y:.0}\" width=\"{width:.2}\" height=\"{:.0}\"><title>{}</title></rect>",
            class(event.activity),
            ROW - 2.0,
            escape(&described(event)),
        )
    };
    let bars: String = rank.events.iter().zip(&rows).take(MOST_BARS).map(bar).collect();
    let summary = escape(&summary(number, rank));
    format!(
        "<div class=\"lanes\"><div class=\"rank\">rank {number}</div>\
         <svg viewBox=\"0 0 {WIDTH} {height}\" preserveAspectRatio=\"none\" style=\"height:{height}px\" role=\"img\" \
         aria-label=\"{summary}\">{bars}</svg></div>\n"
    )
}

fn described(event: &Event) -> String {
    let Event { name, activity, start, end, bytes } = event;
    let bytes = if *bytes > 0 { format!(", {}", Unit::Bytes.format(*bytes as f64)) } else { String::new() };
    let name = if name.is_empty() { String::new() } else { format!(" {name}") };
    let (start, seconds) = (start * 1e3, (end - start) * 1e3);
    format!("{activity}{name}: {seconds:.2} ms from {start:.2} ms{bytes}")
}

/// Describes a rank's step in text.
fn summary(number: usize, rank: &RankTimeline) -> String {
    let seconds = |lane: Lane| covered(rank.events.iter().filter(|event| event.activity.lane() == lane));
    format!(
        "Rank {number}: {} s, of which something was on its way between the ranks for {} s, and the rank waited for {} s.",
        Unit::Plain.format(rank.seconds),
        Unit::Plain.format(seconds(Lane::Communication)),
        Unit::Plain.format(seconds(Lane::Waiting)),
    )
}

#[cfg(test)]
mod tests {
    use firebrick_world::Collective;

    use super::*;

    fn event(name: &str, activity: Activity, start: f64, end: f64, bytes: u64) -> Event {
        Event { name: name.into(), activity, start, end, bytes }
    }

    fn step(events: Vec<Event>) -> StepTimeline {
        let ranks = vec![RankTimeline { began: 0.0, seconds: 0.004, events }; 2];
        StepTimeline { step: 12, ranks }
    }

    #[test]
    fn each_event_is_a_bar_in_the_lanes_of_its_rank() {
        let sum = Activity::Exchange(Collective::ReduceScatter);
        let html = html(&[step(vec![
            event("blocks.1", Activity::Backward, 0.0, 0.001, 0),
            event("blocks.1", sum, 0.001, 0.003, 2_000_000),
            event("blocks.0", Activity::Backward, 0.001, 0.002, 0),
            event("blocks.0", sum, 0.002, 0.004, 2_000_000),
            event("blocks.0", Activity::Wait(Collective::ReduceScatter), 0.002, 0.004, 0),
        ])]);
        assert!(html.contains("Step 12") && html.contains("rank 1"), "{html}");
        assert_eq!(html.matches("<rect").count(), 10);
        let title = "reduce_scatter blocks.1: 2.00 ms from 1.00 ms, 2.0 MB";
        assert!(html.contains(title), "{html}");
        // The second sum overlaps the first one, so it has a row of its own.
        let y = |name: &str| {
            let before = html.split(name).next().unwrap().rsplit("y=\"").next().unwrap();
            before.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(y("reduce_scatter blocks.0") - y("reduce_scatter blocks.1"), ROW);
        assert!(y("backward blocks.0") == y("backward blocks.1"));
        assert!(y("wait for reduce_scatter") > y("reduce_scatter blocks.0"));
        // Only what is drawn has an entry.
        assert!(html.contains("<li class=\"wait\">") && !html.contains("<li class=\"update\">"));
        assert!(
            html.contains("on its way between the ranks for 0.0030 s, and the rank waited for 0.0020 s"),
            "{html}"
        );
    }

    #[test]
    fn a_pipeline_has_its_bubble_in_the_caption() {
        let events = vec![
            event("", Activity::Forward, 0.0, 0.002, 0),
            event("states", Activity::Wait(Collective::Send), 0.0, 0.001, 0),
            event("", Activity::Backward, 0.002, 0.004, 0),
        ];
        // Of four milliseconds, each rank waits one.
        let html = html(&[step(events)]);
        assert!(html.contains("bubble 33 to 33% beside computing"), "{html}");
    }

    #[test]
    fn a_name_is_no_markup_and_a_page_without_timelines_says_nothing_of_them() {
        let html = super::html(&[step(vec![event("<b>", Activity::Forward, 0.0, 0.001, 0)])]);
        assert!(html.contains("forward &lt;b&gt;") && !html.contains("<b>"), "{html}");
        assert_eq!(super::html(&[]), "");
    }
}
