//! Byte sizes such as `2GB`.

use std::fmt;
use std::str::FromStr;

use bytesize::Unit;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A size in bytes. A run file has it as a number, or as a text with a unit: `2000000000`, `"2GB"`, `"1.5 GiB"`.
///
/// ```
/// use firebrick::ByteSize;
///
/// assert_eq!("2GB".parse(), Ok(ByteSize(2_000_000_000)));
/// assert_eq!("1.5 GiB".parse(), Ok(ByteSize(1_610_612_736)));
/// assert_eq!(ByteSize(1_234_000).to_string(), "1.23 MB");
/// assert!("2 furlongs".parse::<ByteSize>().unwrap_err().starts_with("expected a number of bytes, as in `2GB`"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(
    /// The size in bytes.
    pub usize,
);

impl FromStr for ByteSize {
    type Err = String;

    /// Parses a whole or decimal number with an optional unit, upper or lower case: `kB`, `MB`, `GB`, `TB` are powers
    /// of 1000, and `KiB`, `MiB`, `GiB`, `TiB` powers of 1024. The `B` may be left out.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && !"._".contains(c)).unwrap_or(text.len());
        let (number, unit) = (text[..split].replace('_', ""), text[split..].trim());
        let unit = if unit.is_empty() { Ok(Unit::Byte) } else { unit.parse() };
        let expected = "expected a number of bytes, as in `2GB`, `512MB`, `1.5GiB` or `2000000000`";
        let (Ok(number), Ok(unit)) = (number.parse::<f64>(), unit) else {
            return Err(format!("{expected}, found `{text}`"));
        };
        let bytes = (number * (unit * 1u64) as f64).round();
        // An f64 represents every whole number up to here.
        if bytes > 2f64.powi(53) {
            return Err(format!("{expected}, of at most 9007199254740992, found `{text}`"));
        }
        Ok(Self(bytes as usize))
    }
}

impl fmt::Display for ByteSize {
    /// Formats in the largest of B, kB, MB, GB and TB for which the number is at least 1, with three digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let units = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
        let Some((unit, factor)) = units.into_iter().find(|(_, factor)| bytes >= *factor) else {
            return write!(f, "{} B", self.0);
        };
        let value = bytes / factor;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        write!(f, "{value:.digits$} {unit}")
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0 as u64)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number of bytes, as in \"2GB\" or 2000000000")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
                self.visit_str(&bytes.to_string())
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_of_1000_or_of_1024_in_any_case() {
        let sizes = [
            ("0", 0),
            ("17", 17),
            ("17 B", 17),
            ("3kB", 3000),
            ("3 KB", 3000),
            ("3KiB", 3072),
            ("0.5mb", 500_000),
            ("2GB", 2_000_000_000),
            (" 2 gib ", 2_147_483_648),
            ("1_500_000", 1_500_000),
            ("1TB", 1_000_000_000_000),
            ("1TiB", 1_099_511_627_776),
            ("2G", 2_000_000_000),
            ("4.1GB", 4_100_000_000),
            ("1500.0", 1500),
        ];
        for (text, bytes) in sizes {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_told_with_an_example() {
        for (text, expected) in [
            ("", "found ``"),
            ("GB", "found `GB`"),
            ("-2GB", "found `-2GB`"),
            ("1.2.3GB", "found `1.2.3GB`"),
            ("2 gibs", "found `2 gibs`"),
            ("2 furlongs", "as in `2GB`, `512MB`, `1.5GiB` or `2000000000`, found `2 furlongs`"),
            ("9e9", "found `9e9`"),
            ("nan", "found `nan`"),
            ("+5", "found `+5`"),
            ("2 G_B", "found `2 G_B`"),
            ("99999999999999999999", "at most 9007199254740992"),
            ("99999999999999999999TB", "at most 9007199254740992"),
            ("20000TiB", "at most 9007199254740992"),
        ] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_run_file_has_a_number_or_a_text() {
        let parse = |text| serde_json::from_str::<ByteSize>(text).map_err(|error| error.to_string());
        assert_eq!(parse("\"1.5GB\""), Ok(ByteSize(1_500_000_000)));
        assert_eq!(parse("1500"), Ok(ByteSize(1500)));
        assert!(parse("-5").is_err());
        assert!(parse("\"2GBs\"").unwrap_err().contains("as in `2GB`"));
        assert_eq!(serde_json::to_string(&ByteSize(1500)).unwrap(), "1500");
    }

    proptest! {
        #[test]
        fn what_is_shown_is_near_what_it_is(bytes in 0usize..1 << 52) {
            let shown: ByteSize = ByteSize(bytes).to_string().parse().unwrap();
            prop_assert!(shown.0.abs_diff(bytes) <= bytes / 190);
        }
    }
}
