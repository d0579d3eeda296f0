//! Filters and tests as Jinja2 has them, where the engine's differ.

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::globals;

use super::{bounds, methods, python, wordwrap};
use super::{
    html::{self, escape},
    python::{arguments, string, whole},
};

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
    environment.add_filter("center", center);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordwrap", wordwrap::wordwrap);
    environment.add_filter("filesizeformat", filesizeformat);
    environment.add_filter("forceescape", html::force_escape);
    environment.add_filter("striptags", html::striptags);
    environment.add_filter("xmlattr", html::xmlattr);
    environment.add_filter("urlize", html::urlize);
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

/// Puts a text in the middle of a number of characters.
fn center(state: &State, value: Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [width] = arguments(given, ["width"])?;
    let width = width.map_or(Ok(80), |width| whole(&width))?;
    let is_safe = value.is_safe();
    let text = methods::centered(&string(state, value)?, usize::try_from(width).unwrap_or(0), ' ')?;
    Ok(if is_safe { Value::from_safe_string(text) } else { text.into() })
}

/// Cuts a text that is longer than a number of characters, at a space unless `killwords` is set. The library's filter has
/// arguments with names only.
fn truncate(state: &State, value: Value, given: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [length, killwords, end, leeway] = arguments(given, ["length", "killwords", "end", "leeway"])?;
    let length = length.map_or(Ok(255), |length| whole(&length))?;
    let leeway = leeway.filter(|leeway| !leeway.is_none()).map_or(Ok(5), |leeway| whole(&leeway))?;
    let end = end.unwrap_or_else(|| "...".into());
    let wrong = |detail: &str| Error::new(ErrorKind::InvalidOperation, detail.to_owned());
    let end_text = end.as_str().ok_or_else(|| wrong("`end` must be a text"))?;
    let kept = length - i64::try_from(end_text.chars().count()).unwrap_or(i64::MAX);
    let Ok(kept) = usize::try_from(kept) else {
        return Err(wrong("`length` must be at least the length of `end`"));
    };
    if leeway < 0 {
        return Err(wrong("`leeway` must be at least 0"));
    }
    // As in Python, whatever has a length can be short enough.
    let found = match value.as_str() {
        Some(text) => Some(text.chars().count()),
        None if value.is_undefined() => Some(0),
        None if is_sequence(&value) => value.len(),
        None => None,
    };
    let found = found.ok_or_else(|| wrong(&format!("a {} has no length", value.kind())))?;
    if i64::try_from(found).is_ok_and(|found| found <= length.saturating_add(leeway)) {
        return Ok(value);
    }
    let text = value.as_str().ok_or_else(|| wrong("only texts are cut"))?;
    let cut = text.char_indices().nth(kept).map_or(text, |(at, _)| &text[..at]);
    let cut = match killwords.is_some_and(|killwords| killwords.is_true()) {
        true => cut,
        false => cut.rsplit_once(' ').map_or(cut, |(before, _)| before),
    };
    Ok(match value.is_safe() {
        true => Value::from_safe_string(format!("{cut}{}", escape(state, end.clone())?)),
        false => format!("{cut}{end_text}").into(),
    })
}

/// Writes a number of bytes. Unlike the library's filter, it writes whole bytes, and a negative number as bytes.
fn filesizeformat(state: &State, value: Value, given: Rest<ValueOrKwargs>) -> Result<String, Error> {
    let [binary] = arguments(given, ["binary"])?;
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let written = match value.kind() {
        ValueKind::Bool => i32::from(value.is_true()).to_string(),
        _ => string(state, value)?,
    };
    let wrong = || Error::new(ErrorKind::InvalidOperation, format!("{written:?} is not a number of bytes"));
    let bytes: f64 = written.trim().parse().map_err(|_| wrong())?;
    let (base, suffix) = if is_binary { (1024.0, "iB") } else { (1000.0, "B") };
    if bytes == 1.0 {
        return Ok("1 Byte".into());
    }
    if bytes < base {
        // Python has no whole number for an infinite one. The sum makes -0 a 0.
        return if bytes.is_finite() {
            Ok(format!("{:.0} Bytes", bytes.trunc() + 0.0))
        } else {
            Err(wrong())
        };
    }
    let prefixes = if is_binary { "KMGTPEZY" } else { "kMGTPEZY" };
    let units = prefixes.chars().zip(2..).map(|(prefix, power)| (prefix, base.powi(power)));
    let last = ('Y', base.powi(9));
    let (prefix, unit) = units.into_iter().find(|(_, unit)| bytes < *unit).unwrap_or(last);
    let amount = base * bytes / unit;
    // Python writes what is not finite in small letters.
    let amount = if amount.is_nan() { "nan".into() } else { format!("{amount:.1}") };
    Ok(format!("{amount} {prefix}{suffix}"))
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
