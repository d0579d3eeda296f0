//! Finds and replaces single values of a RON text by their paths, such as `model.layers` or `strategies.0`. Every other
//! byte stays the same, including names of enums and comments.

use std::ops::Range;

use firebrick_datasets::counted;

use super::ron_scan::{self, Entry, Group, ScanError, Shape, Value, line, plain_name};

/// Why a path cannot be resolved, or a value cannot be set there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// The document is not RON.
    #[error("line {line}: expected {expected}, found {found}")]
    Syntax {
        /// The 1-based line.
        line: usize,
        /// What was expected there.
        expected: String,
        /// What was found there.
        found: String,
    },
    /// The new value is not exactly one RON value.
    #[error("the value `{value}`: expected {expected}, found {found}")]
    Value {
        /// The value as given.
        value: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
        /// The byte of the value where it was found.
        at: usize,
    },
    /// The path has an empty segment.
    #[error("the path `{path}`: expected a field or an index as segment {position}, found nothing")]
    Empty {
        /// The path as given.
        path: String,
        /// The position of the empty segment, counted from 1.
        position: usize,
    },
    /// A struct or map does not have the field that the path names.
    #[error("line {line}: {} has no `{segment}`; expected {known}", place(.prefix))]
    Missing {
        /// The longest part of the path that exists; empty for the document itself.
        prefix: String,
        /// The segment after it.
        segment: String,
        /// The line of `prefix`.
        line: usize,
        /// The existing fields, as a phrase.
        known: String,
    },
    /// A list or tuple does not have the element that the path names.
    #[error(
        "line {line}: {} has {}; expected an index below {length}, found `{segment}`",
        place(.prefix),
        counted(*length, "element")
    )]
    Index {
        /// The path of the list; empty for the document itself.
        prefix: String,
        /// The segment after it.
        segment: String,
        /// The line of `prefix`.
        line: usize,
        /// The length of the list.
        length: usize,
    },
    /// The path continues below a value that has no parts.
    #[error(
        "line {line}: {} is {found}; expected a struct, list or map that has `{segment}`",
        place(.prefix)
    )]
    Leaf {
        /// The path of the value without parts; empty for the document itself.
        prefix: String,
        /// The segment after it.
        segment: String,
        /// The line of `prefix`.
        line: usize,
        /// The beginning of the value.
        found: String,
    },
}

/// Replaces the value at `path` and returns the new document.
///
/// Segments are separated by dots: names of fields, string keys of maps, or indices into lists and tuples. Names before
/// a parenthesis are skipped: in `model: Gpt(layers: 4)`, the 4 is `model.layers`. So is `Some`: in
/// `clip: Some((norm: 1.0))`, the number is `clip.norm`, while `clip` is all of `Some((norm: 1.0))`.
///
/// If the struct or map lacks a field or string key, it is added after the last one: setting `model.width` to 64 turns
/// `Gpt(layers: 4)` into `Gpt(layers: 4, width: 64)`. Comments and whitespace around `value` are removed.
///
/// # Errors
/// `value` is not a single RON value, the document is malformed, or the parent of the path is missing.
pub fn set(document: &str, path: &str, value: &str) -> Result<String, PathError> {
    let value = lone(value)?;
    let root = scan(document)?;
    let segments = split(path)?;
    let walk = Walk::new(document, &root, &segments);
    if walk.depth == segments.len() {
        let span = walk.value.span.clone();
        return Ok([&document[..span.start], value, &document[span.end..]].concat());
    }
    let added = match (&segments[walk.depth..], &walk.parts().shape) {
        ([name], Shape::Group(group)) => new_key(document, group, name)
            .map(|key| add(document, walk.parts(), group, &format!("{key}: {value}"))),
        _ => None,
    };
    added.ok_or_else(|| walk.error(&segments))
}

/// What an error of [`set`] is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPlace {
    /// A byte of the path.
    Path(usize),
    /// A byte of the value.
    Value(usize),
}

