//! Finds column types that the parser cannot read: it panics at their values.

use parquet::{
    basic::{ConvertedType, Type as Physical},
    schema::types::Type,
};

/// Returns the unsupported type in a column or below it, or `None` if the column can be read.
pub(super) fn unread(column: &Type) -> Option<&'static str> {
    if column.is_group() {
        return column.get_fields().iter().find_map(|field| unread(field));
    }
    let info = column.get_basic_info();
    match (column.get_physical_type(), info.converted_type()) {
        (Physical::FIXED_LEN_BYTE_ARRAY | Physical::BYTE_ARRAY, ConvertedType::DECIMAL) => {
            Some("a decimal number")
        }
        (Physical::FIXED_LEN_BYTE_ARRAY, ConvertedType::NONE) => None,
        (Physical::FIXED_LEN_BYTE_ARRAY, ConvertedType::INTERVAL) => Some("an interval"),
        (Physical::FIXED_LEN_BYTE_ARRAY, _) => Some("bytes of an unknown type"),
        (Physical::BYTE_ARRAY, kind) => match kind {
            ConvertedType::UTF8
            | ConvertedType::ENUM
            | ConvertedType::JSON
            | ConvertedType::BSON
            | ConvertedType::NONE => None,
            _ => Some("bytes of an unknown type"),
        },
        (Physical::INT32, kind) => match kind {
            ConvertedType::INT_8
            | ConvertedType::INT_16
            | ConvertedType::INT_32
            | ConvertedType::NONE
            | ConvertedType::UINT_8
            | ConvertedType::UINT_16
            | ConvertedType::UINT_32
            | ConvertedType::DATE
            | ConvertedType::TIME_MILLIS => None,
            ConvertedType::DECIMAL => Some("a decimal number"),
            _ => Some("a type of 32 bits that is unknown"),
        },
        (Physical::INT64, kind) => match kind {
            ConvertedType::INT_64
            | ConvertedType::NONE
            | ConvertedType::UINT_64
            | ConvertedType::TIME_MICROS
            | ConvertedType::TIMESTAMP_MILLIS
            | ConvertedType::TIMESTAMP_MICROS => None,
            ConvertedType::DECIMAL => Some("a decimal number"),
            _ => Some("a type of 64 bits that is unknown"),
        },
        _ => None,
    }
}
