//! Numbers in human-readable form.

pub(crate) use firebrick::observe::readings::duration;

/// What a number measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// No unit: a loss, a score or a rate.
    Plain,
    Bytes,
    /// A number of things per second.
    PerSecond,
    Percent,
}

impl Unit {
    /// The unit beside a chart's title.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Bytes => "bytes",
            Self::PerSecond => "tokens per second",
            Self::Percent => "% of the step",
        }
    }

    /// Formats a reading with four digits.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::Plain => plain(value),
            Self::Bytes => bytes(value),
            Self::PerSecond => count(value),
            Self::Percent => format!("{value:.1}%"),
        }
    }
}

/// Powers of a thousand and their prefixes.
const PREFIXES: [(f64, &str); 6] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];

/// The largest prefix with a value of at least one.
fn prefix(value: f64) -> (f64, &'static str) {
    PREFIXES.into_iter().find(|(size, _)| value.abs() >= *size).unwrap_or((1.0, ""))
}

/// Four digits: `0.6931`, `1.234e-5`, `65536`.
pub(crate) fn plain(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "not finite".into(),
        0.0 => "0".into(),
        1e7.. => format!("{value:.3e}"),
        ..1e-3 => format!("{value:.3e}"),
        1e3.. => trimmed(&format!("{value:.1}")),
        100.0.. => trimmed(&format!("{value:.2}")),
        10.0.. => trimmed(&format!("{value:.3}")),
        _ => format!("{value:.4}"),
    }
}

/// Removes trailing zeros.
fn trimmed(number: &str) -> String {
    match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.').into(),
        false => number.into(),
    }
}

/// `112.2 MB`; units are powers of 1000 here and elsewhere.
pub(crate) fn bytes(value: f64) -> String {
    let (size, name) = prefix(value);
    match name {
        "" => format!("{value:.0} B"),
        _ => format!("{:.1} {name}B", value / size),
    }
}

/// A whole number in groups of three: `1,234,567`.
pub(crate) fn count(value: f64) -> String {
    if value.abs() >= 1e15 || !value.is_finite() {
        return plain(value);
    }
    let digits = format!("{:.0}", value.abs());
    let mut grouped = String::from(if value <= -0.5 { "-" } else { "" });
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A label of an axis whose labels are `apart`, and the largest of which is `largest`.
pub(crate) fn tick(value: f64, apart: f64, largest: f64, unit: Unit) -> String {
    let decimals = |apart: f64| (-apart.log10() + 1e-9).ceil().clamp(0.0, 9.0) as usize;
    let (size, name) = prefix(largest);
    if value == 0.0 {
        return "0".into();
    }
    match unit {
        Unit::Bytes => format!("{:.*} {name}B", decimals(apart / size), value / size),
        Unit::Percent => format!("{value:.*}%", decimals(apart)),
        _ if largest >= 1e18 => format!("{value:.1e}"),
        _ if largest >= 1e4 => format!("{:.*}{name}", decimals(apart / size), value / size),
        _ if largest < 1e-2 => {
            let digits = value.abs().log10().floor() - (apart.log10() + 1e-9).floor();
            format!("{value:.*e}", digits.clamp(0.0, 6.0) as usize)
        }
        _ => format!("{value:.*}", decimals(apart)),
    }
}

/// A label on a logarithmic axis.
pub(crate) fn log_tick(value: f64, unit: Unit) -> String {
    let (size, name) = prefix(value);
    match unit {
        Unit::Bytes => format!("{} {name}B", trimmed(&format!("{:.2}", value / size))),
        _ if (1e-3..1e4).contains(&value) => trimmed(&format!("{value:.3}")),
        _ if (1e4..1e18).contains(&value) => trimmed(&format!("{:.2}", value / size)) + name,
        _ => format!("{value:.0e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        let written = [0.0, 0.45676, 12.34567, 65536.0, 1.2345e-5, 123.4, f64::NAN, 1e9].map(plain);
        assert_eq!(written, ["0", "0.4568", "12.346", "65536", "1.234e-5", "123.4", "not finite", "1.000e9"]);
    }

    #[test]
    fn bytes_and_counts() {
        assert_eq!([0.0, 999.0, 112_206_352.0, 3e9].map(bytes), ["0 B", "999 B", "112.2 MB", "3.0 GB"]);
        assert_eq!(
            [0.0, 999.0, 1000.0, 1234567.0, -5000.0].map(count),
            ["0", "999", "1,000", "1,234,567", "-5,000"]
        );
    }

    #[test]
    fn labels_say_as_much_as_sets_them_apart() {
        assert_eq!(tick(0.5, 0.5, 2.0, Unit::Plain), "0.5");
        assert_eq!(tick(2.0, 0.5, 2.0, Unit::Plain), "2.0");
        assert_eq!(tick(20_000.0, 5_000.0, 20_000.0, Unit::Plain), "20k");
        assert_eq!(tick(1.5e6, 5e5, 2e6, Unit::Plain), "1.5M");
        assert_eq!(tick(0.0015, 0.0005, 0.002, Unit::Plain), "1.5e-3");
        assert_eq!(tick(0.0005, 0.0005, 0.002, Unit::Plain), "5e-4");
        assert_eq!(tick(4e7, 2e7, 1.2e8, Unit::Bytes), "40 MB");
        assert_eq!(
            [0.001, 0.2, 5.0, 20_000.0, 1e-5].map(|v| log_tick(v, Unit::Plain)),
            ["0.001", "0.2", "5", "20k", "1e-5"]
        );
    }
}
