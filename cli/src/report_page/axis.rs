//! Axes with round labels.

use super::number::{Unit, log_tick, tick};

/// Maps values to places along an axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub low: f64,
    pub high: f64,
    pub logarithmic: bool,
    pub ticks: Vec<Tick>,
}

/// A label and its place: 0 is the low end of the axis, and 1 the high end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub at: f64,
    pub label: String,
}

impl Axis {
    /// An axis of steps, from the first to the last.
    pub fn of_steps(first: f64, last: f64) -> Self {
        let (low, high) = widened(first, last, 1.0);
        let apart = round_up((high - low) / 6.0).max(1.0);
        let mut axis = Self { low, high, logarithmic: false, ticks: Vec::new() };
        axis.ticks = axis.labels(apart, |value| match high >= 1e5 {
            true => tick(value, apart, high, Unit::Plain),
            false => super::number::count(value),
        });
        axis
    }

    /// An axis between round numbers that contains the lowest and the highest value.
    pub fn linear(lowest: f64, highest: f64, unit: Unit) -> Self {
        let (low, high) = widened(lowest, highest, lowest.abs().max(highest.abs()) * 0.1);
        let apart = round_up((high - low) / 5.0);
        // A value on a round number needs no further one.
        let (low, high) = ((low / apart + 1e-9).floor() * apart, (high / apart - 1e-9).ceil() * apart);
        let mut axis = Self { low, high, logarithmic: false, ticks: Vec::new() };
        axis.ticks = axis.labels(apart, |value| tick(value, apart, low.abs().max(high.abs()), unit));
        axis
    }

    /// A logarithmic axis. Both values must be above 0.
    pub fn logarithmic(lowest: f64, highest: f64, unit: Unit) -> Self {
        let (low, high) = (lowest / 1.2, highest * 1.2);
        let mut axis = Self { low, high, logarithmic: true, ticks: Vec::new() };
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let span = high.log10() - low.log10();
        let within: &[f64] = match span {
            ..2.0 => &[1.0, 2.0, 5.0],
            ..3.5 => &[1.0, 3.0],
            _ => &[1.0],
        };
        for decade in decades.step_by((span as usize / 6).max(1)) {
            for digit in within {
                let value = digit * 10f64.powi(decade);
                if (low..=high).contains(&value) {
                    axis.ticks.push(Tick { at: axis.place(value), label: log_tick(value, unit) });
                }
            }
        }
        axis
    }

    /// The place of a value, clamped to the axis.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => {
                let low = self.low.log10();
                (value.max(self.low).log10() - low) / (self.high.log10() - low)
            }
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    fn labels(&self, apart: f64, label: impl Fn(f64) -> String) -> Vec<Tick> {
        let first = (self.low / apart - 1e-9).ceil();
        let values = (0..20).map(|number| (first + f64::from(number)) * apart);
        let within = values.take_while(|value| *value <= self.high + apart * 1e-9);
        within.map(|value| Tick { at: self.place(value), label: label(value) }).collect()
    }
}

/// Two distinct ends; equal ends are moved apart by `least`.
fn widened(low: f64, high: f64, least: f64) -> (f64, f64) {
    let size = low.abs().max(high.abs());
    if high - low > size * 1e-9 {
        return (low, high);
    }
    // With a smaller distance relative to their size, adjacent numbers would be indistinguishable.
    let least = if least > 0.0 { least.max(size * 1e-6) } else { 1.0 };
    (low - least / 2.0, high + least / 2.0)
}

/// The next of 1, 2 and 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= value * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn an_axis_goes_from_a_round_number_to_a_round_number() {
        assert_eq!(labels(&Axis::linear(5.17, 6.96, Unit::Plain)), ["5.0", "5.5", "6.0", "6.5", "7.0"]);
        assert_eq!(
            labels(&Axis::linear(0.0, 2e-3, Unit::Plain)),
            ["0", "5e-4", "1.0e-3", "1.5e-3", "2.0e-3"]
        );
        assert_eq!(labels(&Axis::linear(0.0, 1.12e8, Unit::Bytes)), ["0", "50 MB", "100 MB", "150 MB"]);
        assert_eq!(labels(&Axis::linear(-1.0, 1.0, Unit::Plain)), ["-1.0", "-0.5", "0", "0.5", "1.0"]);
    }

    #[test]
    fn a_single_value_has_room_around_it() {
        for value in [0.0, 3.0, -2.0, 1e-300, 1e280] {
            let axis = Axis::linear(value, value, Unit::Plain);
            assert!(axis.low < axis.high && (0.0..=1.0).contains(&axis.place(value)), "{value} {axis:?}");
            assert!((2..20).contains(&axis.ticks.len()), "{value} {axis:?}");
        }
        assert_eq!(labels(&Axis::of_steps(5.0, 5.0)), ["5"]);
        let late = Axis::of_steps(u64::MAX as f64, u64::MAX as f64);
        assert!((late.place(u64::MAX as f64) - 0.5).abs() < 1e-3, "{late:?}");
    }

    #[test]
    fn steps_are_whole_numbers() {
        assert_eq!(labels(&Axis::of_steps(1.0, 60.0)), ["10", "20", "30", "40", "50", "60"]);
        assert_eq!(labels(&Axis::of_steps(1.0, 3.0)), ["1", "2", "3"]);
        assert_eq!(labels(&Axis::of_steps(1.0, 3e6)), ["0.5M", "1.0M", "1.5M", "2.0M", "2.5M", "3.0M"]);
    }

    #[test]
    fn a_logarithmic_axis_has_equal_distances_for_equal_ratios() {
        let axis = Axis::logarithmic(0.01, 100.0, Unit::Plain);
        assert_eq!(labels(&axis), ["0.01", "0.1", "1", "10", "100"]);
        let (one, ten, hundred) = (axis.place(1.0), axis.place(10.0), axis.place(100.0));
        assert!(((ten - one) - (hundred - ten)).abs() < 1e-12);
        assert_eq!(labels(&Axis::logarithmic(1.0, 30.0, Unit::Plain)), ["1", "2", "5", "10", "20"]);
        assert!(Axis::logarithmic(1e-250, 1e250, Unit::Plain).ticks.len() < 10);
    }
}
