//! Checks the source of a template, and rewrites it for the engine.
//!
//! A template comes with a downloaded model, so its source is checked before the engine sees it: the engine parses and
//! compiles nested and chained expressions by recursion, and a long enough chain overflows the stack. Then it is
//! rewritten, in ways that no line changes its number:
//!
//! - `{% generation %}` becomes a [filter block](super::generation);
//! - `a ~ b` and `'%s' % a` become [filters](super::expression) that write values as Python does;
//! - what `set`, `with`, a macro's call and a loop over new lists store passes [a bound](super::bounds), so that no
//!   variable holds a value that is too deep, too large, or part of itself.

use std::borrow::Cow;

use super::expression::{Token, TokenKind, expression, token};
use super::{bounds, generation};

/// A larger source is not a template: the longest ones in use have some 40 KB.
const MOST_BYTES: usize = 1024 * 1024;

/// The most blocks within blocks, and brackets within brackets.
const MOST_NESTED: usize = 64;

/// The most operators of one tag. The engine walks a chain of operators by recursion.
const MOST_OPERATORS: usize = 500;

/// The most branches of one `if`, which the engine nests.
const MOST_BRANCHES: usize = 200;

/// What is wrong with a source.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The line, from 1.
    pub(super) line: Option<usize>,
    pub(super) reason: String,
}

/// A source for the engine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TemplateSource {
    pub(super) source: String,
    /// Whether it marks what the assistant writes.
    pub(super) marks: bool,
}

/// Ends each line as Jinja2 does, which reads `\r\n` and `\r` as `\n`.
fn unix_lines(source: &str) -> Cow<'_, str> {
    match source.contains('\r') {
        true => source.replace("\r\n", "\n").replace('\r', "\n").into(),
        false => source.into(),
    }
}

/// Checks and rewrites a source. Invalid Jinja stays as it is: the engine explains it.
pub(super) fn prepared(source: &str) -> Result<TemplateSource, Fault> {
    if source.len() > MOST_BYTES {
        let reason = format!("it has {} bytes; at most {MOST_BYTES} are read", source.len());
        return Err(Fault { line: None, reason });
    }
    let source = &*unix_lines(source);
    let mut written = TemplateSource { source: String::with_capacity(source.len() * 2), marks: false };
    let mut blocks = Blocks::default();
    let mut at = 0;
    // Each byte is looked at once: a search for each kind of tag would scan the rest for a kind that does not follow.
    while let Some(start) = next_tag(source, at) {
        written.source.push_str(&source[at..start]);
        let rest = &source[start..];
        if rest.starts_with("{#") {
            let end = rest.find("#}").map_or(rest.len(), |end| end + 2);
            written.source.push_str(&rest[..end]);
            at = start + end;
            continue;
        }
        let fault = |reason: String| Fault { line: Some(source[..start].matches('\n').count() + 1), reason };
        let Some(tag) = Tag::read(rest).map_err(fault)? else {
            // Its end is missing.
            at = start;
            break;
        };
        at = start + tag.text.len();
        blocks.enter(&tag).map_err(fault)?;
        tag.write(&mut written);
        if tag.is_alone("raw") {
            let end = end_of_raw(&source[at..]);
            written.source.push_str(&source[at..at + end]);
            at += end;
        }
    }
    written.source.push_str(&source[at..]);
    Ok(written)
}

