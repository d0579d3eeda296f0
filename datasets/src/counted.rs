//! Numbers of things, as messages say them.

use std::fmt::{self, Display, Formatter};

/// A number of things, in the singular or the plural: see [`counted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted<'a> {
    count: u64,
    one: &'a str,
}

/// Returns a number of things for a message. `one` is the regular English name of one of them.
///
/// ```
/// use firebrick_datasets::counted;
///
/// assert_eq!(counted(1, "record").to_string(), "1 record");
/// assert_eq!(counted(0, "micro-batch").to_string(), "0 micro-batches");
/// ```
pub fn counted(count: impl TryInto<u64>, one: &str) -> Counted<'_> {
    // A number that is too large is several.
    Counted { count: count.try_into().unwrap_or(u64::MAX), one }
}

impl Display for Counted<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { count, one } = *self;
        let many = match one.strip_suffix('y') {
            _ if count == 1 => return write!(f, "1 {one}"),
            Some(stem) if !stem.ends_with(['a', 'e', 'o', 'u']) => return write!(f, "{count} {stem}ies"),
            _ if ["s", "x", "ch", "sh"].iter().any(|end| one.ends_with(end)) => "es",
            _ => "s",
        };
        write!(f, "{count} {one}{many}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_other_numbers_are_plural() {
        for (count, one, expected) in [
            (1, "token", "1 token"),
            (0, "token", "0 tokens"),
            (2, "address", "2 addresses"),
            (2, "class", "2 classes"),
            (2, "entry", "2 entries"),
            (2, "day", "2 days"),
        ] {
            assert_eq!(counted(count, one).to_string(), expected);
        }
        assert_eq!(counted(-1, "token").count, u64::MAX);
    }
}
