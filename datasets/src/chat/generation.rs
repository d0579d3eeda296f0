//! `{% generation %}` blocks, which mark what the assistant wrote.
//!
//! They are tags of transformers. minijinja has no tags of others, so each [becomes](super::source) a filter block, whose
//! filter puts a mark before and after its text; the marks are taken out of the rendered text, and their places noted.

use std::ops::Range;

/// The name of the filter that puts the marks.
pub(super) const FILTER: &str = "generation__";

/// The name of the variable that holds the marks.
pub(super) const MARKS: &str = "generation_marks__";

/// Two characters that stand around a part.
pub(super) type Marks = [char; 2];

/// Returns marks that occur in none of the texts: two of Unicode's noncharacters, which no text should hold. `None` if
/// the texts hold them all.
pub(super) fn unused(texts: impl Fn(char) -> bool) -> Option<Marks> {
    let mut free = ('\u{FDD0}'..='\u{FDEF}').filter(|&mark| !texts(mark));
    Some([free.next()?, free.next()?])
}

/// Takes the marks out of a text, and returns the parts of bytes that they stood around. Parts within parts are one.
pub(super) fn unmarked(text: &str, [start, end]: Marks) -> (String, Vec<Range<usize>>) {
    let mut clean = String::with_capacity(text.len());
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for piece in text.split_inclusive([start, end]) {
        clean.push_str(piece.strip_suffix([start, end]).unwrap_or(piece));
        if piece.ends_with(start) {
            from = if depth == 0 { clean.len() } else { from };
            depth += 1;
        } else if piece.ends_with(end) && depth > 0 {
            depth -= 1;
            if depth == 0 {
                parts.push(from..clean.len());
            }
        }
    }
    (clean, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_become_parts() {
        let marks = unused(|mark| mark == '\u{FDD0}').unwrap();
        assert_eq!(marks, ['\u{FDD1}', '\u{FDD2}']);
        assert_eq!(unused(|_| true), None);
        let text = "é<b<c>d>e<f>g".replace('<', "\u{FDD1}").replace('>', "\u{FDD2}");
        assert_eq!(unmarked(&text, marks), ("ébcdefg".to_owned(), vec![2..5, 6..7]));
        assert_eq!(unmarked("abc", marks), ("abc".to_owned(), vec![]));
    }
}
