//! A line of a text, with a caret under the place of an error.

use std::fmt::{self, Display, Formatter};

use unicode_width::UnicodeWidthStr;

/// The most characters that are shown before and after the place.
const AROUND: usize = 60;

/// A line of a text, and the place of an error in it. Displayed, it begins with a line break.
///
/// ```text
///   8 |     evaluate_evry: 2,
///     |     ^
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caret {
    /// The number of the line, if the text has several.
    number: Option<usize>,
    /// The line up to the place.
    before: String,
    /// The line from the place on.
    after: String,
}

impl Caret {
    /// Marks a byte of a file.
    pub(crate) fn in_file(text: &str, at: usize) -> Box<Self> {
        let at = floor(text, at);
        let number = text[..at].matches('\n').count() + 1;
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
        Box::new(Self { number: Some(number), ..Self::within(&text[start..end], at - start) })
    }

    /// Marks a byte of an option of the command line.
    pub(crate) fn in_option(text: &str, at: usize) -> Box<Self> {
        Box::new(Self::within(text, floor(text, at)))
    }

    /// The number of the line, counted from 1.
    pub(crate) fn line(&self) -> usize {
        self.number.unwrap_or(1)
    }

    fn within(line: &str, at: usize) -> Self {
        let (before, after) = line.split_at(at);
        // A tab and a line break inside an option would move the caret.
        let plain = |text: &str| text.replace(|c: char| c.is_control(), " ");
        let skipped = before.chars().count().saturating_sub(AROUND);
        let dots = |cut: bool| if cut { "..." } else { "" };
        let rest: String = after.trim_end().chars().take(AROUND).collect();
        let before: String = before.chars().skip(skipped).collect();
        let cut = rest.len() < after.trim_end().len();
        Self {
            number: None,
            before: dots(skipped > 0).to_string() + &plain(&before),
            after: plain(&rest) + dots(cut),
        }
    }
}

/// Returns the start of the character that this byte belongs to.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

impl Display for Caret {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { number, before, after } = self;
        let blanks = " ".repeat(before.width());
        match number.map(|number| number.to_string()) {
            Some(number) => {
                let margin = " ".repeat(number.len());
                write!(f, "\n  {number} | {before}{after}\n  {margin} | {blanks}^")
            }
            None => write!(f, "\n  {before}{after}\n  {blanks}^"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caret_stands_below_the_place() {
        let text = "(\n\tseed: x,\n)";
        assert_eq!(Caret::in_file(text, 9).to_string(), "\n  2 |  seed: x,\n    |        ^");
        assert_eq!(Caret::in_file(text, text.len()).to_string(), "\n  3 | )\n    |  ^");
        assert_eq!(Caret::in_file("\"日本\": é", 9).to_string(), "\n  1 | \"日本\": é\n    |        ^");
        assert_eq!(Caret::in_file("é", 1).to_string(), "\n  1 | é\n    | ^");
        assert_eq!(Caret::in_option("--set a=b", 8).to_string(), "\n  --set a=b\n          ^");
    }

    #[test]
    fn of_a_long_line_only_what_is_around_the_place_is_shown() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let shown = Caret::in_option(&text, 500).to_string();
        let expected = format!("\n  ...{}X{}...\n  {}^", "a".repeat(60), "b".repeat(59), " ".repeat(63));
        assert_eq!(shown, expected);
    }
}
