//! White space as Python has it, in whose terms the text metrics are defined.

/// The words of a text, as `str.split()` gives them.
pub(crate) fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(is_space).filter(|word| !word.is_empty())
}

/// A text without the white space at its end, as `str.rstrip()` gives it.
pub(crate) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// What `str.isspace()` says of a character: besides what Unicode calls white space, four separators.
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
