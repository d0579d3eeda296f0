//! Rewrites the operators of a tag's expression, so that they write values as Python does: `~` and `%`, in which the
//! engine differs, become filters.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::{bounds, python};

/// A part of an expression: a token, or brackets with what they hold.
#[derive(Debug)]
struct Item<'s> {
    gap: &'s str,
    text: String,
    kind: TokenKind,
    role: Role,
    /// Whether an operand may end here, so that a sign that follows has two operands.
    ends: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// A part of an operand: a name, a filter, a power.
    Operand,
    /// `*`, `/`, `//` or `%`.
    Factor,
    /// `~`.
    Tilde,
    /// What binds less tightly than `~`.
    Looser,
}

/// Rewrites the operators `~` and `%` of an expression, which bind as in Jinja: `~` more tightly than `+` and `-`, and
/// less than `*`, `/`, `//` and `%`.
pub(super) fn expression(tokens: &[Token]) -> String {
    let mut out = String::new();
    let mut operands: Vec<Vec<Item>> = vec![Vec::new()];
    for item in items(tokens) {
        match item.role {
            Role::Tilde => operands.push(Vec::new()),
            Role::Looser => {
                concatenation(&operands, &mut out);
                operands = vec![Vec::new()];
                out.extend([item.gap, item.text.as_str()]);
            }
            Role::Operand | Role::Factor => operands.last_mut().expect("never empty").push(item),
        }
    }
    concatenation(&operands, &mut out);
    out
}

fn items<'s>(tokens: &[Token<'s>]) -> Vec<Item<'s>> {
    let mut items: Vec<Item> = Vec::new();
    // Whether a name follows that is no keyword: an attribute, a filter or a test.
    let mut names = false;
    let mut at = 0;
    while let Some(&Token { gap, text, kind }) = tokens.get(at) {
        let after_operand = items.last().is_some_and(|last| last.ends);
        let mut item = Item { gap, text: text.to_owned(), kind, role: Role::Operand, ends: true };
        let named = std::mem::take(&mut names);
        match kind {
            TokenKind::Open => {
                let end = at + closing(&tokens[at..]);
                let inner = expression(&tokens[at + 1..end]);
                item.text.push_str(&inner);
                item.text.extend(tokens.get(end).map(|close| [close.gap, close.text].concat()));
                at = end;
            }
            TokenKind::Name => match text {
                "is" if !named => (item.ends, names) = (false, true),
                "not" if named => (item.ends, names) = (false, true),
                "and" | "or" | "not" | "in" | "if" | "else" | "recursive" if !named => {
                    (item.role, item.ends) = (Role::Looser, false);
                }
                _ => {}
            },
            TokenKind::Sign => {
                item.ends = false;
                names = matches!(text, "." | "|");
                item.role = match text {
                    "~" => Role::Tilde,
                    "*" | "/" | "//" | "%" => Role::Factor,
                    "." | "|" | "**" => Role::Operand,
                    "+" | "-" if !after_operand => Role::Operand,
                    _ => Role::Looser,
                };
            }
            TokenKind::Number | TokenKind::Text | TokenKind::Close => {}
        }
        items.push(item);
        at += 1;
    }
    items
}

/// Returns the place of what closes the first token, or the number of tokens.
fn closing(tokens: &[Token]) -> usize {
    let mut nested = 0_usize;
    let closes = |token: &Token| {
        match token.kind {
            TokenKind::Open => nested += 1,
            TokenKind::Close => nested -= 1,
            _ => {}
        }
        nested == 0
    };
    tokens.iter().position(closes).unwrap_or(tokens.len())
}

/// Writes operands of `~`.
fn concatenation(operands: &[Vec<Item>], out: &mut String) {
    match operands {
        [one] => out.push_str(&product(one)),
        // The engine explains what is missing.
        _ if operands.iter().any(Vec::is_empty) => {
            let operands: Vec<_> = operands.iter().map(|operand| product(operand)).collect();
            out.push_str(&operands.join(" ~"));
        }
        _ => {
            out.push_str(operands[0][0].gap);
            let operands: Vec<_> = operands.iter().map(|operand| product(operand)).collect();
            out.push_str(&format!("[{}]|{}", operands.join(",").trim_start(), CONCAT));
        }
    }
}

/// Returns factors, with `%` rewritten if it may format a text.
fn product(items: &[Item]) -> String {
    let mut left = String::new();
    let mut has_text = false;
    let mut at = 0;
    while let Some(item) = items.get(at) {
        let after = &items[at + 1..];
        let right = after.iter().position(|item| item.role == Role::Factor).unwrap_or(after.len());
        let right = &after[..right];
        let is_number = !has_text && matches!(right, [one] if one.kind == TokenKind::Number);
        if item.role == Role::Factor
            && item.text == "%"
            && !left.is_empty()
            && !right.is_empty()
            && !is_number
        {
            let divisor: String = right.iter().flat_map(|item| [item.gap, item.text.as_str()]).collect();
            let operand = left.trim_start();
            let gap = &left[..left.len() - operand.len()];
            left = format!("{gap}({operand})|{}({divisor})", REMAINDER);
            at += right.len();
        } else {
            has_text |= item.kind == TokenKind::Text;
            left.extend([item.gap, item.text.as_str()]);
        }
        at += 1;
    }
    left
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'s> {
    /// The white space before it.
    pub(super) gap: &'s str,
    pub(super) text: &'s str,
    pub(super) kind: TokenKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    Name,
    Number,
    Text,
    Open,
    Close,
    Sign,
}