/// Returns where the next tag or comment begins.
fn next_tag(source: &str, from: usize) -> Option<usize> {
    let mut braces = source[from..].match_indices('{').map(|(at, _)| from + at);
    braces.find(|&at| matches!(source.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// Returns where the tag begins that ends a raw block.
fn end_of_raw(text: &str) -> usize {
    let ends = |&(at, _): &(usize, &str)| {
        let tag = text[at + 2..].trim_start_matches(['-', '+']).trim_start();
        let Some(tag) = tag.strip_prefix("endraw") else { return false };
        tag.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
    };
    text.match_indices("{%").find(ends).map_or(text.len(), |(at, _)| at)
}

/// The blocks that are open: for each, the number of its branches.
#[derive(Default)]
struct Blocks(Vec<usize>);

impl Blocks {
    fn enter(&mut self, tag: &Tag) -> Result<(), String> {
        let Some(word) = tag.keyword() else { return Ok(()) };
        match word {
            "elif" => {
                if let Some(branches) = self.0.last_mut() {
                    *branches += 1;
                    if *branches > MOST_BRANCHES {
                        return Err(format!("an `if` has more than {MOST_BRANCHES} branches"));
                    }
                }
            }
            "set" if tag.assignment().is_some() => {}
            "if" | "for" | "macro" | "call" | "filter" | "with" | "block" | "autoescape" | "set"
            | "generation" => {
                self.0.push(0);
                if self.0.len() > MOST_NESTED {
                    return Err(format!("blocks are nested more than {MOST_NESTED} deep"));
                }
            }
            _ if word.starts_with("end") && word != "endraw" => drop(self.0.pop()),
            _ => {}
        }
        Ok(())
    }
}

/// A tag of a template: `{{ .. }}` or `{% .. %}`.
#[derive(Debug)]
struct Tag<'s> {
    text: &'s str,
    /// Its beginning, such as `{%-`.
    open: &'s str,
    tokens: Vec<Token<'s>>,
    /// The white space before its end.
    gap: &'s str,
    /// Its end, such as `-%}`.
    close: &'s str,
}

impl<'s> Tag<'s> {
    /// Reads the tag at the beginning of a text. `None` if its end is missing.
    fn read(text: &'s str) -> Result<Option<Self>, String> {
        let close = if text.starts_with("{%") { "%}" } else { "}}" };
        let signed = text[2..].starts_with(['-', '+']);
        let open = &text[..2 + usize::from(signed)];
        let (mut tokens, mut nested, mut operators) = (Vec::new(), 0_usize, 0);
        let mut at = open.len();
        loop {
            let rest = &text[at..];
            let trimmed = rest.trim_start();
            let gap = &rest[..rest.len() - trimmed.len()];
            at += gap.len();
            if nested == 0 {
                let end = trimmed.strip_prefix(['-', '+']).unwrap_or(trimmed);
                let end = [trimmed, end].into_iter().find(|end| end.starts_with(close));
                if let Some(end) = end {
                    let length = trimmed.len() - end.len() + close.len();
                    let whole = &text[..at + length];
                    return Ok(Some(Self { text: whole, open, tokens, gap, close: &trimmed[..length] }));
                }
            }
            let Some((kind, length)) = token(trimmed) else { return Ok(None) };
            let text = &trimmed[..length];
            match kind {
                TokenKind::Open => nested += 1,
                TokenKind::Close if nested == 0 => return Ok(None),
                TokenKind::Close => nested -= 1,
                TokenKind::Sign if !matches!(text, "," | ":" | "=") => operators += 1,
                TokenKind::Name if matches!(text, "and" | "or" | "not" | "if" | "is" | "in") => {
                    operators += 1
                }
                _ => {}
            }
            if nested > MOST_NESTED {
                return Err(format!("brackets are nested more than {MOST_NESTED} deep"));
            }
            if operators > MOST_OPERATORS {
                return Err(format!("a tag has more than {MOST_OPERATORS} operators"));
            }
            tokens.push(Token { gap, text, kind });
            at += length;
        }
    }

    /// Returns the first word of a block's tag.
    fn keyword(&self) -> Option<&'s str> {
        let first = self.tokens.first().filter(|first| first.kind == TokenKind::Name);
        first.filter(|_| self.open.starts_with("{%")).map(|first| first.text)
    }

    /// Returns whether it is a block's tag of this word alone.
    fn is_alone(&self, word: &str) -> bool {
        self.tokens.len() == 1 && self.keyword() == Some(word)
    }

    /// Returns the place of the `=` of a `set` with a value.
    fn assignment(&self) -> Option<usize> {
        if self.keyword() != Some("set") {
            return None;
        }
        let mut nested = 0_usize;
        let assigns = |token: &Token| {
            match token.kind {
                TokenKind::Open => nested += 1,
                TokenKind::Close => nested -= 1,
                _ => {}
            }
            nested == 0 && token.text == "="
        };
        self.tokens.iter().position(assigns)
    }

    fn write(&self, written: &mut TemplateSource) {
        let out = &mut written.source;
        let Self { open, close, gap, tokens, .. } = self;
        let signs = || (&open[2..], close.strip_suffix("%}").unwrap_or_default());
        if self.is_alone("generation") {
            // The block has a scope of its own, as in transformers: `with` gives it one. The white space around the
            // tags is trimmed as before, since the outer tags keep their signs, and nothing stands between them.
            let ((left, right), filter) = (signs(), generation::FILTER);
            out.push_str(&format!("{{%{left} filter {filter} %}}{{% with {right}%}}"));
            written.marks = true;
        } else if self.is_alone("endgeneration") {
            let (left, right) = signs();
            out.push_str(&format!("{{%{left} endwith %}}{{% endfilter {right}%}}"));
            written.marks = true;
        } else if let Some(at) = self.assignment() {
            let (target, value) = tokens.split_at(at + 1);
            let to_attribute = target.iter().any(|token| token.text == ".");
            let filter = if to_attribute { bounds::ATTRIBUTE } else { bounds::STORED };
            out.push_str(open);
            target.iter().for_each(|token| out.extend([token.gap, token.text]));
            out.push_str(&format!(" ({})|{filter} {gap}{close}", expression(value)));
        } else {
            let (first, rest) = match self.keyword() {
                Some(_) => tokens.split_at(1),
                None => tokens.split_at(0),
            };
            out.push_str(open);
            first.iter().for_each(|token| out.extend([token.gap, token.text]));
            out.push_str(&expression(rest));
            out.push_str(gap);
            let names = self.bound_names();
            let Some((last, others)) = names.split_last() else { return out.push_str(close) };
            let filter = bounds::STORED;
            out.push_str("%}");
            others.iter().for_each(|name| out.push_str(&format!("{{% set {name} = {name}|{filter} %}}")));
            out.push_str(&format!("{{% set {last} = {last}|{filter} {close}"));
        }
    }

    /// Returns the names to which the block gives values that may be new: the parameters of a macro, the names of `with`,
    /// and those of a loop that makes lists or calls itself.
    fn bound_names(&self) -> Vec<&'s str> {
        let rest = self.tokens.get(1..).unwrap_or_default();
        let is_name = |token: &&Token| token.kind == TokenKind::Name;
        match self.keyword() {
            Some("macro") => parameters(rest.get(1..).unwrap_or_default()),
            Some("call") if rest.first().is_some_and(|first| first.text == "(") => parameters(rest),
            Some("for") => {
                let Some(at) = rest.iter().position(|token| token.text == "in") else { return Vec::new() };
                let (names, items) = rest.split_at(at);
                let is_new = |token: &Token| matches!(token.text, "[" | "{" | "," | "recursive");
                let names = names.iter().filter(is_name).map(|token| token.text);
                if items.iter().any(is_new) { names.collect() } else { Vec::new() }
            }
            Some("with") => {
                let mut nested = 0_usize;
                let mut names = Vec::new();
                for pair in rest.windows(2) {
                    match pair[0].kind {
                        TokenKind::Open => nested += 1,
                        TokenKind::Close => nested -= 1,
                        TokenKind::Name if nested == 0 && pair[1].text == "=" => names.push(pair[0].text),
                        _ => {}
                    }
                }
                names
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the names of parameters in brackets.
fn parameters<'s>(tokens: &[Token<'s>]) -> Vec<&'s str> {
    let mut nested = 0_usize;
    let mut names = Vec::new();
    let mut before = "";
    for token in tokens {
        match token.kind {
            TokenKind::Open => nested += 1,
            TokenKind::Close => nested -= 1,
            TokenKind::Name if nested == 1 && matches!(before, "(" | ",") => names.push(token.text),
            _ => {}
        }
        if nested == 0 {
            break;
        }
        before = token.text;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(source: &str) -> String {
        prepared(source).unwrap().source
    }

    #[test]
    fn tags_are_replaced_where_they_are_tags() {
        let kept = "{{ '{% generation %}' }}{# {% generation %} #}{% raw %}{% generation %}{% endraw -%} {{ {'a': {}} }}";
        assert_eq!(prepared(kept), Ok(TemplateSource { source: kept.to_owned(), marks: false }));
        let marked = prepared("a{%- generation -%} b {%endgeneration+%}\nc {{").unwrap();
        assert!(marked.marks);
        assert_eq!(
            marked.source,
            "a{%- filter generation__ %}{% with -%} b {% endwith %}{% endfilter +%}\nc {{"
        );
    }

    #[test]
    fn what_is_stored_is_bounded() {
        for (source, expected) in [
            ("{%- set x = [x] -%}", "{%- set x = ( [x])|stored__  -%}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b = ( 1, 2)|stored__  %}"),
            ("{% set n.x = n %}", "{% set n.x = ( n)|attribute__  %}"),
            ("{% set x %}a=b{% endset %}", "{% set x %}a=b{% endset %}"),
            ("{% set x|indent(width=2) %}a{% endset %}", "{% set x|indent(width=2) %}a{% endset %}"),
            (
                "{% macro f(a, b=[c]) -%}{% endmacro %}",
                "{% macro f(a, b=[c]) %}{% set a = a|stored__ %}{% set b = b|stored__ -%}{% endmacro %}",
            ),
            ("{% for a in b %}{% endfor %}", "{% for a in b %}{% endfor %}"),
            ("{% for a in [b] %}{% endfor %}", "{% for a in [b] %}{% set a = a|stored__ %}{% endfor %}"),
            ("{% with a = [b] %}{% endwith %}", "{% with a = [b] %}{% set a = a|stored__ %}{% endwith %}"),
            ("{% call(a) f(b) %}{% endcall %}", "{% call(a) f(b) %}{% set a = a|stored__ %}{% endcall %}"),
        ] {
            assert_eq!(rewritten(source), expected, "{source}");
        }
    }

    #[test]
    fn sources_that_would_overflow_the_engine_are_refused() {
        let many = |text: &str| text.repeat(100_000);
        for (source, expected) in [
            (many("{% if a %}"), "blocks are nested more than 64 deep"),
            (format!("\n{{{{ {}", many("[")), "brackets are nested more than 64 deep"),
            (format!("{{{{ 1{} }}}}", many("+1")), "a tag has more than 500 operators"),
            (format!("{{{{ {}1 }}}}", many("not ")), "a tag has more than 500 operators"),
            (format!("{{{{ a{} }}}}", many("|b")), "a tag has more than 500 operators"),
            (format!("{{% if a %}}{}", "{% elif a %}".repeat(50_000)), "more than 200 branches"),
            (many("0123456789ab"), "it has 1200000 bytes"),
        ] {
            let fault = prepared(&source).unwrap_err();
            assert!(fault.reason.contains(expected), "{}", fault.reason);
        }
        assert_eq!(
            prepared("a\n\n{{ {} }}".replace("{}", &"(".repeat(65)).as_str()).unwrap_err().line,
            Some(3)
        );
        let within = format!("{}x{}", "{% if a %}".repeat(64), "{% endif %}".repeat(64));
        assert_eq!(rewritten(&within), within);
    }

    /// A source of many tags that never end once took a time that grew with its square.
    #[test]
    fn the_time_is_linear() {
        for source in ["{%", "{{", "{#", "{% raw %}{%", "{{ a }}", "{% if '"] {
            let source = source.repeat(50_000);
            let started = std::time::Instant::now();
            let _ = prepared(&source);
            assert!(started.elapsed().as_secs() < 10, "{}", &source[..8]);
        }
    }
}
