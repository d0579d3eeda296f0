//! Measures how long the texts of a page are, before they are copied.
//!
//! A dictionary keeps each text once, so a page of a few bytes can stand for any number of copies of a long one.

use super::{packed::unpacked, thrift::Compact};

/// Returns the length of each text: lengths of 4 bytes, each before its text. Stops at damage, which the parser reports.
pub(super) fn plain_lengths(mut data: &[u8]) -> Vec<u32> {
    let mut lengths = Vec::new();
    while let Some((length, rest)) = data.split_first_chunk() {
        let length = u32::from_le_bytes(*length);
        let Some(rest) = rest.get(length as usize..) else { break };
        lengths.push(length);
        data = rest;
    }
    lengths
}

/// Returns the sum of the lengths of the texts that a page takes from a dictionary of texts of these lengths, at most
/// `values` of them. Stops at damage, which the parser reports.
///
/// The page holds a width, and indices of that width in Parquet's hybrid of run lengths and packed bits
/// (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>).
pub(super) fn taken_bytes(data: &[u8], lengths: &[u32], values: u64) -> u64 {
    let Some((&width, mut rest)) = data.split_first() else { return 0 };
    let width = usize::from(width).min(32);
    let length_of = |index: u64| {
        let length = usize::try_from(index).ok().and_then(|index| lengths.get(index));
        u64::from(length.copied().unwrap_or(0))
    };
    let (mut sum, mut left) = (0_u64, values);
    while left > 0 {
        let mut head = Compact::new(rest);
        let Ok(run) = head.varint() else { break };
        rest = rest.get(head.position()..).unwrap_or_default();
        if run & 1 == 0 {
            let Some((index, after)) = rest.split_at_checked(width.div_ceil(8)) else { break };
            let index = index.iter().rev().fold(0, |index, &byte| index << 8 | u64::from(byte));
            let count = (run >> 1).min(left);
            sum = sum.saturating_add(count.saturating_mul(length_of(index)));
            (left, rest) = (left - count, after);
        } else {
            let bytes = usize::try_from(run >> 1).unwrap_or(usize::MAX).saturating_mul(width).min(rest.len());
            let (packed, after) = rest.split_at(bytes);
            if bytes == 0 {
                // Indices of no bits are all the first text.
                return sum.saturating_add(left.saturating_mul(if width == 0 { length_of(0) } else { 0 }));
            }
            let mut count = 0;
            for index in unpacked(packed, width).take(usize::try_from(left).unwrap_or(usize::MAX)) {
                sum = sum.saturating_add(length_of(index));
                count += 1;
            }
            (left, rest) = (left - count, after);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_before_texts() {
        assert_eq!(plain_lengths(b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc"), [1, 0, 2]);
        assert_eq!(plain_lengths(b"\x01\0\0\0a\xff\0\0\0b"), [1]);
        assert!(plain_lengths(b"\x01\0").is_empty());
    }

    #[test]
    fn runs_and_packed_bits() {
        let lengths = [10, 200, 3000];
        // Width 2: 500 times the index 2, then 8 packed indices: 0, 1, 2, 0, 0, 0, 0, 1.
        let data = [2, 0xe8, 0x07, 2, 0x03, 0b0010_0100, 0b0100_0000];
        assert_eq!(taken_bytes(&data, &lengths, 508), 500 * 3000 + 10 + 200 + 3000 + 40 + 200);
        assert_eq!(taken_bytes(&data, &lengths, 501), 500 * 3000 + 10);
        assert_eq!(taken_bytes(&data, &lengths, 4), 4 * 3000);
        // A dictionary of one text needs no bits.
        assert_eq!(taken_bytes(&[0, 0x90, 0x03], &[7], 200), 200 * 7);
        assert_eq!(taken_bytes(&[0, 0x03], &[7], 8), 8 * 7);
    }

    #[test]
    fn damaged() {
        for data in [&[][..], &[2], &[2, 0xff], &[2, 0x08], &[1, 0], &[99, 0x02, 1]] {
            assert_eq!(taken_bytes(data, &[5], 100), 0, "{data:?}");
        }
    }
}
