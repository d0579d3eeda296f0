//! A chart: curves as SVG, labels as text, and the same numbers as a table.
//!
//! The picture stretches to the width of the page. The labels are not part of it, so they have the size of other
//! text, even on a phone.

use serde_json::{Value, json};

use super::axis::Axis;
use super::curve::{Curve, Point};
use super::escape::{escape, json_in_script};
use super::marks::Mark;
use super::number::{Unit, count};
use super::tables::table;

/// The width and height of the picture in its own units.
const SIZE: f64 = 1000.0;
/// The maximum number of evaluations that get a dot each.
const DOTTED: usize = 60;
/// The maximum number of marks that get a line into the chart each.
const LINED: usize = 20;
/// The maximum number of rows in the table below a chart.
const ROWS: usize = 12;
/// The ratio of the highest to the lowest value from which a chart also has a logarithmic view.
const WIDE: f64 = 100.0;

/// The contents of one pair of axes.
pub(crate) struct Chart<'a> {
    /// The element's id: letters, digits and dashes.
    pub id: String,
    pub title: &'a str,
    pub unit: Unit,
    /// The first and the last step of the page.
    pub steps: (f64, f64),
    pub lines: Vec<Line>,
    pub marks: Vec<MarkRow<'a>>,
    /// The quantity shown in place of the steps, if there is one.
    pub along: Option<(&'a str, Vec<Point>)>,
}

/// A line with its legend entry.
pub(crate) struct Line {
    pub name: String,
    pub points: Vec<Point>,
    pub look: Look,
}

/// How to distinguish lines: by colour, and by dashes or dots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Behind the others, such as readings behind their mean.
    Faint,
    First,
    Second,
    Third,
    /// Few, widely spaced readings, each with a dot.
    Evaluated,
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Self::Faint => "faint",
            Self::First => "first",
            Self::Second | Self::Evaluated => "second",
            Self::Third => "third",
        }
    }
}

/// Steps that are marked along an edge of the chart.
pub(crate) struct MarkRow<'a> {
    /// The name in the legend.
    pub name: String,
    /// `skip`, `infinite`, `save` or `failed`.
    pub class: &'static str,
    pub marks: &'a [Mark],
}

impl<'a> Chart<'a> {
    /// Creates a chart without lines.
    pub fn new(id: &str, title: &'a str, unit: Unit, steps: (f64, f64)) -> Self {
        let (lines, marks) = (Vec::new(), Vec::new());
        Self { id: id.into(), title, unit, steps, lines, marks, along: None }
    }

    /// Labels the chart by a curve's value at each step, instead of the step.
    pub fn along(self, name: &'a str, curve: &Curve) -> Self {
        Self { along: Some((name, curve.points())).filter(|(_, readings)| !readings.is_empty()), ..self }
    }

    /// The label's name, and its value at a step.
    fn place(&self, step: f64) -> (&str, String) {
        match &self.along {
            None => ("step", count(step.round())),
            Some((name, readings)) => {
                let reading = nearest(readings, step).map_or(f64::NAN, |reading| reading.1);
                (name, format!("{reading:.2e}"))
            }
        }
    }

    /// Adds a curve, if it has readings.
    pub fn line(mut self, name: &str, curve: &Curve, look: Look) -> Self {
        self.push(name, curve.points(), look);
        self
    }

    /// Adds a curve of which only the peaks matter.
    pub fn peaks(mut self, name: &str, curve: &Curve, look: Look) -> Self {
        self.push(name, curve.peaks(), look);
        self
    }

    fn push(&mut self, name: &str, points: Vec<Point>, look: Look) {
        if !points.is_empty() {
            self.lines.push(Line { name: name.into(), points, look });
        }
    }

    /// Adds a noisy curve: its readings, faint, and a smoothed line.
    pub fn noisy(mut self, name: &str, curve: &Curve) -> Self {
        let Some(smooth) = curve.smoothed() else {
            return self.line(name, curve, Look::First);
        };
        let digits = 10f64.powf(smooth.deviation.max(1.0).log10().floor() - 1.0).max(1.0);
        let over = count((smooth.deviation.max(1.0) / digits).round() * digits);
        self = self.line(&format!("{name}, each step"), curve, Look::Faint);
        self.push(&format!("smoothed over \u{b1}{over} steps"), smooth.points, Look::First);
        self
    }

    /// Adds a noisy curve without its readings: the smoothed line.
    pub fn smooth(mut self, name: &str, curve: &Curve, look: Look) -> Self {
        self.push(name, curve.smoothed().map_or_else(|| curve.points(), |smooth| smooth.points), look);
        self
    }

    /// Adds marks, if there are any.
    pub fn marked(mut self, name: &str, class: &'static str, marks: &'a [Mark]) -> Self {
        if !marks.is_empty() {
            self.marks.push(MarkRow { name: name.into(), class, marks });
        }
        self
    }

