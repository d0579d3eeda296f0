//! Converts Parquet's values to those of a record.

use parquet::record::Field;

use crate::Value;

/// Converts a value, or returns the name of its type if it is unsupported.
pub(super) fn value(field: Field) -> Result<Value, &'static str> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => Value::Bool(value),
        Field::Byte(value) => Value::Integer(value.into()),
        Field::Short(value) => Value::Integer(value.into()),
        Field::Int(value) | Field::Date(value) | Field::TimeMillis(value) => Value::Integer(value.into()),
        Field::Long(value)
        | Field::TimeMicros(value)
        | Field::TimestampMillis(value)
        | Field::TimestampMicros(value) => Value::Integer(value),
        Field::UByte(value) => Value::Integer(value.into()),
        Field::UShort(value) => Value::Integer(value.into()),
        Field::UInt(value) => Value::Integer(value.into()),
        Field::ULong(value) => Value::Integer(i64::try_from(value).map_err(|_| "a whole number from 2^63")?),
        Field::Float16(value) => Value::Float(value.to_f64()),
        Field::Float(value) => Value::Float(value.into()),
        Field::Double(value) => Value::Float(value),
        Field::Decimal(_) => return Err("a decimal number"),
        Field::Str(text) => Value::Text(text),
        Field::Bytes(bytes) => {
            let text = str::from_utf8(bytes.data()).map_err(|_| "bytes that are not UTF-8")?;
            Value::Text(text.to_owned())
        }
        Field::Group(row) => {
            let named = |(name, field)| value(field).map(|value| (name, value));
            Value::Map(row.into_columns().into_iter().map(named).collect::<Result<_, _>>()?)
        }
        Field::ListInternal(list) => {
            let values = list.elements().iter().cloned().map(value);
            Value::List(values.collect::<Result<_, _>>()?)
        }
        Field::MapInternal(map) => {
            let named = |(key, field): &(Field, Field)| match value(key.clone())? {
                Value::Text(name) => value(field.clone()).map(|value| (name, value)),
                Value::Integer(number) => value(field.clone()).map(|value| (number.to_string(), value)),
                _ => Err("a map with keys that are not texts"),
            };
            Value::Map(map.entries().iter().map(named).collect::<Result<_, _>>()?)
        }
    })
}
