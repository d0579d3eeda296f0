//! Curves as characters, on the same axes.

use crate::report_page::curve::Point;

/// The columns of a curve.
const WIDTH: usize = 60;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws curves below each other, with the same steps and the same scale. Between two readings, a curve stays where it
/// is; before its first and after its last, it is blank.
pub(super) fn drawn(title: &str, curves: &[(&str, Vec<Point>)]) -> String {
    let points = || curves.iter().flat_map(|(_, points)| points.iter().filter(|point| point.1.is_finite()));
    let range = |of: fn(&Point) -> f64| {
        let values = points().map(of);
        values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
    };
    let ((first, last), (low, high)) = (range(|point| point.0), range(|point| point.1));
    if first > last {
        return String::new();
    }
    let mut text = format!("\n{title}, steps {first:.0} to {last:.0}, from {low:.4} to {high:.4}\n");
    for (name, points) in curves {
        let column = |at: usize| {
            // A single step is a curve of one column.
            let bound = |at: usize| first + (last - first).max(1.0) * at as f64 / WIDTH as f64;
            let is_last = at + 1 == WIDTH;
            let inside = |point: &&Point| {
                point.0 >= bound(at) && (point.0 < bound(at + 1) || is_last && point.0 <= last)
            };
            let values: Vec<f64> =
                points.iter().filter(inside).map(|point| point.1).filter(|value| value.is_finite()).collect();
            let mean = match values.len() {
                0 => {
                    let begins_later = points.iter().all(|point| point.0 >= bound(at));
                    let has_ended = points.iter().all(|point| point.0 < bound(at));
                    match self::at(points, bound(at)).filter(|value| value.is_finite()) {
                        Some(value) if !begins_later && !has_ended => value,
                        _ => return ' ',
                    }
                }
                count => values.iter().sum::<f64>() / count as f64,
            };
            let share = if high > low { (mean - low) / (high - low) } else { 0.0 };
            LEVELS[((share * LEVELS.len() as f64) as usize).min(LEVELS.len() - 1)]
        };
        text += &format!("  {name} {}\n", (0..WIDTH).map(column).collect::<String>().trim_end());
    }
    text
}

/// Returns the value of a curve at a step: its last reading up to there.
pub(super) fn at(points: &[Point], step: f64) -> Option<f64> {
    points.iter().rev().find(|point| point.0 <= step).map(|point| point.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_share_their_axes() {
        let falling: Vec<Point> = (0..60).map(|step| (step as f64, 59.0 - step as f64)).collect();
        let late = vec![(59.0, 0.0)];
        let text = drawn("train loss", &[("A", falling), ("B", late)]);
        let lines: Vec<&str> = text.trim_start().lines().collect();
        assert_eq!(lines[0], "train loss, steps 0 to 59, from 0.0000 to 59.0000");
        assert!(lines[1].starts_with("  A ███") && lines[1].ends_with("▁▁▁"), "{}", lines[1]);
        assert_eq!(lines[1].chars().count(), 4 + WIDTH);
        assert_eq!(lines[2], format!("  B {}▁", " ".repeat(WIDTH - 1)));
        assert_eq!(drawn("nothing", &[("A", Vec::new())]), "");
        // Few readings leave no gaps.
        let few = drawn("few", &[("A", vec![(0.0, 1.0), (30.0, 0.0), (60.0, 1.0)])]);
        assert!(few.ends_with(&format!("  A {}{}█\n", "█".repeat(30), "▁".repeat(29))), "{few}");
        // A curve that is flat, or has a reading that is not finite.
        assert!(drawn("flat", &[("A", vec![(1.0, 2.0), (2.0, f64::NAN)])]).contains("  A ▁"));
    }

    #[test]
    fn a_value_is_the_last_one_so_far() {
        let points = [(1.0, 5.0), (4.0, 3.0)];
        assert_eq!(
            [0.0, 1.0, 3.0, 9.0].map(|step| at(&points, step)),
            [None, Some(5.0), Some(5.0), Some(3.0)]
        );
    }
}
