//! Finds column types that the parser cannot read: it panics at their values.

use parquet::{
    basic::{ConvertedType as Converted, Type as Physical},
    schema::types::Type,
};

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
