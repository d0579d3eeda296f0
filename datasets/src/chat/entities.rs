//! Entities of HTML as characters.

use minijinja_contrib::filters::striptags;

/// The most characters of a name.
const LONGEST: usize = 32;

/// The entities that Python also replaces without a semicolon, of those that texts have.
const OPEN: [(&str, char); 4] = [("amp", '&'), ("gt", '>'), ("lt", '<'), ("quot", '"')];

/// White space, which the library's filter takes away.
const WHITE: [(&str, &str); 16] = [
    ("MediumSpace", "\u{205f}"),
    ("NewLine", "\n"),
    ("NonBreakingSpace", "\u{a0}"),
    ("Tab", "\t"),
    ("ThickSpace", "\u{205f}\u{200a}"),
    ("ThinSpace", "\u{2009}"),
    ("VeryThinSpace", "\u{200a}"),
    ("emsp", "\u{2003}"),
    ("emsp13", "\u{2004}"),
    ("emsp14", "\u{2005}"),
    ("ensp", "\u{2002}"),
    ("hairsp", "\u{200a}"),
    ("nbsp", "\u{a0}"),
    ("numsp", "\u{2007}"),
    ("puncsp", "\u{2008}"),
    ("thinsp", "\u{2009}"),
];

/// The characters of the numbers from 128, which stand for those of Windows-1252.
const WINDOWS: &str = "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ";

/// Replaces entities by their characters, as Python's `html.unescape` does.
pub(super) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match entity(&rest[1..]) {
            Some((characters, length)) => {
                out.push_str(&characters);
                rest = &rest[1 + length..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Returns the characters of the entity that a text begins with, after its `&`, and the bytes that it takes.
fn entity(text: &str) -> Option<(String, usize)> {
    if let Some(number) = text.strip_prefix('#') {
        let (digits, radix) = match number.strip_prefix(['x', 'X']) {
            Some(digits) => (digits, 16),
            None => (number, 10),
        };
        let end = digits.find(|one: char| !one.is_digit(radix)).unwrap_or(digits.len());
        let ends = usize::from(digits[end..].starts_with(';'));
        let characters = (end > 0).then(|| numbered(u32::from_str_radix(&digits[..end], radix).ok()))?;
        return Some((characters, text.len() - digits.len() + end + ends));
    }
    let is_over = |one: char| matches!(one, '\t' | '\n' | '\u{c}' | ' ' | '<' | '&' | '#' | ';');
    let end = text.find(is_over).unwrap_or(text.len());
    let name = &text[..end];
    if text[end..].starts_with(';')
        && name.chars().count() <= LONGEST
        && let Some(characters) = named(name)
    {
        return Some((characters, end + 1));
    }
    let open = OPEN.iter().find(|(open, _)| name.starts_with(open));
    open.map(|(name, character)| (String::from(*character), name.len()))
}

fn named(name: &str) -> Option<String> {
    if let Some((_, white)) = WHITE.iter().find(|(white, _)| *white == name) {
        return Some((*white).into());
    }
    let entity = format!("&{name};");
    let found = striptags(entity.clone());
    (!name.is_empty() && found != entity).then_some(found)
}

/// Returns the character of a number; `None` stands for one that is too large.
fn numbered(number: Option<u32>) -> String {
    const REPLACEMENT: char = '\u{fffd}';
    match number {
        Some(number @ 0x80..0xa0) => WINDOWS.chars().nth(number as usize - 0x80).into_iter().collect(),
        // Python leaves out what is not a character of a text.
        Some(1..=8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef) => String::new(),
        Some(number @ ..=0x10_ffff) if number & 0xfffe == 0xfffe => String::new(),
        Some(number @ 1..) => char::from_u32(number).unwrap_or(REPLACEMENT).into(),
        Some(0) | None => REPLACEMENT.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pair was written by CPython.
    #[test]
    fn entities_equal_python() {
        for (text, expected) in [
            ("&amp;lt; &lt &quot;&ampx", "&lt; < \"&x"),
            ("&eacute;&nbsp;&hellip;|&NotEqualTilde;|&thinsp;", "é\u{a0}…|≂̸|\u{2009}"),
            ("&#233;&#xE9;&#XE9 &#128;&#0;&#55296;&#99999999999;", "ééé €\u{fffd}\u{fffd}\u{fffd}"),
            ("&#1;&#65534;&unknown; && &; &# &#x; &", "&unknown; && &; &# &#x; &"),
        ] {
            assert_eq!(unescaped(text), expected, "{text}");
        }
    }
}
