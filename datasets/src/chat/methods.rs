//! The methods of Python's texts, lists and maps that templates call.
//!
//! Most are those of `minijinja-contrib`. Here are those that it lacks, and those whose results a template can make
//! larger than the engine counts.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::{bounds, python};

/// The most characters to which one value of a format is padded.
const MOST_WIDTH: usize = 10_000;

/// Calls a method.
pub(super) fn call(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => of_text(state, text, name, args)?,
        (ValueKind::Seq | ValueKind::Iterable, _) => of_list(state, value, name, args)?,
        _ => None,
    };
    own.map_or_else(|| pycompat::unknown_method_callback(state, value, name, args), Ok)
}

/// Calls a method of a text. `None` if the library has the method.
fn of_text(state: &State, text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "split" => {
            let separator = args.first().and_then(Value::as_str);
            counted(state, text, separator)?;
            return Ok(None);
        }
        "splitlines" => {
            state.consume_fuel(text.lines().count() as u64 / 2)?;
            return Ok(None);
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            counted(state, text, separator)?;
            let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
            Value::from_iter(rsplit(text, separator, most))
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            join(state, text, items)?.into()
        }
        "format" => formatted(state, text, args)?.into(),
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = match text.strip_prefix(['-', '+']) {
                Some(digits) => text.split_at(text.len() - digits.len()),
                None => ("", text),
            };
            format!("{sign}{}{digits}", padding(text, width, '0')?).into()
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let fill = fill.unwrap_or(' ');
            match name {
                "ljust" => format!("{text}{}", padding(text, width, fill)?).into(),
                "rjust" => format!("{}{text}", padding(text, width, fill)?).into(),
                _ => centered(text, width, fill)?.into(),
            }
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(empty_separator());
            }
            let (found, missing) = match name {
                "partition" => (text.split_once(separator), [text, "", ""]),
                _ => (text.rsplit_once(separator), ["", "", text]),
            };
            let parts = found.map_or(missing, |(before, after)| [before, separator, after]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        _ => return Ok(None),
    }))
}

/// Calls a method of a list. `None` if the library has the method.
fn of_list(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (at, item) in value.try_iter()?.checked().enumerate() {
                // A repeated list has up to 10^8 items, and takes no steps to make.
                state.consume_fuel(1)?;
                if item? == *wanted {
                    return Ok(Some(at.into()));
                }
            }
            return Err(Error::new(ErrorKind::InvalidOperation, "the value is not in the list"));
        }
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        _ => return Ok(None),
    }))
}

fn empty_separator() -> Error {
    Error::new(ErrorKind::InvalidOperation, "the separator is empty")
}

/// Pays for the parts of a text, each of which is a value.
fn counted(state: &State, text: &str, separator: Option<&str>) -> Result<(), Error> {
    let parts = match separator {
        Some("") => return Err(empty_separator()),
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    state.consume_fuel(parts as u64 / 2)
}

/// Splits a text from its end, as Python does: without a separator, at white space.
fn rsplit(text: &str, separator: Option<&str>, most: usize) -> Vec<Value> {
    let mut parts = Vec::new();
    let mut rest = if separator.is_some() { text } else { text.trim_end() };
    while parts.len() < most {
        let split = match separator {
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace).map(|(before, last)| (before.trim_end(), last)),
        };
        let Some((before, last)) = split else { break };
        parts.push(Value::from(last));
        rest = before;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(Value::from(rest));
    }
    parts.reverse();
    parts
}

fn join(state: &State, separator: &str, items: &Value) -> Result<String, Error> {
    let most = bounds::most_bytes(state);
    let mut joined = String::new();
    for (at, item) in items.try_iter()?.checked().enumerate() {
        let item = item?;
        let Some(text) = item.as_str() else {
            let detail = format!("item {at} to join is a {}, not a text", item.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        };
        joined.push_str(if at > 0 { separator } else { "" });
        joined.push_str(text);
        if joined.len() > most {
            return Err(bounds::too_large(most));
        }
    }
    Ok(joined)
}

/// Puts a text in the middle of a width.
pub(super) fn centered(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let fill = padding(text, width, fill)?;
    let number = fill.chars().count();
    // Python puts the odd one before the text if the width is odd too.
    let before = number / 2 + (number & width & 1);
    let at = fill.char_indices().nth(before).map_or(fill.len(), |(at, _)| at);
    let (before, after) = fill.split_at(at);
    Ok(format!("{before}{text}{after}"))
}

/// Returns the characters that a text lacks to a width.
fn padding(text: &str, width: usize, fill: char) -> Result<String, Error> {
    let lacks = width.saturating_sub(text.chars().count());
    if lacks > MOST_WIDTH {
        return Err(bounds::too_large(MOST_WIDTH));
    }
    Ok(String::from(fill).repeat(lacks))
}

/// Formats values as `str.format` does, with bounds on the widths.
fn formatted(state: &State, text: &str, args: &[Value]) -> Result<String, Error> {
    let (mut nested, mut width, mut widths) = (0_usize, 0_usize, 0_usize);
    for character in text.chars() {
        match character.to_digit(10) {
            Some(digit) => width = width.saturating_mul(10).saturating_add(digit as usize),
            None => (widths, width) = (widths.saturating_add(width), 0),
        }
        match character {
            '{' => nested += 1,
            '}' => nested = nested.saturating_sub(1),
            _ => {}
        }
        if nested > 0 && width > MOST_WIDTH {
            return Err(bounds::too_large(MOST_WIDTH));
        }
    }
    state.consume_fuel(widths as u64 / 64)?;
    let most = bounds::most_bytes(state);
    let mut values = Vec::with_capacity(args.len());
    for value in args {
        // The engine writes lists in its own way. Maps may be read by name.
        values.push(match value.kind() {
            ValueKind::Seq | ValueKind::Iterable if !text.contains('[') => {
                let mut text = String::new();
                python::text_of(value, most, &mut text)?;
                Value::from(text)
            }
            _ => value.clone(),
        });
    }
    let written = format(FormatStyle::StrFormat, text, &values)?;
    match written.len() > most {
        true => Err(bounds::too_large(most)),
        false => Ok(written),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rsplit_equals_python() {
        let rsplit = |text, separator, most| -> Vec<String> {
            rsplit(text, separator, most).iter().map(Value::to_string).collect()
        };
        assert_eq!(rsplit("a-b-c", Some("-"), 1), ["a-b", "c"]);
        assert_eq!(rsplit("a-b-c", Some("-"), usize::MAX), ["a", "b", "c"]);
        assert_eq!(rsplit("-a", Some("-"), 9), ["", "a"]);
        assert_eq!(rsplit(" a  b c ", None, 1), [" a  b", "c"]);
        assert_eq!(rsplit("  ", None, 1), [""; 0]);
        assert_eq!(rsplit("", Some("-"), 1), [""]);
    }
}
