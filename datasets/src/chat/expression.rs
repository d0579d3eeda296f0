//! Rewrites the operators of an expression, so that they write values [as Python does](super::operators).

use super::operators;
use super::tokens::{Token, TokenKind};

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
            out.push_str(&format!("[{}]|{}", operands.join(",").trim_start(), operators::CONCAT));
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
            left = format!("{gap}({operand})|{}({divisor})", operators::REMAINDER);
            at += right.len();
        } else {
            has_text |= item.kind == TokenKind::Text;
            left.extend([item.gap, item.text.as_str()]);
        }
        at += 1;
    }
    left
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
