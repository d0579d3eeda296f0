//! Arguments of filters, by place or by name, as Python has them.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};

use super::{bounds, python};

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
    python::text_of(&value, bounds::most_bytes(state), &mut text)?;
    if value.as_object().is_some() {
        // The engine counts a text that a filter gets, but not one that it makes of another value.
        state.consume_fuel(text.len() as u64 / 64)?;
    }
    Ok(text)
}
