//! Python's definition of white space, on which the text metrics are based.

/// Splits a text into words like `str.split()`.
pub(crate) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// Removes trailing white space like `str.rstrip()`.
pub(crate) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// Returns whether a character is white space, like `str.isspace()`: Unicode's white space and four separators.
pub(crate) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\x1c'..='\x1f').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_are_spaces_and_zero_width_ones_are_not() {
        let words: Vec<&str> = split(" a\x1cb\u{a0}c\u{3000}d\u{200b}e\t\n").collect();
        assert_eq!(words, ["a", "b", "c", "d\u{200b}e"]);
        assert_eq!(trim_end(" a \x1f\u{85}"), " a");
    }
}
