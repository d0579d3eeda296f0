//! Filters that write and read HTML, as Jinja2 and MarkupSafe do, and entities of HTML as characters.

use std::fmt::Write;
use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};
use regex::Regex;

use super::bounds;
use super::python::{arguments, optional_text, string, whole};

/// Escapes a text, with the numbers of the quotes.
pub(super) fn escape(state: &State, value: Value) -> Result<Value, Error> {
    match value.is_safe() {
        true => Ok(value),
        false => force_escape(state, value),
    }
}

/// Escapes a text even if it is escaped already.
pub(super) fn force_escape(state: &State, value: Value) -> Result<Value, Error> {
    let text = string(state, value)?;
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            _ => escaped.push(character),
        }
    }
    Ok(Value::from_safe_string(escaped))
}

/// Removes tags and comments, makes each run of white space one space, and replaces entities by their characters.
pub(super) fn striptags(state: &State, value: Value) -> Result<String, Error> {
    let text = string(state, value)?;
    let (mut kept, mut rest) = (String::new(), text.as_str());
    while let Some(start) = rest.find('<') {
        let (opening, closing) = if rest[start..].starts_with("<!--") { (4, "-->") } else { (0, ">") };
        // The rest of a tag that isn't closed is text.
        let Some(end) = rest[start + opening..].find(closing) else { break };
        kept.push_str(&rest[..start]);
        rest = &rest[start + opening + end + closing.len()..];
    }
    kept.push_str(rest);
    let words = kept.split(is_white).filter(|word| !word.is_empty());
    Ok(unescaped(&words.collect::<Vec<_>>().join(" ")))
}

/// What Python takes for white space.
fn is_white(one: char) -> bool {
    one.is_whitespace() || matches!(one, '\u{1c}'..='\u{1f}')
}

