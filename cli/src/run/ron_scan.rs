//! A scanner that finds the values of a RON text, or of JSON: it keeps byte ranges and drops nothing.
//!
//! It checks that brackets, quotes and separators match. The real parser decides whether a number or an escape is
//! valid. This scanner reads everything that `ron` reads.

use std::ops::Range;

/// The default nesting limit of `ron`.
const MAX_DEPTH: usize = 128;

/// A value and its position.
#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) span: Range<usize>,
    pub(crate) shape: Shape,
}

/// What a value looks like.
#[derive(Debug)]
pub(crate) enum Shape {
    /// A lone identifier: an enum's unit variant, `true`, `None`.
    Name,
    /// A number, string, character or range.
    Scalar,
    /// Anything in brackets.
    Group(Group),
}

/// A struct, tuple, list or map.
#[derive(Debug)]
pub(crate) struct Group {
    /// The name of the struct or variant; empty if there is none.
    pub(crate) name: Range<usize>,
    /// The bracket that ends it: `)`, `]` or `}`.
    pub(crate) close: char,
    pub(crate) entries: Vec<Entry>,
    /// Whether a comma follows the last entry.
    pub(crate) comma: bool,
}

/// A field, a map entry, or a list element (without a key).
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Option<Value>,
    pub(crate) value: Value,
}

/// Where a text is not RON, and why.
#[derive(Debug)]
pub(crate) struct ScanError {
    pub(crate) at: usize,
    pub(crate) expected: String,
    pub(crate) found: String,
}

type Scan<T> = Result<T, ScanError>;

/// Reads the single value of a run file, after any `#![enable(...)]`.
pub(crate) fn document(text: &str) -> Scan<Value> {
    let mut scanner = Scanner::new(text);
    scanner.attributes()?;
    scanner.only_value()
}

/// Reads the single value of `text`, without attributes.
pub(crate) fn lone_value(text: &str) -> Scan<Value> {
    Scanner::new(text).only_value()
}

