//! Bounds of what a template may store and write.
//!
//! Fuel bounds the steps of a rendering and the bytes that it makes, but not what a value becomes when it is printed,
//! compared or dropped, which the engine does by recursion: a namespace may hold itself, a list that holds another one
//! twice, sixty times over, has 2^60 items, and the engine joins lists and maps lazily, one within the other.
//! Such values need a variable to grow in. So [the source](super::source) passes whatever a template stores to the
//! filters of this file, which refuse values that are too deep or too large and replace lazy lists and maps by plain ones.

use std::fmt;

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// The filter of a value that a variable gets.
pub(super) const STORED: &str = "stored__";

/// The filter of a value that an attribute of a namespace gets.
pub(super) const ATTRIBUTE: &str = "attribute__";

/// The variable that holds the most bytes of a value.
pub(super) const MOST_BYTES: &str = "most_bytes__";

/// The most lists and maps within each other.
pub(super) const MOST_DEPTH: usize = 200;

/// The bytes of a number, or of an item's place in a list.
const ITEM: usize = 32;

/// Bounds a value that a variable gets.
pub(super) fn stored(state: &State, value: Value) -> Result<Value, Error> {
    bounded(state, value, false)
}

/// Bounds a value that an attribute of a namespace gets. It may hold no namespace, since that could be the same one, and
/// nothing that may hold one unseen, such as a loop.
pub(super) fn attribute(state: &State, value: Value) -> Result<Value, Error> {
    bounded(state, value, true)
}

/// Returns the most bytes of a value, and of a text.
pub(super) fn most_bytes(state: &State) -> usize {
    state.lookup(MOST_BYTES).and_then(|most| most.as_usize()).unwrap_or(usize::MAX)
}

/// The error of a text or a value that is too large. It has the kind of the engine's own bound.
pub(super) fn too_large(most: usize) -> Error {
    let detail = format!(
        "it makes a value of more than {most} bytes, or one nested more than {MOST_DEPTH} deep, which no conversation \
         needs"
    );
    Error::new(ErrorKind::OutOfFuel, detail)
}

fn bounded(state: &State, value: Value, to_attribute: bool) -> Result<Value, Error> {
    let most = most_bytes(state);
    if value.as_object().is_none() {
        let fits = value.as_str().is_none_or(|text| text.len() <= most);
        return if fits { Ok(value) } else { Err(too_large(most)) };
    }
    let mut walk = Walk { left: most, most, to_attribute };
    let plain = walk.plain(&value, 0)?;
    // Walking is work that the engine does not count.
    state.consume_fuel(((most - walk.left) / (16 * ITEM)) as u64)?;
    Ok(plain.unwrap_or(value))
}

/// What a value is to a walk.
enum Nature {
    List,
    Tuple,
    /// A list that is computed when it is read.
    Lazy,
    Map,
    /// A map that looks in others when it is read.
    LazyMap,
    Namespace,
    /// A function or a macro, which holds no values.
    Callable,
    /// An object of the engine that may hold values, such as a loop.
    Other,
}

impl Nature {
    /// `None` of a value that holds no others. The engine's own types are private, so their names tell them.
    fn of(value: &Value) -> Option<Self> {
        let name = value.as_object()?.type_name();
        Some(match value.kind() {
            ValueKind::Seq if value.is_tuple() => Self::Tuple,
            ValueKind::Seq if name.ends_with("::MergeSeq") => Self::Lazy,
            // A group of `groupby` is a list with names, which must stay.
            ValueKind::Seq => Self::List,
            ValueKind::Iterable => Self::Lazy,
            ValueKind::Map if name.ends_with("::Namespace") => Self::Namespace,
            ValueKind::Map if name.ends_with("::Macro") => Self::Callable,
            ValueKind::Map if name.contains("Map<") => Self::Map,
            ValueKind::Map if name.ends_with("::MergeDict") => Self::LazyMap,
            ValueKind::Plain if name.ends_with("::BoxedFunction") => Self::Callable,
            _ => Self::Other,
        })
    }
}

/// Returns whether a value is what `namespace()` makes.
pub(super) fn is_namespace(value: &Value) -> bool {
    matches!(Nature::of(value), Some(Nature::Namespace))
}

/// Returns whether a value is a map, and not another object of the engine with attributes.
pub(super) fn is_map(value: &Value) -> bool {
    matches!(Nature::of(value), Some(Nature::Map | Nature::LazyMap))
}

/// Returns whether a value is a function or a macro. In Jinja2, undefined values are callable too.
pub(super) fn is_callable(value: &Value) -> bool {
    value.is_undefined() || matches!(Nature::of(value), Some(Nature::Callable))
}

/// A walk through all that a value holds, as often as it holds it.
struct Walk {
    /// The bytes that are left.
    left: usize,
    most: usize,
    to_attribute: bool,
}

impl Walk {
    /// Returns the value with lazy lists and maps replaced, or `None` if it has none.
    fn plain(&mut self, value: &Value, depth: usize) -> Result<Option<Value>, Error> {
        let bytes = ITEM + value.as_str().map_or(0, str::len);
        self.left = self.left.checked_sub(bytes).ok_or_else(|| too_large(self.most))?;
        let Some(nature) = Nature::of(value) else { return Ok(None) };
        if depth > MOST_DEPTH {
            return Err(too_large(self.most));
        }
        match nature {
            Nature::Callable => Ok(None),
            Nature::Namespace | Nature::Other if self.to_attribute => {
                let reason =
                    "an attribute of a namespace cannot hold a namespace or a loop, which could be its own";
                Err(Error::new(ErrorKind::InvalidOperation, reason))
            }
            Nature::Other => Ok(None),
            Nature::List | Nature::Tuple | Nature::Lazy => {
                let mut items = Vec::new();
                let mut changed = matches!(nature, Nature::Lazy);
                for item in value.try_iter()?.checked() {
                    let item = item?;
                    let plain = self.plain(&item, depth + 1)?;
                    changed |= plain.is_some();
                    items.push(plain.unwrap_or(item));
                }
                Ok(changed.then(|| match nature {
                    Nature::Tuple => Value::from(Tuple::from(items)),
                    _ => Value::from(items),
                }))
            }
            Nature::Map | Nature::LazyMap | Nature::Namespace => {
                let mut pairs = Vec::new();
                let mut changed = matches!(nature, Nature::LazyMap);
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    let item = value.get_item(&key)?;
                    self.plain(&key, depth + 1)?;
                    let plain = self.plain(&item, depth + 1)?;
                    changed |= plain.is_some();
                    pairs.push((key, plain.unwrap_or(item)));
                }
                // What a namespace holds was stored in it, and is plain.
                let is_map = !matches!(nature, Nature::Namespace);
                Ok((changed && is_map).then(|| Value::from_pairs(pairs)))
            }
        }
    }
}

/// A text of a bounded number of bytes.
pub(super) struct Bounded<W> {
    out: W,
    left: usize,
}

impl<W: fmt::Write> Bounded<W> {
    pub(super) fn new(out: W, most: usize) -> Self {
        Self { out, left: most }
    }
}

impl<W: fmt::Write> fmt::Write for Bounded<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.out.write_str(text)
    }
}