    /// The chart as HTML; empty if there is nothing to draw.
    pub fn html(&self) -> String {
        let values = || self.lines.iter().flat_map(|line| &line.points).map(|point| point.1);
        let (Some(lowest), Some(highest)) =
            (values().min_by(f64::total_cmp), values().max_by(f64::total_cmp))
        else {
            return String::new();
        };
        let steps = Axis::of_steps(self.steps.0, self.steps.1);
        let bottom = if self.unit == Unit::Plain { lowest } else { lowest.min(0.0) };
        let linear = self.plot(&steps, &Axis::linear(bottom, highest, self.unit));
        let plots = match lowest > 0.0 && highest / lowest > WIDE {
            false => linear,
            true => {
                self.switch() + &linear + &self.plot(&steps, &Axis::logarithmic(lowest, highest, self.unit))
            }
        };
        let unit = match self.unit.name() {
            "" => String::new(),
            name => format!(" <small>{name}</small>"),
        };
        let (id, title) = (escape(&self.id), escape(self.title));
        format!(
            "<figure class=\"chart\" id=\"{id}\">\n<figcaption>{title}{unit}</figcaption>\n{}{plots}{}{}</figure>\n",
            self.legend(),
            self.table(),
            self.data()
        )
    }

    /// Switches between the two plots without a script.
    fn switch(&self) -> String {
        let id = escape(&self.id);
        let choice = |value: &str, name: &str, checked: &str| {
            format!(
                "<input type=\"radio\" name=\"{id}-y\" id=\"{id}-{value}\" class=\"to-{value}\"{checked}>\
                 <label for=\"{id}-{value}\">{name}</label>\n"
            )
        };
        choice("linear", "linear", "") + &choice("log", "logarithmic", " checked")
    }

    fn plot(&self, steps: &Axis, values: &Axis) -> String {
        let kind = if values.logarithmic { "log" } else { "linear" };
        let mut grid = String::new();
        let mut rows = String::new();
        for tick in &values.ticks {
            let y = (1.0 - tick.at) * SIZE;
            grid += &format!("M0 {y:.1}H1000");
            rows += &format!("<span style=\"bottom:{:.2}%\">{}</span>", tick.at * 100.0, escape(&tick.label));
        }
        let columns: String = steps
            .ticks
            .iter()
            .map(|tick| {
                let label = match &self.along {
                    None => tick.label.clone(),
                    Some(_) => self.place(steps.low + tick.at * (steps.high - steps.low)).1,
                };
                format!("<span style=\"left:{:.2}%\">{}</span>", tick.at * 100.0, escape(&label))
            })
            .collect();
        let lines: String = self.lines.iter().map(|line| draw(line, steps, values)).collect();
        let marks: String = self.marks.iter().map(|row| draw_marks(row, steps)).collect();
        format!(
            "<div class=\"plot {kind}\" data-low=\"{}\" data-high=\"{}\">\
             <div class=\"rows\" aria-hidden=\"true\">{rows}</div>\
             <div class=\"area\" role=\"img\" tabindex=\"0\" aria-label=\"{}\">\
             <svg viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
             <path class=\"grid\" d=\"{grid}\"/>{lines}</svg>{marks}</div>\
             <div class=\"axis\" aria-hidden=\"true\">{}</div>\
             <div class=\"columns\" aria-hidden=\"true\">{columns}</div></div>\n",
            values.low,
            values.high,
            escape(&self.summary()),
            escape(self.place(steps.low).0)
        )
    }

    /// Describes the chart in text.
    fn summary(&self) -> String {
        let ((name, first), (_, last)) = (self.place(self.steps.0), self.place(self.steps.1));
        let mut words = format!("{} over {name}s {first} to {last}.", self.title);
        for line in self.lines.iter().filter(|line| line.look != Look::Faint) {
            let by_value = |one: &&Point, other: &&Point| one.1.total_cmp(&other.1);
            let (Some(first), Some(last)) = (line.points.first(), line.points.last()) else { continue };
            let (Some(low), Some(high)) =
                (line.points.iter().min_by(by_value), line.points.iter().max_by(by_value))
            else {
                continue;
            };
            let at = |point: &Point| {
                let (name, place) = self.place(point.0);
                format!("{} at {name} {place}", self.unit.format(point.1))
            };
            words += &format!(
                " {}: from {} to {}; lowest {}, highest {}.",
                line.name,
                at(first),
                at(last),
                at(low),
                at(high)
            );
        }
        for row in &self.marks {
            words += &format!(" {}.", row.name);
        }
        words
    }

