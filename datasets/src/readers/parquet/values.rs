//! Converts Parquet's values to those of a record, and finds column types that the parser cannot read.

use parquet::basic::{ConvertedType as Converted, Type as Physical};
use parquet::record::Field;
use parquet::schema::types::Type;

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

/// Returns the unsupported type in a column or below it, or `None` if the column can be read.
pub(super) fn unread(column: &Type) -> Option<&'static str> {
    use Converted::{BSON, DATE, DECIMAL, ENUM, INTERVAL, JSON, NONE, TIME_MICROS, TIME_MILLIS, UTF8};
    use Converted::{INT_8, INT_16, INT_32, INT_64, TIMESTAMP_MICROS, TIMESTAMP_MILLIS};
    use Converted::{UINT_8, UINT_16, UINT_32, UINT_64};
    use Physical::{BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT32, INT64};

    if column.is_group() {
        return column.get_fields().iter().find_map(|field| unread(field));
    }
    match (column.get_physical_type(), column.get_basic_info().converted_type()) {
        (FIXED_LEN_BYTE_ARRAY | BYTE_ARRAY | INT32 | INT64, DECIMAL) => Some("a decimal number"),
        (FIXED_LEN_BYTE_ARRAY, NONE) | (BYTE_ARRAY, UTF8 | ENUM | JSON | BSON | NONE) => None,
        (FIXED_LEN_BYTE_ARRAY, INTERVAL) => Some("an interval"),
        (FIXED_LEN_BYTE_ARRAY | BYTE_ARRAY, _) => Some("bytes of an unknown type"),
        (INT32, INT_8 | INT_16 | INT_32 | UINT_8 | UINT_16 | UINT_32 | NONE | DATE | TIME_MILLIS) => None,
        (INT32, _) => Some("an unknown type of 32 bits"),
        (INT64, INT_64 | UINT_64 | NONE | TIME_MICROS | TIMESTAMP_MILLIS | TIMESTAMP_MICROS) => None,
        (INT64, _) => Some("an unknown type of 64 bits"),
        _ => None,
    }
}