/// Returns the 1-based line of byte `at`.
pub(crate) fn line(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// Returns a field's name without the `r#` that RON allows before it.
pub(crate) fn plain_name(name: &str) -> &str {
    name.strip_prefix("r#").unwrap_or(name)
}

fn is_space(c: char) -> bool {
    matches!(c, '\t'..='\r' | ' ' | '\u{85}' | '\u{200E}' | '\u{200F}' | '\u{2028}' | '\u{2029}')
}

/// Accepts more than RON's identifiers outside ASCII, which avoids a Unicode table.
fn is_name(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric() || (!c.is_ascii() && !is_space(c))
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn eat(&mut self, token: &str) -> bool {
        let here = self.rest().starts_with(token);
        if here {
            self.at += token.len();
        }
        here
    }

    fn eat_while(&mut self, wanted: impl Fn(char) -> bool) {
        let rest = self.rest();
        self.at += rest.find(|c| !wanted(c)).unwrap_or(rest.len());
    }

    fn expect(&mut self, token: &str) -> Scan<()> {
        if self.eat(token) { Ok(()) } else { Err(self.wants(format!("`{token}`"))) }
    }

    /// Returns the error that something else is expected here.
    fn wants(&self, expected: impl Into<String>) -> ScanError {
        let found = match self.peek() {
            Some(c) => format!("`{}`", c.escape_debug()),
            None => "the end".into(),
        };
        ScanError { at: self.at, expected: expected.into(), found }
    }

    /// Returns the error that what began at `start` never ends.
    fn unclosed(&self, start: usize, end: &str) -> ScanError {
        let expected = format!("`{end}` to end what begins here");
        ScanError { at: start, expected, found: "the end".into() }
    }

    fn only_value(&mut self) -> Scan<Value> {
        self.space()?;
        let value = self.value()?;
        self.space()?;
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.wants("nothing after the value")),
        }
    }

    fn attributes(&mut self) -> Scan<()> {
        self.space()?;
        while self.eat("#") {
            self.space()?;
            self.expect("!")?;
            self.space()?;
            if self.peek() != Some('[') {
                return Err(self.wants("`[`"));
            }
            self.group(self.at..self.at)?;
            self.space()?;
        }
        Ok(())
    }

    /// Skips whitespace and comments.
    fn space(&mut self) -> Scan<()> {
        loop {
            self.eat_while(is_space);
            if self.rest().starts_with("//") {
                self.eat_while(|c| c != '\n');
            } else if self.rest().starts_with("/*") {
                self.block_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    fn block_comment(&mut self) -> Scan<()> {
        let start = self.at;
        let mut depth = 0usize;
        loop {
            if self.eat("/*") {
                depth += 1;
            } else if self.eat("*/") {
                depth -= 1;
            } else if self.bump().is_none() {
                return Err(self.unclosed(start, "*/"));
            }
            if depth == 0 {
                return Ok(());
            }
        }
    }

    fn value(&mut self) -> Scan<Value> {
        let start = self.at;
        let shape = match self.peek() {
            Some('(' | '[' | '{') => self.group(start..start)?,
            Some('"') => self.string()?,
            Some('\'') => self.character()?,
            Some('0'..='9' | '+' | '-' | '.') => self.number()?,
            Some(c) if is_name(c) => self.word()?,
            _ => return Err(self.wants("a value")),
        };
        Ok(Value { span: start..self.at, shape })
    }

    /// Reads a number or a range, whose ends may be bytes: `1..=5`, `b'a'..b'f'`.
    fn number(&mut self) -> Scan<Shape> {
        let start = self.at;
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '+' | '-' | '.');
        self.eat_while(part);
        if self.text[start..self.at].ends_with("..") && self.eat("=") {
            self.eat_while(part);
        }
        let bound = self.text[start..self.at].strip_suffix('b');
        if self.peek() == Some('\'') && bound.is_some_and(|bound| bound.ends_with(['.', '='])) {
            return self.character();
        }
        Ok(Shape::Scalar)
    }

    /// Reads what begins with a letter: an identifier, or a string or byte with a prefix.
    fn word(&mut self) -> Scan<Shape> {
        let rest = self.rest();
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| rest.starts_with(prefix));
        if starts(&["b\""]) {
            self.bump();
            return self.string();
        }
        if starts(&["b'"]) {
            self.bump();
            let byte = self.character()?;
            return if self.rest().starts_with("..") { self.number() } else { Ok(byte) };
        }
        if starts(&["r\"", "r#\"", "r##", "br\"", "br#"]) {
            return self.raw_string();
        }
        self.identifier()
    }

    fn identifier(&mut self) -> Scan<Shape> {
        let start = self.at;
        if self.eat("r#") {
            self.eat_while(|c| is_name(c) || matches!(c, '.' | '+' | '-'));
        } else {
            self.eat_while(is_name);
        }
        let name = start..self.at;
        self.space()?;
        if self.peek() == Some('(') {
            return self.group(name);
        }
        self.at = name.end;
        Ok(Shape::Name)
    }

    fn string(&mut self) -> Scan<Shape> {
        let start = self.at;
        self.bump();
        while let Some(c) = self.bump() {
            match c {
                '"' => return Ok(Shape::Scalar),
                '\\' => self.bump(),
                _ => None,
            };
        }
        Err(self.unclosed(start, "\""))
    }

    fn raw_string(&mut self) -> Scan<Shape> {
        let start = self.at;
        self.eat_while(|c| matches!(c, 'b' | 'r'));
        let hashes = self.at;
        self.eat_while(|c| c == '#');
        let end = format!("\"{}", &self.text[hashes..self.at]);
        self.expect("\"")?;
        let Some(length) = self.rest().find(&end) else {
            return Err(self.unclosed(start, &end));
        };
        self.at += length + end.len();
        Ok(Shape::Scalar)
    }

    fn character(&mut self) -> Scan<Shape> {
        self.bump();
        if self.bump() == Some('\\') {
            self.bump();
            self.eat_while(|c| c.is_ascii_hexdigit() || matches!(c, '{' | '}'));
        }
        self.expect("'")?;
        Ok(Shape::Scalar)
    }

    fn group(&mut self, name: Range<usize>) -> Scan<Shape> {
        let open = self.at;
        let close = match self.bump() {
            Some('(') => ')',
            Some('[') => ']',
            _ => '}',
        };
        if self.depth == MAX_DEPTH {
            return Err(self.wants(format!("at most {MAX_DEPTH} values within each other")));
        }
        self.depth += 1;
        let mut group = Group { name, close, entries: Vec::new(), comma: true };
        while !self.ends(open, &group)? {
            let entry = self.entry(&group)?;
            group.entries.push(entry);
            self.space()?;
            group.comma = self.eat(",");
        }
        self.depth -= 1;
        Ok(Shape::Group(group))
    }

    /// Whether the group ends here; otherwise another entry may follow.
    fn ends(&mut self, open: usize, group: &Group) -> Scan<bool> {
        self.space()?;
        if self.eat(group.close.encode_utf8(&mut [0; 4])) {
            return Ok(true);
        }
        if group.comma && self.peek().is_some() {
            return Ok(false);
        }
        let opened = line(self.text, open);
        Err(self.wants(format!("`,`, or `{}` for the bracket of line {opened}", group.close)))
    }

    fn entry(&mut self, group: &Group) -> Scan<Entry> {
        let first = self.value()?;
        self.space()?;
        let has_key = self.peek() == Some(':');
        let needs_key = match group.close {
            ']' => false,
            '}' => true,
            _ => group.entries.first().map_or(has_key, |entry| entry.key.is_some()),
        };
        if has_key != needs_key {
            return Err(self.wants(if needs_key { "`:`" } else { "`,`" }));
        }
        if !has_key {
            return Ok(Entry { key: None, value: first });
        }
        if group.close == ')' && !matches!(first.shape, Shape::Name) {
            self.at = first.span.start;
            return Err(self.wants("a field's name"));
        }
        self.bump();
        self.space()?;
        Ok(Entry { key: Some(first), value: self.value()? })
    }
}
