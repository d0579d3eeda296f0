//! The tokenizer 13a: words and punctuation of Western languages, as WMT counts them.

use std::sync::LazyLock;

use regex::Regex;

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
pub(crate) fn tokenize(line: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::whitespace;

    fn tokens(line: &str) -> String {
        whitespace::split(&tokenize(line)).collect::<Vec<_>>().join(" ")
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
}
