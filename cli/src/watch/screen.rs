//! Draws a run in progress into a terminal buffer.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis as Scale, Block, Chart, Dataset, GraphType, LineGauge, Paragraph};

use super::watched::Watched;
use crate::report_page::axis::Axis;
use crate::report_page::curve::{Curve, Point};
use crate::report_page::number::{Unit, bytes, count, duration, log_tick, plain};

/// The width of the numbers beside the loss, in columns.
const NUMBERS: u16 = 34;
/// The minimum width for showing them there.
const WIDE: u16 = 90;
/// The minimum height for the small charts.
const HIGH: u16 = 20;

/// How to view the run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    /// Whether the loss axis is logarithmic.
    pub logarithmic: bool,
}

/// Draws the run.
pub(crate) fn draw(frame: &mut Frame, watched: &Watched, view: View) {
    let area = frame.area();
    let is_wide = area.width >= WIDE;
    let is_high = area.height >= if is_wide { HIGH } else { HIGH + 8 };
    let small = if is_high { Constraint::Percentage(35) } else { Constraint::Length(0) };
    let [head, middle, charts, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(6), small, Constraint::Length(1)])
            .areas(area);
    draw_head(frame, head, watched);
    if is_wide {
        let [loss, numbers] =
            Layout::horizontal([Constraint::Min(30), Constraint::Length(NUMBERS)]).areas(middle);
        draw_loss(frame, loss, watched, view);
        draw_numbers(frame, numbers, watched, 1);
    } else {
        let rows = numbers_and_scores(watched).len().div_ceil(2) as u16 + 2;
        let [numbers, loss] =
            Layout::vertical([Constraint::Length(rows.min(middle.height / 2)), Constraint::Min(0)])
                .areas(middle);
        draw_numbers(frame, numbers, watched, 2);
        draw_loss(frame, loss, watched, view);
    }
    if charts.height > 0 {
        let [rate, speed] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)]).areas(charts);
        let record = &watched.record;
        draw_curve(frame, rate, "Learning rate", &record.learning_rate, false, watched);
        draw_curve(frame, speed, "Tokens per second", &record.tokens_per_second, true, watched);
    }
    let other = if view.logarithmic { "linear" } else { "logarithmic" };
    let keys = format!(" q quits, the run goes on   l {other} loss");
    frame.render_widget(Paragraph::new(keys).style(Style::new().add_modifier(Modifier::DIM)), foot);
}

fn draw_head(frame: &mut Frame, area: Rect, watched: &Watched) {
    let step = count(watched.step() as f64);
    let place = match watched.total {
        Some(total) => format!("step {step} of {}", count(total as f64)),
        None => format!("step {step}"),
    };
    let quiet = match watched.quiet {
        Some(quiet) if watched.finished.is_none() => {
            format!("   last line {} ago", duration(quiet.as_secs_f64().floor().max(1.0)))
        }
        _ => String::new(),
    };
    let name = Span::styled(visible(&watched.name), Style::new().add_modifier(Modifier::BOLD));
    let title = Line::from(vec![Span::raw(" "), name, Span::raw(format!("   {place}{quiet}"))]);
    let [first, second] = Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(area);
    frame.render_widget(title, first);
    if let Some(total) = watched.total.filter(|total| *total > 0) {
        let done = (watched.step() as f64 / total as f64).min(1.0);
        let gauge = LineGauge::default()
            .filled_style(Style::new().fg(Color::Green))
            .label(format!(" {:>3.0}%", (done * 100.0).floor()))
            .ratio(done);
        frame.render_widget(gauge, second);
    }
}

