//! Durations for people.

/// Formats seconds: `0.65 s`, `2 min 43 s`, `3 h 12 min`.
pub fn duration(seconds: f64) -> String {
    let whole = seconds.round();
    match seconds {
        _ if !seconds.is_finite() || !(0.0..1e15).contains(&seconds) => "unknown".into(),
        ..0.1 => format!("{:.1} ms", seconds * 1e3),
        ..60.0 if whole < 60.0 => format!("{} s", (seconds * 100.0).round() / 100.0),
        ..3600.0 if whole < 3600.0 => format!("{:.0} min {:.0} s", (whole / 60.0).floor(), whole % 60.0),
        ..172_800.0 => {
            format!("{:.0} h {:.0} min", (whole / 3600.0).floor(), (whole % 3600.0 / 60.0).floor())
        }
        _ => format!("{:.0} d {:.0} h", (whole / 86400.0).floor(), (whole % 86400.0 / 3600.0).floor()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units() {
        assert_eq!(
            [0.0021, 0.6501, 59.999, 163.8, 3599.9, 11_520.0, 200_000.0, f64::NAN].map(duration),
            ["2.1 ms", "0.65 s", "1 min 0 s", "2 min 44 s", "1 h 0 min", "3 h 12 min", "2 d 7 h", "unknown"]
        );
    }
}
