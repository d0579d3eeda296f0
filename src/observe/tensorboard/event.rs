//! Events as protocol buffers, encoded by hand, since a run writes only these few fields, and the records that hold them.
//!
//! | message | field | number | type |
//! |---|---|---|---|
//! | `Event` | `wall_time` | 1 | double |
//! | | `step` | 2 | int64 |
//! | | `file_version` | 3 | string |
//! | | `summary` | 5 | `Summary` |
//! | | `session_log` | 7 | `SessionLog` |
//! | `Summary` | `value` | 1 | repeated `Value` |
//! | `Value` | `tag` | 1 | string |
//! | | `simple_value` | 2 | float |
//! | | `tensor` | 8 | `TensorProto` |
//! | | `metadata` | 9 | `SummaryMetadata` |
//! | `SummaryMetadata` | `plugin_data` | 1 | `PluginData` |
//! | `PluginData` | `plugin_name` | 1 | string |
//! | `TensorProto` | `dtype` | 1 | enum, 7 is a string |
//! | | `tensor_shape` | 2 | `TensorShapeProto` |
//! | | `string_val` | 8 | repeated bytes |
//! | `TensorShapeProto` | `dim` | 2 | repeated `Dim` |
//! | `Dim` | `size` | 1 | int64 |
//! | `SessionLog` | `status` | 1 | enum, 1 is a start |
//!
//! The numbers are those of TensorFlow's `event.proto`, `summary.proto`, `tensor.proto` and `tensor_shape.proto`.
//!
//! A record is its length in 8 bytes, the masked checksum of the length in 4 bytes, the data, and its masked checksum
//! in 4 bytes; all numbers are little-endian. The checksum is CRC-32C. See `tensorflow/core/lib/io/record_writer.h`
//! and, for the mask, `tensorflow/core/lib/hash/crc32c.h`.

use std::io::{self, Write};

/// The version at the start of every file.
const FILE_VERSION: &str = "brain.Event:2";
const DT_STRING: u64 = 7;
const SESSION_START: u64 = 1;

/// The first event of a file.
pub(crate) fn file_version(wall_time: f64) -> Vec<u8> {
    let mut event = Message::event(wall_time, 0);
    event.bytes(3, FILE_VERSION.as_bytes());
    event.0
}

/// Marks the start of a run, or its continuation: TensorBoard drops the events of earlier files from this step on.
pub(crate) fn session_start(wall_time: f64, step: u64) -> Vec<u8> {
    let mut session = Message::default();
    session.varint(1, SESSION_START);
    let mut event = Message::event(wall_time, step);
    event.message(7, &session);
    event.0
}

/// Numbers of one step by tag.
pub(crate) fn scalars<T: AsRef<str>>(wall_time: f64, step: u64, values: &[(T, f64)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, number) in values {
        let mut value = Message::default();
        value.bytes(1, tag.as_ref().as_bytes());
        value.float(2, *number as f32);
        summary.message(1, &value);
    }
    let mut event = Message::event(wall_time, step);
    event.message(5, &summary);
    event.0
}

/// A text, which TensorBoard shows as Markdown.
pub(crate) fn text(wall_time: f64, step: u64, tag: &str, text: &str) -> Vec<u8> {
    let mut plugin = Message::default();
    plugin.bytes(1, b"text");
    let mut metadata = Message::default();
    metadata.message(1, &plugin);

    let mut dimension = Message::default();
    dimension.varint(1, 1);
    let mut shape = Message::default();
    shape.message(2, &dimension);
    let mut tensor = Message::default();
    tensor.varint(1, DT_STRING);
    tensor.message(2, &shape);
    tensor.bytes(8, text.as_bytes());

    let mut value = Message::default();
    value.bytes(1, tag.as_bytes());
    value.message(8, &tensor);
    value.message(9, &metadata);
    let mut summary = Message::default();
    summary.message(1, &value);
    let mut event = Message::event(wall_time, step);
    event.message(5, &summary);
    event.0
}

/// The wire types of protocol buffers.
const VARINT: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// An encoded message.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Starts an event.
    fn event(wall_time: f64, step: u64) -> Self {
        let mut event = Self::default();
        event.key(1, EIGHT_BYTES);
        event.0.extend(wall_time.to_le_bytes());
        if step > 0 {
            // Positive int64 values have the same encoding.
            event.varint(2, step.min(i64::MAX as u64));
        }
        event
    }

    fn key(&mut self, field: u64, wire: u64) {
        self.raw_varint(field << 3 | wire);
    }

    /// Seven bits per byte, low bits first; all bytes but the last have the high bit set.
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u64, value: u64) {
        self.key(field, VARINT);
        self.raw_varint(value);
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, FOUR_BYTES);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, BYTES);
        self.raw_varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }
}

/// Writes one record.
pub(crate) fn write_record(file: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    file.write_all(&length)?;
    file.write_all(&masked(&length).to_le_bytes())?;
    file.write_all(bytes)?;
    file.write_all(&masked(bytes).to_le_bytes())
}

/// The masked checksum, for data that may contain checksums itself.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_seven_bits_a_byte() {
        let encoded = |value| {
            let mut message = Message::default();
            message.raw_varint(value);
            message.0
        };
        // 300 is the example in the protocol buffers' encoding guide.
        assert_eq!(encoded(300), [0xac, 0x02]);
        assert_eq!((encoded(0), encoded(127), encoded(128)), (vec![0], vec![0x7f], vec![0x80, 1]));
        assert_eq!(encoded(i64::MAX as u64).len(), 9);
    }

    #[test]
    fn a_scalar_is_an_event_with_a_summary() {
        let event = scalars(1.0, 2, &[("a", 0.5)]);
        let mut expected = vec![0x09];
        expected.extend(1f64.to_le_bytes());
        expected.extend([0x10, 2, 0x2a, 10, 0x0a, 8, 0x0a, 1, b'a', 0x15]);
        expected.extend(0.5f32.to_le_bytes());
        assert_eq!(event, expected);
    }

    #[test]
    fn checksums_are_those_of_tensorflow() {
        // CRC-32C of these nine digits is 0xe3069283, the check value of its definition.
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"123456789"), 0xc78a_b0e5);
    }

    #[test]
    fn a_record_is_framed_by_length_and_checksums() {
        let mut file = Vec::new();
        write_record(&mut file, b"abc").unwrap();
        assert_eq!(file.len(), 8 + 4 + 3 + 4);
        assert_eq!(file[..8], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(file[8..12], masked(&file[..8]).to_le_bytes());
        assert_eq!(file[12..15], *b"abc");
        assert_eq!(file[15..], masked(b"abc").to_le_bytes());
    }
}
