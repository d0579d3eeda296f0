//! Fields of records, as JSON.

use firebrick_datasets::{Record, Value as Field};
use serde_json::{Value, json};

/// Returns the value of a record's field as JSON, if the record has it.
pub fn record_json(record: &Record, field: &str) -> Option<Value> {
    record.get(field).map(json_of)
}

/// Returns a value as JSON.
pub(super) fn json_of(field: &Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => json!(value),
        Field::Integer(value) => json!(value),
        Field::Float(value) => json!(value),
        Field::Text(value) => json!(value),
        Field::List(values) => values.iter().map(json_of).collect(),
        Field::Map(values) => {
            Value::Object(values.iter().map(|(name, value)| (name.clone(), json_of(value))).collect())
        }
    }
}
