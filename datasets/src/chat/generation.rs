//! `{% generation %}` blocks, which mark what the assistant wrote.
//!
//! They are tags of transformers. minijinja has no tags of others, so each becomes a filter block, whose filter puts a
//! mark before and after its text; the marks are taken out of the rendered text, and their places noted.

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

/// Replaces the tags `generation` and `endgeneration` of a template.
///
/// The block has a scope of its own, as in transformers: `with` gives it one. The white space around the tags is
/// trimmed as before, since the outer tags keep their signs, and nothing stands between two new tags.
pub(super) fn rewritten(source: &str) -> String {
    let mut written = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{{").into_iter().chain(rest.find("{%")).chain(rest.find("{#")).min() {
        let (before, tag) = rest.split_at(start);
        written.push_str(before);
        let end = match &tag[..2] {
            "{#" => tag.find("#}").map_or(tag.len(), |end| end + 2),
            "{{" => end_of(tag, "}}"),
            _ => end_of(tag, "%}"),
        };
        let (tag, after) = tag.split_at(end);
        rest = after;
        match parts(tag) {
            Some((left, "generation", right)) => {
                written.push_str(&format!("{{%{left} filter {FILTER} %}}{{% with {right}%}}"));
            }
            Some((left, "endgeneration", right)) => {
                written.push_str(&format!("{{%{left} endwith %}}{{% endfilter {right}%}}"));
            }
            Some((_, "raw", _)) => {
                written.push_str(tag);
                let end = end_of_raw(rest);
                written.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => written.push_str(tag),
        }
    }
    written.push_str(rest);
    written
}

/// Returns the sign at the beginning of a block tag, its content, and the sign at its end.
fn parts(tag: &str) -> Option<(&str, &str, &str)> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let signs = ['-', '+'];
    let after = inner.strip_prefix(signs).unwrap_or(inner);
    let content = after.strip_suffix(signs).unwrap_or(after);
    let left = &inner[..inner.len() - after.len()];
    Some((left, content.trim(), &after[content.len()..]))
}

/// Returns where a tag ends, after `close`. What stands in quotes does not end it.
fn end_of(tag: &str, close: &str) -> usize {
    let mut quote = None;
    let mut characters = tag.char_indices().skip(2);
    while let Some((at, character)) = characters.next() {
        match quote {
            Some(_) if character == '\\' => drop(characters.next()),
            Some(open) if character == open => quote = None,
            Some(_) => {}
            None if matches!(character, '"' | '\'') => quote = Some(character),
            None if tag[at..].starts_with(close) => return at + close.len(),
            None => {}
        }
    }
    tag.len()
}

/// Returns where the tag begins that ends a raw block.
fn end_of_raw(text: &str) -> usize {
    let starts = text.match_indices("{%").map(|(at, _)| at);
    let ends =
        |&at: &usize| parts(&text[at..at + end_of(&text[at..], "%}")]).is_some_and(|tag| tag.1 == "endraw");
    starts.into_iter().find(ends).unwrap_or(text.len())
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
    fn tags_are_replaced_where_they_are_tags() {
        let kept = "{{ '{% generation %}' }}{# {% generation %} #}{% raw %}{% generation %}{% endraw -%} {% set generation = '%}' %}";
        assert_eq!(rewritten(kept), kept);
        assert_eq!(
            rewritten("a{%- generation -%} b {%endgeneration+%}\nc {{"),
            "a{%- filter generation__ %}{% with -%} b {% endwith %}{% endfilter +%}\nc {{"
        );
    }

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
