//! Splits the text of a template's tag into tokens.

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
