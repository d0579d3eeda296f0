//! Values as Python writes them, as text and as JSON; and arguments of filters, by place or by name, as Python has them.

use std::fmt::{self, Write};

use minijinja::{
    Error, ErrorKind, State, Value,
    value::{Kwargs, Rest, ValueKind, ValueOrKwargs},
};

use super::bounds::{self, Bounded};

/// Appends a value to a text as Python's `str` writes it, with at most `most` bytes.
///
/// # Errors
///
/// The text is longer, or the value is nested too deep to be written.
pub(super) fn text_of(value: &Value, most: usize, out: &mut String) -> Result<(), Error> {
    text(value, &mut Bounded::new(out, most)).map_err(|_| bounds::too_large(most))
}

/// Writes a value as Python's `str` does: what a template prints.
pub(super) fn text(value: &Value, out: &mut impl Write) -> fmt::Result {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => out.write_str(text),
        (ValueKind::Undefined, _) => Ok(()),
        _ => repr(value, 0, out),
    }
}

/// Writes a value as Python's `repr` does. It recurses, so the depth is bounded.
fn repr(value: &Value, depth: usize, out: &mut impl Write) -> fmt::Result {
    if depth > bounds::MOST_DEPTH {
        return Err(fmt::Error);
    }
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::None => out.write_str("None"),
        ValueKind::Bool => out.write_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            let [open, close] = if value.is_tuple() { ['(', ')'] } else { ['[', ']'] };
            out.write_char(open)?;
            let mut number = 0;
            for item in value.try_iter().map_err(|_| fmt::Error)? {
                out.write_str(if number > 0 { ", " } else { "" })?;
                repr(&item, depth + 1, out)?;
                number += 1;
            }
            out.write_str(if value.is_tuple() && number == 1 { "," } else { "" })?;
            out.write_char(close)
        }
        ValueKind::Map => {
            let is_namespace = bounds::is_namespace(value);
            out.write_str(if is_namespace { "<Namespace {" } else { "{" })?;
            for (at, key) in value.try_iter().map_err(|_| fmt::Error)?.enumerate() {
                out.write_str(if at > 0 { ", " } else { "" })?;
                repr(&key, depth + 1, out)?;
                out.write_str(": ")?;
                repr(&value.get_item(&key).map_err(|_| fmt::Error)?, depth + 1, out)?;
            }
            out.write_str(if is_namespace { "}>" } else { "}" })
        }
        _ => write!(out, "{value}"),
    }
}

fn quoted(text: &str, out: &mut impl Write) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for character in text.chars() {
        match (character, character as u32) {
            ('\n', _) => out.write_str("\\n")?,
            ('\r', _) => out.write_str("\\r")?,
            ('\t', _) => out.write_str("\\t")?,
            ('\\', _) => out.write_str("\\\\")?,
            _ if character == quote => write!(out, "\\{quote}")?,
            _ if is_printable(character) => out.write_char(character)?,
            (_, code @ ..0x100) => write!(out, "\\x{code:02x}")?,
            (_, code @ ..0x1_0000) => write!(out, "\\u{code:04x}")?,
            (_, code) => write!(out, "\\U{code:08x}")?,
        }
    }
    out.write_char(quote)
}

/// Returns whether Python's `repr` writes a character as it is: all but the separators, other than the space, and what is
/// of Unicode's categories C. Rust escapes the same ones, and a combining character at the beginning of a text.
fn is_printable(character: char) -> bool {
    match character {
        ' '..='~' => true,
        '\0'..='\u{7f}' => false,
        _ => {
            let text = String::from_iter(['a', character]);
            text.escape_debug().eq(text.chars())
        }
    }
}