/// Writes a map as the attributes of an element.
pub(super) fn xmlattr(state: &State, map: Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [space] = arguments(given, ["autospace"])?;
    if !bounds::is_map(&map) {
        let detail = format!("expected a map, found a {}", map.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let most = bounds::most_bytes(state);
    let mut attributes = String::new();
    for key in map.try_iter()?.checked() {
        let key = key?;
        let value = map.get_item(&key)?;
        if matches!(value.kind(), ValueKind::None | ValueKind::Undefined) {
            continue;
        }
        let name = key
            .as_str()
            .filter(|name| !name.contains(|one: char| matches!(one, '\t'..='\r' | ' ' | '/' | '>' | '=')));
        if name.is_none() {
            let detail = format!("{key} is not the name of an attribute");
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        let is_first = attributes.is_empty() && space.as_ref().is_some_and(|space| !space.is_true());
        attributes.push_str(if is_first { "" } else { " " });
        let [name, value] = [escape(state, key)?, escape(state, value)?];
        write!(attributes, "{name}=\"{value}\"").map_err(|_| bounds::too_large(most))?;
        if attributes.len() > most {
            return Err(bounds::too_large(most));
        }
    }
    Ok(attributes)
}

/// `_http_re` of Jinja2.
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| {
    of(concat!(
        r"(?i)^(?:",
        r"(?:https?://|www\.)(?:(?:[\w%-]+\.)+)?(?:[a-z]{2,63}|xn--[\w%]{2,59})",
        r"|(?:[\w%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil)",
        r"|https?://(?:\d{1,3}(?:\.\d{1,3}){3}|\[(?:[\da-f]{0,4}:){2}(?:[\da-f]{0,4}:?){1,6}\])",
        r")(?::\d{1,5})?(?:[/?\x23]\S*)?$",
    ))
});
/// `_email_re` of Jinja2.
static EMAIL: LazyLock<Regex> = LazyLock::new(|| of(r"^\S+@\w[\w.-]*\.\w+$"));
/// `_uri_scheme_re` of Jinja2.
static SCHEME: LazyLock<Regex> = LazyLock::new(|| of(r"^[\w.+-]{2,}:/{0,2}$"));

fn of(expression: &str) -> Regex {
    Regex::new(expression).expect("the expression is valid")
}

/// Escapes a text, and makes links of the addresses in it.
pub(super) fn urlize(state: &State, value: Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let names = ["trim_url_limit", "nofollow", "target", "rel", "extra_schemes"];
    let [limit, nofollow, target, rel, schemes] = arguments(given, names)?;
    let limit = limit.filter(|limit| !limit.is_none()).map(|limit| whole(&limit)).transpose()?;
    let mut relations: Vec<&str> = optional_text(rel.as_ref())?.unwrap_or("").split_whitespace().collect();
    relations.extend(nofollow.filter(Value::is_true).map(|_| "nofollow"));
    // A policy of Jinja2.
    relations.push("noopener");
    relations.sort_unstable();
    relations.dedup();
    let target = optional_text(target.as_ref())?.filter(|target| !target.is_empty());
    let escaped = |text: &str| escape(state, Value::from(text));
    let mut attributes = format!(" rel=\"{}\"", escaped(&relations.join(" "))?);
    if let Some(target) = target {
        write!(attributes, " target=\"{}\"", escaped(target)?).map_err(|_| bounds::too_large(0))?;
    }
    let links = Links { limit, attributes, schemes: schemes_of(schemes)? };
    let text = escape(state, value)?;
    let text = text.as_str().unwrap_or_default();
    let most = bounds::most_bytes(state);
    let mut linked = String::new();
    for word in text.split_inclusive(is_white) {
        let (word, white) = word.split_at(word.trim_end_matches(is_white).len());
        links.write(word, &mut linked);
        linked.push_str(white);
        if linked.len() > most {
            return Err(bounds::too_large(most));
        }
    }
    Ok(linked)
}

fn schemes_of(schemes: Option<Value>) -> Result<Vec<String>, Error> {
    let Some(schemes) = schemes.filter(|schemes| !schemes.is_none()) else { return Ok(Vec::new()) };
    let mut read = Vec::new();
    for scheme in schemes.try_iter()?.checked() {
        let scheme = scheme?;
        match scheme.as_str().filter(|text| SCHEME.is_match(text)) {
            Some(text) => read.push(text.to_owned()),
            None => {
                let detail = format!("{scheme} is not the prefix of an address, such as `tel:`");
                return Err(Error::new(ErrorKind::InvalidOperation, detail));
            }
        }
    }
    Ok(read)
}

/// How addresses become links.
struct Links {
    /// The most characters of an address that are shown.
    limit: Option<i64>,
    attributes: String,
    schemes: Vec<String>,
}

impl Links {
    /// Writes a word, as a link if it is an address.
    fn write(&self, word: &str, out: &mut String) {
        let [head, middle, tail] = parts(word);
        out.push_str(head);
        let attributes = &self.attributes;
        if ADDRESS.is_match(middle) {
            let has_scheme = middle.starts_with("https://") || middle.starts_with("http://");
            let scheme = if has_scheme { "" } else { "https://" };
            out.push_str(&format!("<a href=\"{scheme}{middle}\"{attributes}>{}</a>", self.shown(middle)));
        } else if let Some(address) = middle.strip_prefix("mailto:").filter(|address| EMAIL.is_match(address))
        {
            out.push_str(&format!("<a href=\"{middle}\">{address}</a>"));
        } else if is_email(middle) {
            out.push_str(&format!("<a href=\"mailto:{middle}\">{middle}</a>"));
        } else if self.schemes.iter().any(|scheme| middle != scheme && middle.starts_with(&**scheme)) {
            out.push_str(&format!("<a href=\"{middle}\"{attributes}>{middle}</a>"));
        } else {
            out.push_str(middle);
        }
        out.push_str(tail);
    }

    fn shown(&self, address: &str) -> String {
        let length = address.chars().count();
        match self.limit.filter(|limit| i64::try_from(length).is_ok_and(|length| length > *limit)) {
            None => address.to_owned(),
            Some(limit) => {
                // A negative end counts from the end of the text.
                let kept = usize::try_from(limit)
                    .unwrap_or_else(|_| length.saturating_sub(limit.unsigned_abs() as usize));
                let shown: String = address.chars().take(kept).collect();
                format!("{shown}...")
            }
        }
    }
}

fn is_email(text: &str) -> bool {
    text.contains('@')
        && !text.starts_with("www.")
        && !text.starts_with('@')
        && !text.contains(':')
        && EMAIL.is_match(text)
}

/// Returns the brackets before an address, the address, and the punctuation after it.
fn parts(word: &str) -> [&str; 3] {
    let without =
        |text: &str, marks: [&str; 3]| marks.iter().find_map(|mark| text.strip_prefix(mark).map(str::len));
    let mut rest = word;
    while let Some(length) = without(rest, ["(", "<", "&lt;"]) {
        rest = &rest[rest.len() - length..];
    }
    let head = &word[..word.len() - rest.len()];
    let mut end = rest.len();
    while let Some(shorter) =
        [")", ">", ".", ",", "&gt;"].iter().find_map(|mark| rest[..end].strip_suffix(mark).map(str::len))
    {
        end = shorter;
    }
    // Brackets that are opened in the address and closed after it belong to it.
    for [open, close] in [["(", ")"], ["<", ">"], ["&lt;", "&gt;"]] {
        let opened = rest[..end].matches(open).count();
        if opened <= rest[..end].matches(close).count() {
            continue;
        }
        for _ in 0..opened.min(rest[end..].matches(close).count()) {
            end += rest[end..].find(close).map_or(0, |at| at + close.len());
        }
    }
    [head, &rest[..end], &rest[end..]]
}

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
fn unescaped(text: &str) -> String {
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
    let found = minijinja_contrib::filters::striptags(entity.clone());
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
