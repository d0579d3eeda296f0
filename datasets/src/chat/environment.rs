//! What a chat template can call: the environment of transformers.

use chrono::Local;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::{
    bounds::{self, Bounded},
    python::string,
};
use super::{expression, filters, generation, methods, python, rendering};

/// Returns the environment, without templates.
pub(super) fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(rendering::STEPS));
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| {
        let most = bounds::most_bytes(state);
        python::text(value, &mut Bounded::new(out, most)).map_err(|_| bounds::too_large(most))
    });
    filters::add(&mut environment);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    environment.add_filter(generation::FILTER, marked);
    environment.add_filter(expression::CONCAT, expression::concat);
    environment.add_filter(expression::REMAINDER, expression::remainder);
    environment.add_filter(bounds::STORED, bounds::stored);
    environment.add_filter(bounds::ATTRIBUTE, bounds::attribute);
    Ok(environment)
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Writes the local time.
fn strftime_now(format: String) -> Result<String, Error> {
    use std::fmt::Write;

    let mut text = String::new();
    let written = write!(text, "{}", Local::now().format(&format));
    written.map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("{format:?} is not a format of times"))
    })?;
    Ok(text)
}

fn tojson(state: &State, value: Value, indent: Option<Value>, settings: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = match indent {
        Some(indent) => Some(indent),
        None => settings.get("indent")?,
    };
    let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined());
    let separators: Option<Vec<String>> = settings.get("separators")?;
    let json = python::Json {
        indent: match indent {
            None => None,
            Some(indent) => match indent.as_str() {
                Some(text) => Some(text.to_owned()),
                None => Some(" ".repeat(usize::try_from(indent)?.min(MOST_INDENT))),
            },
        },
        ascii: settings.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: settings.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => None,
            Some([item, name]) => Some((item.clone(), name.clone())),
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    "`separators` of tojson must be two texts",
                ));
            }
        },
        most: bounds::most_bytes(state),
    };
    settings.assert_all_used()?;
    json.dumps(&value)
}

/// More spaces are a mistake.
const MOST_INDENT: usize = 64;

/// Puts marks around what the assistant wrote.
fn marked(state: &State, text: Value) -> Result<Value, Error> {
    let Some(marks) = state.lookup(generation::MARKS) else { return Ok(text) };
    let mut marks = marks.as_str().unwrap_or_default().chars();
    match (marks.next(), marks.next()) {
        (Some(start), Some(end)) => Ok(format!("{start}{}{end}", string(state, text)?).into()),
        _ => Ok(text),
    }
}