/// The latest numbers by name, without unknown ones.
fn numbers(watched: &Watched) -> Vec<(&'static str, String)> {
    let record = &watched.record;
    let last = record.last.as_ref();
    let best = record.best_valid.as_ref();
    let save = record.saves.newest.back();
    let rows = [
        ("train loss", record.recent_loss().map(plain)),
        ("valid loss", record.last_valid.as_ref().and_then(|line| finite(line.loss)).map(plain)),
        ("best", best.map(|line| format!("{} at {}", plain(line.loss), count(line.step as f64)))),
        ("learning rate", last.and_then(|line| finite(line.learning_rate)).map(plain)),
        ("gradient norm", last.and_then(|line| finite(line.gradient_norm)).map(plain)),
        ("loss scale", last.and_then(|line| line.loss_scale).map(plain)),
        ("tokens/s", last.and_then(|line| finite(line.tokens_per_second)).map(count)),
        ("tokens/s/device", last.and_then(|line| line.tokens_per_second_per_device).map(count)),
        ("MFU", last.and_then(|line| line.mfu).map(|share| format!("{:.1}%", 100.0 * share))),
        ("skipped", (record.skips.count > 0).then(|| count(record.skips.count as f64))),
        ("peak memory", record.peak.highest().map(|point| bytes(point.1))),
        (
            "checkpoint",
            save.map(|save| match save.error {
                None => format!("at {}", count(save.step as f64)),
                Some(_) => format!("failed at {}", count(save.step as f64)),
            }),
        ),
        ("elapsed", (record.seconds > 0.0).then(|| duration(record.seconds.round()))),
        ("time left", watched.remaining().map(|seconds| duration(seconds.round()))),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn finite(number: f64) -> Option<f64> {
    Some(number).filter(|number| number.is_finite())
}

/// The latest numbers, and the scores of the last evaluation.
fn numbers_and_scores(watched: &Watched) -> Vec<(String, String)> {
    let scores = watched.record.last_valid.iter().flat_map(|line| &line.scores);
    let scores = scores.map(|(name, value)| (visible(name), finite(*value).map_or("none".into(), plain)));
    numbers(watched).into_iter().map(|(name, value)| (name.to_string(), value)).chain(scores).collect()
}

/// Draws the numbers in this many columns.
fn draw_numbers(frame: &mut Frame, area: Rect, watched: &Watched, columns: u16) {
    let block = Block::bordered().title(" Numbers ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = numbers_and_scores(watched);
    let places = Layout::horizontal(vec![Constraint::Fill(1); columns.into()]).split(inner);
    let in_each = rows.len().div_ceil(columns.into()).max(1);
    for (place, rows) in places.iter().zip(rows.chunks(in_each)) {
        let lines = rows.iter().map(|(name, value)| {
            let name = Span::styled(format!(" {name:<14} "), Style::new().add_modifier(Modifier::DIM));
            Line::from(vec![name, Span::raw(value.as_str())])
        });
        frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), *place);
    }
}

fn draw_loss(frame: &mut Frame, area: Rect, watched: &Watched, view: View) {
    let record = &watched.record;
    let train = record.loss.smoothed().map_or_else(|| record.loss.points(), |smoothed| smoothed.points);
    let valid = record.valid_loss.points();
    let logarithmic = view.logarithmic && [&train, &valid].iter().all(|points| are_positive(points));
    let seen = |points: &[Point]| -> Vec<Point> {
        match logarithmic {
            true => points.iter().map(|(step, value)| (*step, value.log10())).collect(),
            false => points.to_vec(),
        }
    };
    let (train, valid) = (seen(&train), seen(&valid));
    let lines = [("train", train, Color::Cyan, GraphType::Line, Marker::Braille), {
        ("valid", valid, Color::Yellow, GraphType::Scatter, Marker::Dot)
    }];
    draw_chart(frame, area, "Loss", &lines, false, logarithmic, watched);
}

fn are_positive(points: &[Point]) -> bool {
    points.iter().all(|point| point.1 > 0.0)
}

fn draw_curve(frame: &mut Frame, area: Rect, title: &str, curve: &Curve, from_zero: bool, watched: &Watched) {
    let points = curve.smoothed().map_or_else(|| curve.points(), |smoothed| smoothed.points);
    let lines = [("", points, Color::Cyan, GraphType::Line, Marker::Braille)];
    draw_chart(frame, area, title, &lines, from_zero, false, watched);
}

/// A line of a chart: its name, points and style.
type Drawn<'a> = (&'a str, Vec<Point>, Color, GraphType, Marker);

