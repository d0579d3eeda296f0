//! Records of a TensorFlow file: bytes with their length and checksums.
//!
//! A record is its length in 8 bytes, the masked checksum of the length in 4 bytes, the data, and its masked checksum
//! in 4 bytes; all numbers are little-endian. The checksum is CRC-32C. See `tensorflow/core/lib/io/record_writer.h`
//! and, for the mask, `tensorflow/core/lib/hash/crc32c.h`.

use std::io::{self, Write};

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
