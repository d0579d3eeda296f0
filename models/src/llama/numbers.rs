//! Numbers of `config.json` that only some models have.

use serde_json::{Map, Value};

use super::kind::LlamaLine;
use crate::pretrained::PretrainedError;

/// Returns a number of a model. `None` if it is null, or if it is absent and has no default.
///
/// # Errors
///
/// The field holds something else.
pub(super) fn number(
    kind: LlamaLine,
    fields: &Map<String, Value>,
    name: &'static str,
) -> Result<Option<f64>, PretrainedError> {
    match fields.get(name) {
        None => Ok(kind.default_of(name)),
        Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(PretrainedError::setting(name, "a number", value)),
        },
    }
}
