//! Words of texts: by Python's definition of white space, on which the text metrics are based, and by the tokenizer 13a,
//! which splits Western languages as WMT counts them; and n-grams of them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::LazyLock;

use regex::Regex;

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

/// The patterns to surround with spaces, and how; applied in order.
static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    [
        // ASCII punctuation and symbols, except period, comma, hyphen and apostrophe.
        (r"([{-~\[-` -&(-+:-@/])", " $1 "),
        // Period and comma, unless after a digit.
        (r"([^0-9])([.,])", "$1 $2 "),
        // Period and comma, unless before a digit.
        (r"([.,])([^0-9])", " $1 $2"),
        // A hyphen after a digit.
        (r"([0-9])(-)", "$1 $2 "),
    ]
    .map(|(pattern, replacement)| (Regex::new(pattern).expect("the patterns are constants"), replacement))
});

/// Separates tokens by white space, like the script `mteval-v13a.pl` and sacrebleu.
pub(crate) fn tokenize_13a(line: &str) -> String {
    let mut line = line.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    for (entity, character) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        if line.contains('&') {
            line = line.replace(entity, character);
        }
    }
    line = format!(" {line} ");
    for (pattern, replacement) in RULES.iter() {
        line = pattern.replace_all(&line, *replacement).into_owned();
    }
    line
}

/// The n-grams of a sequence and their counts.
pub(crate) type Ngrams<'a, T> = HashMap<&'a [T], u64>;

/// Counts the n-grams of this order, from 1.
pub(crate) fn ngrams<T: Eq + Hash>(items: &[T], order: usize) -> Ngrams<'_, T> {
    let mut counts = Ngrams::new();
    for ngram in items.windows(order.max(1)) {
        *counts.entry(ngram).or_default() += 1;
    }
    counts
}

/// Counts the n-grams that two sequences share, each with the smaller of its two counts.
pub(crate) fn common<T: Eq + Hash>(first: &Ngrams<'_, T>, second: &Ngrams<'_, T>) -> u64 {
    first.iter().filter_map(|(ngram, &count)| Some(count.min(*second.get(ngram)?))).sum()
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

    fn tokens(line: &str) -> String {
        split(&tokenize_13a(line)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tokens_match_sacrebleu() {
        for (line, expected) in [
            ("", ""),
            ("Hello, world!", "Hello , world !"),
            ("It costs 1,000.5, or 3.", "It costs 1,000.5 , or 3 ."),
            ("&quot;A&amp;B&quot; &lt;tag&gt;", "\" A & B \" < tag >"),
            ("&amp;lt;", "<"),
            ("1990-1995 well-known -5", "1990 - 1995 well-known -5"),
            ("don't (stop)...now", "don't ( stop ) . . . now"),
            ("a<skipped>b line-\nbreak new\nline", "ab linebreak new line"),
            ("naïve, .5 5. é.", "naïve , . 5 5 . é ."),
        ] {
            assert_eq!(tokens(line), expected, "{line}");
        }
    }

    #[test]
    fn common_ngrams_are_clipped() {
        let (first, second) = (['a', 'a', 'a', 'b'], ['a', 'a', 'b', 'b']);
        assert_eq!(common(&ngrams(&first, 1), &ngrams(&second, 1)), 3);
        assert_eq!(common(&ngrams(&first, 2), &ngrams(&second, 2)), 2);
        assert_eq!(ngrams(&first, 2)[&['a', 'a'][..]], 2);
        assert!(ngrams(&first, 5).is_empty());
    }
}
