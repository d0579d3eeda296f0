//! Filters and tests as Jinja2 has them, where the engine's differ.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::globals;

use super::{bounds, python};

/// Adds the filters, tests and functions to an environment.
pub(super) fn add(environment: &mut Environment) {
    environment.add_filter("string", string);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_filter("upper", upper);
    environment.add_filter("lower", lower);
    environment.add_filter("title", title);
    environment.add_filter("capitalize", capitalize);
    environment.add_filter("trim", trim);
    environment.add_filter("join", join);
    environment.add_filter("wordcount", wordcount);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("mapping", bounds::is_map);
    environment.add_test("callable", bounds::is_callable);
    environment.add_function("joiner", globals::joiner);
    environment.add_function("cycler", cycler);
}

/// Takes its items as arguments, as Jinja2 does; the engine's takes a list.
fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    match items.is_empty() {
        true => Err(Error::new(ErrorKind::MissingArgument, "at least one item has to be provided")),
        false => globals::cycler(items.0),
    }
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

/// Escapes a text as MarkupSafe does, with the numbers of the quotes.
fn escape(state: &State, value: Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value);
    }
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

fn upper(state: &State, value: Value) -> Result<String, Error> {
    Ok(string(state, value)?.to_uppercase())
}

fn lower(state: &State, value: Value) -> Result<String, Error> {
    Ok(string(state, value)?.to_lowercase())
}

fn title(state: &State, value: Value) -> Result<String, Error> {
    Ok(filters::title(string(state, value)?.into()))
}

fn capitalize(state: &State, value: Value) -> Result<Value, Error> {
    let text = Value::from(string(state, value)?);
    Ok(filters::capitalize(StringInput::new(state, &text)?))
}

fn trim(state: &State, value: Value, characters: Option<String>) -> Result<String, Error> {
    let text = string(state, value)?;
    Ok(match characters {
        Some(characters) => text.trim_matches(|one: char| characters.contains(one)).to_owned(),
        None => text.trim().to_owned(),
    })
}

fn join(
    state: &mut State,
    value: Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    settings: Kwargs,
) -> Result<String, Error> {
    let separator: Option<Value> = match separator {
        Some(separator) => Some(separator),
        None => settings.get("d")?,
    };
    let attribute: Option<Value> = match attribute {
        Some(attribute) => Some(attribute),
        None => settings.get("attribute")?,
    };
    settings.assert_all_used()?;
    if !is_iterable(&value) {
        let detail = format!("a {} is not iterable", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, detail));
    }
    let value = match attribute {
        None => value,
        Some(attribute) => {
            let attribute = Kwargs::from_iter([("attribute", attribute)]);
            state.apply_filter("map", &[value, attribute.into()])?
        }
    };
    let separator = string(state, separator.unwrap_or_default())?;
    let most = bounds::most_bytes(state);
    let mut joined = String::new();
    for (at, item) in value.try_iter()?.checked().enumerate() {
        joined.push_str(if at > 0 { &separator } else { "" });
        python::text_of(&item?, most.saturating_sub(joined.len()), &mut joined)?;
    }
    Ok(joined)
}

/// Counts the words of a text: runs of what `\w` matches.
fn wordcount(state: &State, value: Value) -> Result<usize, Error> {
    let text = string(state, value)?;
    let words = text.split(|one: char| !one.is_alphanumeric() && one != '_');
    Ok(words.filter(|word| !word.is_empty()).count())
}

/// What `iter` takes in Python. Undefined values are empty; none is not iterable.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && !bounds::is_namespace(value) && value.try_iter().is_ok()
}

/// What has a length and numbered items in Python: texts, maps, and undefined values too.
fn is_sequence(value: &Value) -> bool {
    let has_items = matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Undefined);
    has_items || bounds::is_map(value)
}