fn draw_chart(
    frame: &mut Frame,
    area: Rect,
    title: &str,
    lines: &[Drawn],
    from_zero: bool,
    logarithmic: bool,
    watched: &Watched,
) {
    let block = Block::bordered().title(format!(" {title} "));
    let values = || lines.iter().flat_map(|line| &line.1).map(|point| point.1);
    let (Some(lowest), Some(highest)) = (values().min_by(f64::total_cmp), values().max_by(f64::total_cmp))
    else {
        frame.render_widget(Paragraph::new(" nothing yet").block(block), area);
        return;
    };
    let bottom = if from_zero { lowest.min(0.0) } else { lowest };
    let axis = Axis::linear(bottom, highest, Unit::Plain);
    // The library spaces labels evenly, which fits a round axis.
    let wanted = axis.ticks.len().div_ceil((usize::from(area.height) / 3).max(2)).max(1);
    let gaps = axis.ticks.len().saturating_sub(1).max(1);
    let every = (wanted..gaps).find(|every| gaps.is_multiple_of(*every)).unwrap_or(gaps);
    let labels: Vec<String> = match logarithmic {
        true => {
            let places = [0.0, 0.5, 1.0].map(|place| axis.low + place * (axis.high - axis.low));
            places.iter().map(|power| log_tick(two_digits(10f64.powf(*power)), Unit::Plain)).collect()
        }
        false => axis.ticks.iter().step_by(every).map(|tick| tick.label.clone()).collect(),
    };
    let (first, last) = watched.record.steps.unwrap_or((0, 1));
    let steps = Axis::of_steps(first as f64, watched.total.map_or(last, |total| total.max(last)) as f64);
    let ends = [steps.low.max(0.0), steps.high].map(|step| count(step.round()));
    let sets = lines.iter().map(|(name, points, color, kind, marker)| {
        let style = Style::new().fg(*color);
        Dataset::default().name(*name).data(points).style(style).graph_type(*kind).marker(*marker)
    });
    let sets: Vec<Dataset> = sets.collect();
    let dim = Style::new().add_modifier(Modifier::DIM);
    let chart = Chart::new(sets)
        .block(block)
        .x_axis(Scale::default().style(dim).bounds([steps.low, steps.high]).labels(ends))
        .y_axis(Scale::default().style(dim).bounds([axis.low, axis.high]).labels(labels));
    frame.render_widget(chart, area);
}

fn two_digits(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor() - 1.0);
    (value / power).round() * power
}

/// Replaces control characters, which would move the cursor.
fn visible(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::report_page::record::Record;

    fn run() -> Watched {
        let mut log = String::new();
        for step in 1..=80u32 {
            let loss = 2.0 + 5.0 * (-f64::from(step) / 20.0).exp();
            let rate = 1e-3 * f64::from(step.min(20)) / 20.0;
            log += &format!(
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"learning_rate\":{rate},\"gradient_norm\":1.5,\
                 \"tokens\":1000,\"items\":9,\"seconds\":0.5,\"tokens_per_second\":2000.0,\"peak_bytes\":112206352}}\n"
            );
            if step % 20 == 0 {
                let loss = loss + 0.5;
                log += &format!(
                    "{{\"kind\":\"valid\",\"step\":{step},\"loss\":{loss},\"seconds\":2.0,\"scores\":{{\"f1\":0.5}}}}\n"
                );
            }
        }
        log += "{\"kind\":\"checkpoint\",\"step\":60,\"seconds\":1.0,\"pause_seconds\":0.0}\n";
        let record = Record::read(log.as_bytes()).unwrap();
        let quiet = Some(Duration::from_secs(3));
        Watched { name: "causal_lm".into(), record, total: Some(120), finished: None, is_gone: false, quiet }
    }

    fn drawn(watched: &Watched, view: View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, watched, view)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_run_on_a_wide_terminal() {
        insta::assert_snapshot!(drawn(&run(), View::default(), 110, 34));
    }

    #[test]
    fn a_run_on_a_narrow_terminal() {
        insta::assert_snapshot!(drawn(&run(), View { logarithmic: true }, 60, 26));
    }

    #[test]
    fn a_run_before_its_first_step() {
        let watched = Watched { name: "new\u{1b}[2J".into(), ..Watched::default() };
        insta::assert_snapshot!(drawn(&watched, View::default(), 70, 20));
    }

    #[test]
    fn no_terminal_is_too_small() {
        for (width, height) in [(1, 1), (3, 40), (200, 2), (40, 9), (91, 7)] {
            for logarithmic in [false, true] {
                drawn(&run(), View { logarithmic }, width, height);
            }
        }
    }
}