impl PathError {
    /// Returns the place of the error. That of a malformed document is its value.
    pub fn place(&self) -> ErrorPlace {
        match self {
            Self::Syntax { .. } => ErrorPlace::Value(0),
            Self::Value { at, .. } => ErrorPlace::Value(*at),
            Self::Empty { path, position } => {
                let before = path.split('.').take(position - 1).map(|segment| segment.len() + 1);
                ErrorPlace::Path(before.sum())
            }
            Self::Missing { prefix, .. } | Self::Index { prefix, .. } | Self::Leaf { prefix, .. } => {
                ErrorPlace::Path(prefix.len() + usize::from(!prefix.is_empty()))
            }
        }
    }
}

/// Returns the bytes of the value at `path`, if the document has one.
pub fn bytes_of(document: &str, path: &str) -> Option<Range<usize>> {
    let root = ron_scan::document(document).ok()?;
    let segments: Vec<&str> = path.split('.').collect();
    let walk = Walk::new(document, &root, &segments);
    (walk.depth == segments.len()).then(|| walk.value.span.clone())
}

/// Returns the byte where the value at `path` begins, or the deepest existing part of the path. In a malformed
/// document, returns the byte of the mistake.
///
/// In `"(\n  model: Gpt(\n    layers: 4,\n  ),\n)"`, `model.layers` is on line 3. `model.width` does not exist, so its
/// place is that of `Gpt`, on line 2.
pub fn start_of(document: &str, path: &str) -> usize {
    match ron_scan::document(document) {
        Ok(root) => {
            let segments: Vec<&str> = path.split('.').collect();
            Walk::new(document, &root, &segments).value.span.start
        }
        Err(error) => error.at,
    }
}

/// Returns the first byte where a document is not RON, with what was expected and found there.
pub fn first_mistake(document: &str) -> Option<(usize, String)> {
    let ScanError { at, expected, found } = ron_scan::document(document).err()?;
    Some((at, format!("expected {expected}, found {found}")))
}

/// How far a path can be resolved.
struct Walk<'a> {
    document: &'a str,
    value: &'a Value,
    /// Number of segments found.
    depth: usize,
}

impl<'a> Walk<'a> {
    fn new(document: &'a str, root: &'a Value, segments: &[&str]) -> Self {
        let mut walk = Walk { document, value: root, depth: 0 };
        for segment in segments {
            let Some(value) = walk.child(segment) else {
                break;
            };
            walk.value = value;
            walk.depth += 1;
        }
        walk
    }

    /// Returns the value, or the content of its `Some(...)`.
    fn parts(&self) -> &'a Value {
        let mut value = self.value;
        while let Shape::Group(group) = &value.shape
            && &self.document[group.name.clone()] == "Some"
            && let [Entry { key: None, value: inner }] = group.entries.as_slice()
        {
            value = inner;
        }
        value
    }

    fn child(&self, segment: &str) -> Option<&'a Value> {
        let Shape::Group(group) = &self.parts().shape else {
            return None;
        };
        let entry = if is_keyed(group) {
            let name = if group.close == ')' { plain_name(segment) } else { segment };
            let is_it = |entry: &&Entry| key(self.document, entry).as_deref() == Some(name);
            group.entries.iter().find(is_it)
        } else {
            index(segment).and_then(|index| group.entries.get(index))
        };
        entry.map(|entry| &entry.value)
    }

    fn line(&self) -> usize {
        line(self.document, self.value.span.start)
    }

    /// Returns why the segment after the last one found cannot be resolved.
    fn error(&self, segments: &[&str]) -> PathError {
        let prefix = segments[..self.depth].join(".");
        let segment = segments[self.depth].to_string();
        let line = self.line();
        let parts = self.parts();
        match &parts.shape {
            Shape::Group(group) if is_keyed(group) || (is_struct(group) && index(&segment).is_none()) => {
                PathError::Missing { prefix, segment, line, known: known(self.document, group) }
            }
            Shape::Group(group) => PathError::Index { prefix, segment, line, length: group.entries.len() },
            _ => PathError::Leaf { prefix, segment, line, found: quote(&self.document[parts.span.clone()]) },
        }
    }
}

/// Whether entries are named, as in maps and in structs with named fields.
fn is_keyed(group: &Group) -> bool {
    group.close == '}' || group.entries.first().is_some_and(|entry| entry.key.is_some())
}

/// Whether fields may be added; `()` counts as a struct without fields.
fn is_struct(group: &Group) -> bool {
    group.close == ')' && (group.entries.is_empty() || is_keyed(group))
}