    fn legend(&self) -> String {
        let lines = self.lines.iter().map(|line| {
            let dots = if has_dots(line) { " dots" } else { "" };
            format!("<li class=\"{}{dots}\"><i></i>{}</li>", line.look.class(), escape(&line.name))
        });
        let marks = self
            .marks
            .iter()
            .map(|row| format!("<li class=\"mark-{}\"><i></i>{}</li>", row.class, escape(&row.name)));
        let entries: String = lines.chain(marks).collect();
        // The title already shows the name.
        let is_title = matches!(self.lines.as_slice(), [line] if line.name == self.title);
        match is_title && self.marks.is_empty() {
            true => String::new(),
            false => format!("<ul class=\"legend\">{entries}</ul>\n"),
        }
    }

    /// Some of the numbers as a table, for screen readers and other readers of text.
    fn table(&self) -> String {
        let shown: Vec<&Line> = self.lines.iter().filter(|line| line.look != Look::Faint).collect();
        // Prefer the steps of evaluations, if there are any: they are few, and the other lines have a reading near
        // each.
        let evaluated = shown.iter().find(|line| line.look == Look::Evaluated && line.points.len() > 1);
        let Some(longest) = evaluated.or(shown.iter().max_by_key(|line| line.points.len())) else {
            return String::new();
        };
        let last = longest.points.len().saturating_sub(1);
        let mut rows: Vec<usize> = (0..ROWS).map(|row| last * row / (ROWS - 1)).collect();
        rows.dedup();
        let names = shown.iter().map(|line| line.name.as_str());
        let heads: Vec<&str> = std::iter::once(self.place(self.steps.0).0).chain(names).collect();
        let near = |line: &Line, step| nearest(&line.points, step).map(|point| self.unit.format(point.1));
        let rows = rows.into_iter().filter_map(|row| longest.points.get(row)).map(|(step, _)| {
            let cells = shown.iter().map(|line| near(line, *step).unwrap_or_default());
            std::iter::once(self.place(*step).1).chain(cells).collect()
        });
        let table = table("readings", &heads, &rows.collect::<Vec<Vec<String>>>());
        format!("<details><summary>As a table</summary>{table}</details>\n")
    }

    /// The data for the readout; the script finds the point under the pointer.
    fn data(&self) -> String {
        let number = |value: f64| -> Value {
            // Six digits are more than a page can show.
            format!("{value:.5e}").parse::<f64>().map_or(Value::Null, |value| json!(value))
        };
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                let points: Vec<Value> =
                    line.points.iter().map(|(x, y)| json!([x.round(), number(*y)])).collect();
                json!({"name": line.name, "look": line.look.class(), "points": points})
            })
            .collect();
        let steps = Axis::of_steps(self.steps.0, self.steps.1);
        let unit = match self.unit {
            Unit::Bytes => "bytes",
            Unit::Percent => "percent",
            Unit::PerSecond => "count",
            Unit::Plain => "plain",
        };
        let data = json!({"steps": [steps.low, steps.high], "unit": unit, "lines": lines});
        format!("<script type=\"application/json\">{}</script>\n", json_in_script(&data))
    }
}

/// The reading nearest to a step.
fn nearest(points: &[Point], step: f64) -> Option<&Point> {
    points.iter().min_by(|one, other| (one.0 - step).abs().total_cmp(&(other.0 - step).abs()))
}

/// Whether each reading has a dot.
fn has_dots(line: &Line) -> bool {
    line.points.len() == 1 || (line.look == Look::Evaluated && line.points.len() <= DOTTED)
}

fn draw(line: &Line, steps: &Axis, values: &Axis) -> String {
    let places = line.points.iter().filter(|point| !values.logarithmic || point.1 > 0.0);
    let places: Vec<String> = places
        .map(|point| {
            format!("{:.1} {:.1}", steps.place(point.0) * SIZE, (1.0 - values.place(point.1)) * SIZE)
        })
        .collect();
    let class = line.look.class();
    let mut drawn = format!("<path class=\"{class}\" d=\"M{}\"/>", places.join("L"));
    if has_dots(line) {
        // A line of zero length with round ends is a dot, however the picture is stretched.
        let dots: String = places.iter().map(|place| format!("M{place}h0")).collect();
        drawn += &format!("<path class=\"{class} dot\" d=\"{dots}\"/>");
    }
    drawn
}

fn draw_marks(row: &MarkRow, steps: &Axis) -> String {
    let mark = |mark: &Mark| {
        format!(
            "<b class=\"mark-{}\" style=\"left:{:.2}%\" title=\"step {}: {}\"></b>",
            row.class,
            steps.place(mark.step as f64) * 100.0,
            mark.step,
            escape(&mark.reason)
        )
    };
    let marks: String = row.marks.iter().map(mark).collect();
    let many = if row.marks.len() > LINED { " many" } else { "" };
    format!("<div class=\"marks{many}\">{marks}</div>")
}

#[cfg(test)]
#[path = "chart_tests.rs"]
mod tests;
