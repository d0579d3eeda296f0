//! Fields of `config.json` whose defaults depend on the model type.

use serde_json::{Map, Value};

/// Adds the fields of a `config.json` that are absent and in `defaults` of its `model_type`.
pub(crate) fn with_defaults(
    mut fields: Map<String, Value>,
    defaults: fn(&str) -> Vec<(&'static str, Value)>,
) -> Map<String, Value> {
    let model_type = fields.get("model_type").and_then(Value::as_str).unwrap_or_default();
    for (name, value) in defaults(model_type) {
        fields.entry(name).or_insert(value);
    }
    fields
}