/// Returns the kind and the length of the token at the beginning of a text. `None` at the end, and in a text that does
/// not end.
pub(super) fn token(text: &str) -> Option<(TokenKind, usize)> {
    let first = text.chars().next()?;
    let length = |is_part: fn(char) -> bool| text.find(|one: char| !is_part(one)).unwrap_or(text.len());
    let is_word = |one: char| one.is_alphanumeric() || one == '_';
    Some(match first {
        '"' | '\'' => {
            let mut characters = text.char_indices().skip(1);
            loop {
                match characters.next()? {
                    (_, '\\') => drop(characters.next()),
                    (at, one) if one == first => break (TokenKind::Text, at + 1),
                    _ => {}
                }
            }
        }
        '0'..='9' => (TokenKind::Number, number(text)),
        _ if is_word(first) => (TokenKind::Name, length(|one| one.is_alphanumeric() || one == '_')),
        '(' | '[' | '{' => (TokenKind::Open, 1),
        ')' | ']' | '}' => (TokenKind::Close, 1),
        _ => {
            let long = ["**", "//", "==", "!=", "<=", ">="].into_iter().find(|sign| text.starts_with(sign));
            (TokenKind::Sign, long.map_or(first.len_utf8(), str::len))
        }
    })
}

/// Returns the length of the number at the beginning of a text, such as `12`, `1_000`, `0xff` or `1.5e-7`.
fn number(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let is_hexadecimal = text.starts_with("0x") || text.starts_with("0X");
    let mut at = 1;
    loop {
        match bytes.get(at) {
            Some(b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_') => at += 1,
            Some(b'.') if is_digit(at + 1) => at += 1,
            Some(b'-' | b'+')
                if !is_hexadecimal && matches!(bytes[at - 1], b'e' | b'E') && is_digit(at + 1) =>
            {
                at += 1;
            }
            _ => return at,
        }
    }
}

/// The filter that `a ~ b` becomes, of the list of its operands.
pub(super) const CONCAT: &str = "concat__";

/// The filter that `a % b` becomes.
pub(super) const REMAINDER: &str = "remainder__";

/// Returns the texts of values, one after the other.
pub(super) fn concat(state: &State, operands: Value) -> Result<String, Error> {
    let most = bounds::most_bytes(state);
    let mut joined = String::new();
    for operand in operands.try_iter()?.checked() {
        python::text_of(&operand?, most.saturating_sub(joined.len()), &mut joined)?;
    }
    Ok(joined)
}

/// Formats a text with values, as `'%s' % value` does, or returns the remainder of a division, which has the sign of the
/// divisor.
pub(super) fn remainder(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if left.kind() == ValueKind::String {
        return formatted(state, left, right);
    }
    let undefined = || {
        let detail = format!("there is no remainder of a {} and a {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(&left) || !is_number(&right) {
        return Err(undefined());
    }
    let is_whole = |value: &Value| value.kind() == ValueKind::Bool || value.is_integer();
    if is_whole(&left) && is_whole(&right) {
        let (left, right) = (i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let rest = left.checked_rem(right).ok_or_else(undefined)?;
        let rest = if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    if right == 0.0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a division by zero"));
    }
    let rest = left % right;
    Ok(Value::from(match rest {
        0.0 => 0.0_f64.copysign(right),
        _ if (rest < 0.0) != (right < 0.0) => rest + right,
        _ => rest,
    }))
}

/// Formats a text with the items of a tuple, or with one value.
fn formatted(state: &mut State, text: Value, value: Value) -> Result<Value, Error> {
    let form = text.as_str().unwrap_or_default().replace("%%", "");
    let is_named = form.contains("%(") && value.kind() == ValueKind::Map;
    // The engine writes lists, maps and large numbers in its own way, but knows the other conversions.
    let writes_texts = form.matches('%').count() == form.matches("%s").count();
    let values: Vec<Value> = match value.is_tuple() {
        true => value.try_iter()?.collect(),
        false => vec![value],
    };
    let most = bounds::most_bytes(state);
    let mut all = vec![text];
    for value in values {
        if (writes_texts || value.as_object().is_some()) && !is_named {
            let mut text = String::new();
            python::text_of(&value, most, &mut text)?;
            all.push(Value::from(text));
        } else {
            all.push(value);
        }
    }
    state.apply_filter("format", &all)
}

#[cfg(test)]
mod tests {
    use crate::chat::source::prepared;

    #[test]
    fn operators_bind_as_in_jinja() {
        for (source, expected) in [
            ("{{ a ~ b }}", "{{ [a, b]|concat__ }}"),
            ("{{ a + b ~ c * 2 ~ -d - e }}", "{{ a + [b, c * 2, -d]|concat__ - e }}"),
            ("{{ f(x ~ y, k=[z ~ 'a~b']) }}", "{{ f([x, y]|concat__, k=[[z, 'a~b']|concat__]) }}"),
            (
                "{% if a ~ b is not none and not c.if ~ d|in %}",
                "{% if [a, b is not none]|concat__ and not [c.if, d|in]|concat__ %}",
            ),
            ("{{ a ~ 1e-7 if b else c ~ '\\'' }}", "{{ [a, 1e-7]|concat__ if b else [c, '\\'']|concat__ }}"),
            ("{{ loop.index0 % 2 == 0 }}", "{{ loop.index0 % 2 == 0 }}"),
            ("{{ '%s' % a ~ b }}", "{{ [('%s')|remainder__( a), b]|concat__ }}"),
            ("{{ a * b % (c, d) }}", "{{ (a * b)|remainder__( (c, d)) }}"),
        ] {
            assert_eq!(prepared(source).unwrap().source, expected, "{source}");
        }
    }
}
