//! The operators of Jinja in which the engine differs from Python: `~` and `%`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::{bounds, python};

/// The filter that `a ~ b` becomes, of the list of its operands.
pub(super) const CONCAT: &str = "concat__";

/// The filter that `a % b` becomes.
pub(super) const REMAINDER: &str = "remainder__";

/// Returns the texts of values, one after the other.
pub(super) fn concat(state: &State, operands: Value) -> Result<String, Error> {
    let most = bounds::most_bytes(state);
    let mut joined = String::new();
    for operand in operands.try_iter()?.checked() {
        python::text_of(&operand?, most.saturating_sub(joined.len()), &mut joined)?;
    }
    Ok(joined)
}

/// Formats a text with values, as `'%s' % value` does, or returns the remainder of a division, which has the sign of the
/// divisor.
pub(super) fn remainder(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if left.kind() == ValueKind::String {
        return formatted(state, left, right);
    }
    let undefined = || {
        let detail = format!("there is no remainder of a {} and a {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, detail)
    };
    let is_number = |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(&left) || !is_number(&right) {
        return Err(undefined());
    }
    let is_whole = |value: &Value| value.kind() == ValueKind::Bool || value.is_integer();
    if is_whole(&left) && is_whole(&right) {
        let (left, right) = (i128::try_from(left.clone())?, i128::try_from(right.clone())?);
        let rest = left.checked_rem(right).ok_or_else(undefined)?;
        let rest = if rest != 0 && (rest < 0) != (right < 0) { rest + right } else { rest };
        return Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from));
    }
    let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    if right == 0.0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "a division by zero"));
    }
    let rest = left % right;
    Ok(Value::from(match rest {
        0.0 => 0.0_f64.copysign(right),
        _ if (rest < 0.0) != (right < 0.0) => rest + right,
        _ => rest,
    }))
}

/// Formats a text with the items of a tuple, or with one value.
fn formatted(state: &mut State, text: Value, value: Value) -> Result<Value, Error> {
    let form = text.as_str().unwrap_or_default().replace("%%", "");
    let is_named = form.contains("%(") && value.kind() == ValueKind::Map;
    // The engine writes lists, maps and large numbers in its own way, but knows the other conversions.
    let writes_texts = form.matches('%').count() == form.matches("%s").count();
    let values: Vec<Value> = match value.is_tuple() {
        true => value.try_iter()?.collect(),
        false => vec![value],
    };
    let most = bounds::most_bytes(state);
    let mut all = vec![text];
    for value in values {
        if (writes_texts || value.as_object().is_some()) && !is_named {
            let mut text = String::new();
            python::text_of(&value, most, &mut text)?;
            all.push(Value::from(text));
        } else {
            all.push(value);
        }
    }
    state.apply_filter("format", &all)
}
