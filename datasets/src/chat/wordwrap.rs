//! The filter that wraps the lines of a text, as Python's `textwrap` does.

use std::collections::VecDeque;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::bounds;
use super::python::{arguments, optional_text, whole};

/// Wraps each line of a text on its own.
pub(super) fn wordwrap(state: &State, text: Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let names = ["width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [width, break_long_words, between, break_on_hyphens] = arguments(given, names)?;
    let is_set = |value: Option<Value>| value.is_none_or(|value| value.is_true());
    let width = width.map_or(Ok(79), |width| whole(&width))?;
    let between = optional_text(between.as_ref())?.unwrap_or("\n");
    let text = text.as_str().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("expected a text, found a {}", text.kind()))
    })?;
    let wrapping =
        Wrapping { break_long_words: is_set(break_long_words), break_on_hyphens: is_set(break_on_hyphens) };
    let most = bounds::most_bytes(state);
    let mut wrapped = String::new();
    for (at, line) in lines(text).into_iter().enumerate() {
        let width = usize::try_from(width).ok().filter(|width| *width > 0);
        let width =
            width.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the width must be at least 1"))?;
        wrapped.push_str(if at > 0 { between } else { "" });
        let line: Vec<char> = line.chars().collect();
        for (at, line) in wrapping.of(&line, width).iter().enumerate() {
            wrapped.push_str(if at > 0 { between } else { "" });
            wrapped.extend(line);
            if wrapped.len() > most {
                return Err(bounds::too_large(most));
            }
        }
    }
    Ok(wrapped)
}

/// The lines of a text, as `str.splitlines` returns them.
fn lines(text: &str) -> Vec<&str> {
    let is_end = |one: char| {
        matches!(
            one,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let (line, end) = rest.split_at(at);
        lines.push(line);
        let length = if end.starts_with("\r\n") { 2 } else { end.chars().next().map_or(0, char::len_utf8) };
        rest = &end[length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

struct Wrapping {
    break_long_words: bool,
    break_on_hyphens: bool,
}

impl Wrapping {
    /// The lines of one line of a text, each of at most `width` characters if its words allow it.
    fn of(&self, text: &[char], width: usize) -> Vec<Vec<char>> {
        let chunks = if self.break_on_hyphens { hyphenated(text) } else { words(text) };
        let mut chunks = VecDeque::from(chunks);
        let mut lines: Vec<Vec<char>> = Vec::new();
        while !chunks.is_empty() {
            let (mut line, mut length): (Vec<&[char]>, usize) = (Vec::new(), 0);
            if !lines.is_empty() && chunks.front().is_some_and(|chunk| is_blank(chunk)) {
                chunks.pop_front();
            }
            while let Some(chunk) = chunks.pop_front_if(|chunk| length + chunk.len() <= width) {
                length += chunk.len();
                line.push(chunk);
            }
            if let Some(chunk) = chunks.front_mut().filter(|chunk| chunk.len() > width) {
                if self.break_long_words {
                    let end = self.end(chunk, width - length);
                    line.push(&chunk[..end]);
                    *chunk = &chunk[end..];
                } else if line.is_empty() {
                    line.extend(chunks.pop_front());
                }
            }
            line.pop_if(|chunk| is_blank(chunk));
            if !line.is_empty() {
                lines.push(line.concat());
            }
        }
        lines
    }

    /// Where a word that is too long is broken, with room for so many characters.
    fn end(&self, chunk: &[char], room: usize) -> usize {
        if self.break_on_hyphens && chunk.len() > room {
            let hyphen = chunk[..room].iter().rposition(|one| *one == '-');
            if let Some(at) = hyphen.filter(|at| chunk[..*at].iter().any(|one| *one != '-')) {
                return at + 1;
            }
        }
        room
    }
}

/// The white space of `textwrap`, which is that of ASCII.
fn is_space(one: char) -> bool {
    matches!(one, '\t'..='\r' | ' ')
}

/// What `str.strip` makes an empty text. A chunk without a character is one too.
fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|one| one.is_whitespace() || matches!(one, '\u{1c}'..='\u{1f}'))
}

/// Words and the space between them.
fn words(text: &[char]) -> Vec<&[char]> {
    text.chunk_by(|a, b| is_space(*a) == is_space(*b)).collect()
}

/// Words and the space between them, also broken after hyphens and around dashes: the chunks of `wordsep_re`.
fn hyphenated(text: &[char]) -> Vec<&[char]> {
    let at = |at: usize| text.get(at).copied();
    let is_word = |one: char| one.is_alphanumeric() || one == '_';
    let is_letter = |one: Option<char>| one.is_some_and(|one| is_word(one) && !one.is_numeric());
    let is_mark = |one: char| is_word(one) || "!\"'&.,?".contains(one);
    // The end of the hyphens that begin at each place.
    let mut after: Vec<usize> = (0..text.len()).collect();
    for place in (0..text.len()).rev().filter(|place| text[*place] == '-') {
        after[place] =
            after.get(place + 1).copied().filter(|_| at(place + 1) == Some('-')).unwrap_or(place + 1);
    }
    let is_dash = |place: usize| {
        let follows = place > 0 && is_mark(text[place - 1]);
        let is_long = at(place) == Some('-') && after[place] - place > 1;
        follows && is_long && at(after[place]).is_some_and(is_word)
    };
    let breaks_after = |hyphen: usize| {
        let before = |by: usize| hyphen.checked_sub(by).and_then(at);
        let joins =
            is_letter(before(1)) && (is_letter(before(2)) || before(2) == Some('-') && is_letter(before(3)));
        let next = if at(hyphen + 2) == Some('-') { hyphen + 3 } else { hyphen + 2 };
        joins && is_letter(at(hyphen + 1)) && is_letter(at(next))
    };
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let end = if is_space(text[start]) {
            (start..text.len()).find(|place| !is_space(text[*place])).unwrap_or(text.len())
        } else if is_dash(start) {
            after[start]
        } else {
            let mut end = start + 1;
            loop {
                match at(end) {
                    Some('-') if breaks_after(end) => break end + 1,
                    None => break end,
                    Some(one) if is_space(one) || is_dash(end) => break end,
                    Some(_) => end += 1,
                }
            }
        };
        chunks.push(&text[start..end]);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Python's `textwrap`.
    #[test]
    fn words_are_broken_at_hyphens_and_dashes() {
        let of = |text: &str| -> Vec<String> {
            let text: Vec<char> = text.chars().collect();
            hyphenated(&text).into_iter().map(String::from_iter).collect()
        };
        let expected =
            ["Look,", " ", "goof-", "ball", " ", "--", " ", "use", " ", "the", " ", "-b", " ", "option!"];
        assert_eq!(of("Look, goof-ball -- use the -b option!"), expected);
        assert_eq!(
            of("em-dash--like---so -5 a-b"),
            ["em-", "dash", "--", "like", "---", "so", " ", "-5", " ", "a-b"]
        );
    }

    #[test]
    fn long_runs_take_linear_time() {
        let text: Vec<char> = format!("a{}", "-".repeat(200_000)).chars().collect();
        assert_eq!(hyphenated(&text).len(), 1);
    }
}