/// Parses an index. Accepts plain digits only, because `+1` and `01` would be two more names for one element.
fn index(segment: &str) -> Option<usize> {
    let index = segment.parse::<usize>().ok()?;
    (index.to_string() == segment).then_some(index)
}

/// Returns what a path calls an entry: its field name, the content of its string key, or its key as written.
fn key(document: &str, entry: &Entry) -> Option<String> {
    let key = entry.key.as_ref()?;
    let text = &document[key.span.clone()];
    Some(match key.shape {
        Shape::Name => plain_name(text).to_string(),
        _ => ron::from_str(text).unwrap_or_else(|_| text.to_string()),
    })
}

/// Returns the key of a new entry as written, if the group can have one of that name.
fn new_key(document: &str, group: &Group, name: &str) -> Option<String> {
    if is_struct(group) {
        let plain = plain_name(name);
        let fits = !plain.starts_with(|c: char| c.is_ascii_digit())
            && plain.chars().all(|c| c == '_' || c.is_ascii_alphanumeric());
        return (fits && !plain.is_empty()).then(|| name.to_string());
    }
    let is_text = |key: &Value| ron::from_str::<String>(&document[key.span.clone()]).is_ok();
    let takes_text = group.close == '}' && group.entries.iter().all(|e| e.key.as_ref().is_some_and(is_text));
    takes_text.then(|| ron::to_string(name).ok()).flatten()
}

/// Adds `entry` at the end of the group, on its own line if the closing bracket has one.
fn add(document: &str, value: &Value, group: &Group, entry: &str) -> String {
    let close = value.span.end - group.close.len_utf8();
    let body = document[..close].trim_end_matches([' ', '\t', '\r', '\n']);
    let gap = &document[body.len()..close];
    let last = group.entries.last().map(|entry| entry.value.span.end);
    let comma = last.filter(|_| !group.comma);
    let (before, after) = body.split_at(comma.unwrap_or(body.len()));
    let comma = if comma.is_some() { "," } else { "" };
    let newline = if gap.contains("\r\n") { "\r\n" } else { "\n" };
    let added = match gap.rsplit_once('\n') {
        Some((_, outer)) => format!("{newline}{}{entry},", indent(document, group, outer)),
        None if body.ends_with(['(', '{']) => entry.to_string(),
        None => format!(" {entry}"),
    };
    [before, comma, after, &added, &document[body.len()..]].concat()
}

/// Returns the whitespace before the last entry's line, or one step more than before the closing bracket.
fn indent(document: &str, group: &Group, outer: &str) -> String {
    let key = group.entries.last().and_then(|entry| entry.key.as_ref());
    key.and_then(|key| document[..key.span.start].rsplit_once('\n'))
        .map(|(_, before)| before)
        .filter(|before| before.chars().all(|c| matches!(c, ' ' | '\t')))
        .map_or_else(|| format!("{outer}    "), str::to_string)
}

fn scan(document: &str) -> Result<Value, PathError> {
    ron_scan::document(document).map_err(|ScanError { at, expected, found }| PathError::Syntax {
        line: line(document, at),
        expected,
        found,
    })
}

fn lone(value: &str) -> Result<&str, PathError> {
    match ron_scan::lone_value(value) {
        Ok(scanned) => Ok(&value[scanned.span]),
        Err(ScanError { expected, found, at }) => {
            Err(PathError::Value { value: value.to_string(), expected, found, at })
        }
    }
}

fn split(path: &str) -> Result<Vec<&str>, PathError> {
    let segments: Vec<&str> = path.split('.').collect();
    match segments.iter().position(|segment| segment.is_empty()) {
        Some(empty) => Err(PathError::Empty { path: path.to_string(), position: empty + 1 }),
        None => Ok(segments),
    }
}

fn place(prefix: &str) -> String {
    if prefix.is_empty() { "the document".into() } else { format!("`{prefix}`") }
}

fn known(document: &str, group: &Group) -> String {
    let names = group.entries.iter().filter_map(|entry| key(document, entry));
    let names: Vec<String> = names.map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "nothing, as it is empty".into() } else { format!("one of {}", names.join(", ")) }
}

/// Returns the beginning of a value, for a message.
fn quote(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("`{start}{dots}`")
}

#[cfg(test)]
#[path = "ron_path_tests.rs"]
mod tests;