/// Writes a number. A float is written with the fewest digits that determine it, as `1.0`, `1e-05` or `1e+16`.
fn number(value: &Value, out: &mut impl Write) -> fmt::Result {
    if value.is_integer() {
        return write!(out, "{value}");
    }
    let Ok(float) = f64::try_from(value.clone()) else { return write!(out, "{value}") };
    let digits = format!("{float:e}");
    match digits.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?)))
    {
        None => write!(
            out,
            "{}",
            if float.is_nan() {
                "nan"
            } else if float > 0.0 {
                "inf"
            } else {
                "-inf"
            }
        ),
        Some((_, -4..16)) => write!(out, "{float:?}"),
        Some((digits, exponent)) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            write!(out, "{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// The settings of Python's `json.dumps`.
#[derive(Debug, Default)]
pub(super) struct Json {
    /// The spaces of a level; none writes everything in one line.
    pub(super) indent: Option<String>,
    /// Whether characters outside ASCII are escaped.
    pub(super) ascii: bool,
    /// Whether names are sorted.
    pub(super) sorted: bool,
    /// What stands between items, and between a name and its value.
    pub(super) separators: Option<(String, String)>,
    /// The most bytes; 0 sets no bound.
    pub(super) most: usize,
}

impl Json {
    /// Writes a value as `json.dumps` does.
    pub(super) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > bounds::MOST_DEPTH || (self.most > 0 && out.len() > self.most) {
            return Err(bounds::too_large(self.most));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => {
                let at = out.len();
                number(value, out).map_err(|_| unwritable(value))?;
                // JSON has no names for these; Python writes those of JavaScript.
                let name = match &out[at..] {
                    "nan" => Some("NaN"),
                    "inf" => Some("Infinity"),
                    "-inf" => Some("-Infinity"),
                    _ => None,
                };
                if let Some(name) = name {
                    out.truncate(at);
                    out.push_str(name);
                }
            }
            ValueKind::Map if !bounds::is_map(value) => return Err(unwritable(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                // Each item has a byte, so one more item than bytes is too many. A repeated list has up to 10^8.
                let most = if self.most > 0 { self.most.saturating_add(1) } else { usize::MAX };
                let items: Vec<Value> = value.try_iter()?.take(most).collect();
                self.group(['[', ']'], &items, depth, out, |item, out| self.write(item, depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut names: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    names.sort();
                }
                let between = self.separators.as_ref().map_or(": ", |(_, name)| name);
                self.group(['{', '}'], &names, depth, out, |name, out| {
                    match name.as_str() {
                        Some(text) => self.string(text, out),
                        None => {
                            let mut text = String::new();
                            self.write(name, 0, &mut text)?;
                            self.string(&text, out);
                        }
                    }
                    out.push_str(between);
                    self.write(&value.get_item(name)?, depth + 1, out)
                })?;
            }
            _ => return Err(unwritable(value)),
        }
        Ok(())
    }

    fn group(
        &self,
        [open, close]: [char; 2],
        items: &[Value],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        let comma = match &self.separators {
            Some((comma, _)) => comma,
            None if self.indent.is_some() => ",",
            None => ", ",
        };
        out.push(open);
        for (at, item) in items.iter().enumerate() {
            out.push_str(if at > 0 { comma } else { "" });
            line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..' ' => out.push_str(&format!("\\u{:04x}", character as u32)),
                _ if self.ascii && !matches!(character, ' '..='~') => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn unwritable(value: &Value) -> Error {
    Error::new(ErrorKind::BadSerialization, format!("a value of the kind `{}` is not JSON", value.kind()))
}

/// Returns the argument of each name; `None` if it isn't given.
///
/// # Errors
///
/// There are more arguments than names, an unknown name, or an argument twice.
pub(super) fn arguments<const N: usize>(
    given: Rest<ValueOrKwargs>,
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let mut given = given.into_values();
    let named = match given.pop_if(|last| last.is_kwargs()) {
        Some(named) => Kwargs::try_from(named)?,
        None => Kwargs::from_iter(std::iter::empty::<(String, Value)>()),
    };
    if given.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut by_place = given.into_iter();
    let mut found = [const { None }; N];
    for (found, name) in found.iter_mut().zip(names) {
        *found = match by_place.next() {
            Some(_) if named.has(name) => {
                let detail = format!("`{name}` is given twice");
                return Err(Error::new(ErrorKind::TooManyArguments, detail));
            }
            Some(value) => Some(value),
            None if named.has(name) => Some(named.get(name)?),
            None => None,
        };
    }
    named.assert_all_used()?;
    Ok(found)
}

/// Returns a whole number, which true and false are in Python too.
pub(super) fn whole(value: &Value) -> Result<i64, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(i64::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i64::try_from(value.clone()),
        kind => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("expected a whole number, found a {kind}")))
        }
    }
}

/// Returns a text, and none for none.
pub(super) fn optional_text(value: Option<&Value>) -> Result<Option<&str>, Error> {
    let Some(value) = value.filter(|value| !value.is_none()) else { return Ok(None) };
    let wrong =
        || Error::new(ErrorKind::InvalidOperation, format!("expected a text, found a {}", value.kind()));
    value.as_str().map(Some).ok_or_else(wrong)
}

/// Returns a value as Python's `str` writes it.
pub(super) fn string(state: &State, value: Value) -> Result<String, Error> {
    let mut text = String::new();
    text_of(&value, bounds::most_bytes(state), &mut text)?;
    if value.as_object().is_some() {
        // The engine counts a text that a filter gets, but not one that it makes of another value.
        state.consume_fuel(text.len() as u64 / 64)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(value: Value) -> String {
        let mut out = String::new();
        super::text_of(&value, usize::MAX, &mut out).unwrap();
        out
    }

    /// Each pair was printed by CPython.
    #[test]
    fn texts_equal_python() {
        for (float, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1.5e-5, "1.5e-05"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (-2.5e300, "-2.5e+300"),
        ] {
            assert_eq!(text_of(float.into()), expected);
        }
        assert_eq!(text_of(Value::from(())), "None");
        assert_eq!(text_of(true.into()), "True");
        let list: Value = ["it's", "a \"b\"", "é\n\u{7}", "'\""].into_iter().collect();
        assert_eq!(text_of(list), r#"["it's", 'a "b"', 'é\n\x07', '\'"']"#);
        let list: Value = ["a\u{a0}b \u{200d} c", "e\u{301}\u{301}", "\u{2028}\u{e0001}\u{ad}\u{10ffff}日"]
            .into_iter()
            .collect();
        let expected =
            format!("['a\\xa0b \\u200d c', '{}', '\\u2028\\U000e0001\\xad\\U0010ffff日']", "e\u{301}\u{301}");
        assert_eq!(text_of(list), expected);
        assert_eq!(text_of((1, "a").into()), "(1, 'a')");
        assert_eq!(text_of((1.5,).into()), "(1.5,)");
        let map = Value::from_pairs([("b", Value::from(1)), ("a", Value::from(()))]);
        assert_eq!(text_of(map), "{'b': 1, 'a': None}");
    }

    #[test]
    fn numbers_of_json_equal_python() {
        let list: Value = [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e16].into_iter().collect();
        assert_eq!(Json::default().dumps(&list).unwrap(), "[NaN, Infinity, -Infinity, 1e+16]");
    }

    #[test]
    fn json_equals_python() {
        let list: Value = [Value::from(1.0), "<é🙂\u{7f}\u{1}>".into(), Value::from_pairs([("", 0); 0])]
            .into_iter()
            .collect();
        let value = Value::from_pairs([("b", list), ("a", true.into())]);
        let dumps = |json: Json| json.dumps(&value).unwrap();
        assert_eq!(dumps(Json::default()), "{\"b\": [1.0, \"<é🙂\u{7f}\\u0001>\", {}], \"a\": true}");
        let ascii = Json { ascii: true, sorted: true, ..Json::default() };
        assert_eq!(dumps(ascii), r#"{"a": true, "b": [1.0, "<\u00e9\ud83d\ude42\u007f\u0001>", {}]}"#);
        let indented = Json { indent: Some("  ".into()), ..Json::default() };
        let expected = "{\n  \"b\": [\n    1.0,\n    \"<é🙂\u{7f}\\u0001>\",\n    {}\n  ],\n  \"a\": true\n}";
        assert_eq!(dumps(indented), expected);
        let tight = Json { separators: Some((",".into(), ":".into())), ..Json::default() };
        assert_eq!(dumps(tight), "{\"b\":[1.0,\"<é🙂\u{7f}\\u0001>\",{}],\"a\":true}");
    }
}
