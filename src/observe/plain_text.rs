//! Text that a terminal shows and does not obey.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns the text with its control characters made visible, as Rust's strings write them: `\u{1b}` for the one that
/// begins a command to the terminal. Line ends and tabs stay.
///
/// Messages quote what others wrote: run files, data, names of tensors, configurations of downloaded models. A terminal
/// would obey the commands in it, and could be made to show other text than the program prints. So everything passes
/// through here when it leaves the program, and nothing needs to when it enters.
///
/// ```
/// use firebrick::observe::plain_text::plain;
///
/// assert_eq!(plain("a\u{1b}[31mb\n"), "a\\u{1b}[31mb\n");
/// ```
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match is_obeyed(letter) {
            true => plain.extend(letter.escape_default()),
            false => plain.push(letter),
        }
    }
    plain.into()
}

/// Returns JSON with the control characters that its strings may hold written as escapes, so that it is the same JSON and
/// [plain].
pub fn plain_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_obeyed) {
        return json.into();
    }
    let mut plain = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        match is_obeyed(letter) {
            // Writing to a string does not fail.
            true => drop(write!(plain, "\\u{:04x}", u32::from(letter))),
            false => plain.push(letter),
        }
    }
    plain.into()
}

/// Whether a terminal may take the character for a command, or for the beginning of one.
fn is_obeyed(letter: char) -> bool {
    letter.is_control() && !matches!(letter, '\n' | '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_made_visible() {
        let title = "\u{1b}]0;pwned\u{7}";
        assert_eq!(plain(title), "\\u{1b}]0;pwned\\u{7}");
        // Commands of one character, in place of ESC and `[`; going back over a line; deleting.
        assert_eq!(plain("\u{9b}2J ab\rc \u{8}\u{7f}"), "\\u{9b}2J ab\\rc \\u{8}\\u{7f}");
        assert!(matches!(plain("é 日本\n\tline"), Cow::Borrowed("é 日本\n\tline")));
    }

    #[test]
    fn json_stays_the_same_json() {
        let text = "\u{1b}]0;pwned\u{7} \u{7f} \u{9b}31m é\n";
        let json = serde_json::to_string(&[text]).unwrap();
        let shown = plain_json(&json);
        assert!(!shown.contains(is_obeyed), "{shown}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [text]);
    }
}
