//! Measures how long the texts of a page are, before they are copied.
//!
//! A dictionary keeps each text once, so a page of a few bytes can stand for any number of copies of a long one.

use parquet::basic::Encoding;

use super::thrift::{Compact, Unreadable};

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

/// The number of bytes that the values of a page may repeat from the values before them. Writers fill a page with 1 MiB,
/// so this allows values that share 98 % of their bytes.
pub(super) const REPEATED: u64 = 64 << 20;

/// What the delta-encoded lengths at the start of a page claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Claims {
    /// The largest number of lengths. The parser allocates room for that many.
    pub(super) lengths: u64,
    /// The bytes that values repeat from the values before them. The parser copies them.
    pub(super) repeated: u64,
}

/// Returns what the data of a page of this many values claims.
///
/// Two encodings begin with delta-encoded lengths
/// (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>).
pub(super) fn claims(data: &[u8], encoding: Encoding, values: u64) -> Result<Claims, Unreadable> {
    match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => {
            Ok(Claims { lengths: Head::read(&mut Compact::new(data))?.count, repeated: 0 })
        }
        Encoding::DELTA_BYTE_ARRAY => {
            let mut prefixes = Compact::new(data);
            let head = Head::read(&mut prefixes)?;
            if head.count > values {
                return Ok(Claims { lengths: head.count, repeated: 0 });
            }
            let repeated = head.sum(&mut prefixes)?;
            if repeated > REPEATED {
                return Ok(Claims { lengths: head.count, repeated });
            }
            let suffixes = data.get(prefixes.position()..).ok_or(Unreadable)?;
            let lengths = head.count.max(Head::read(&mut Compact::new(suffixes))?.count);
            Ok(Claims { lengths, repeated })
        }
        _ => Ok(Claims::default()),
    }
}

/// The header of delta-encoded numbers.
struct Head {
    /// The numbers in a miniblock.
    part: u64,
    /// The miniblocks in a block.
    parts: u64,
    /// The total count of numbers.
    count: u64,
    /// The first number.
    first: i64,
}

impl Head {
    fn read(data: &mut Compact) -> Result<Self, Unreadable> {
        let (block, parts, count) = (data.varint()?, data.varint()?, data.varint()?);
        let part = block.checked_div(parts).filter(|&part| part > 0).ok_or(Unreadable)?;
        Ok(Self { part, parts, count, first: data.zigzag()? })
    }

    /// Reads to the end of the deltas, and returns the sum of the numbers, or a part of it that is above [`REPEATED`].
    /// Negative numbers, which are damage, count as 0.
    fn sum(&self, data: &mut Compact) -> Result<u64, Unreadable> {
        let bytes = |number: i64| u64::try_from(number).unwrap_or(0);
        let mut left = self.count.saturating_sub(1);
        let mut number = self.first;
        let mut sum = if self.count > 0 { bytes(number) } else { 0 };
        while left > 0 {
            let least = data.zigzag()?;
            let widths = data.take(self.parts)?;
            for &width in widths {
                if left == 0 {
                    break;
                }
                let bits = self.part.checked_mul(width.into()).ok_or(Unreadable)?;
                let packed = data.take(bits / 8)?;
                let count = left.min(self.part);
                match usize::from(width) {
                    // No bytes bound the loop: numbers that no longer change the sum are not visited.
                    0 if number <= 0 && least <= 0 => {}
                    0 if least == 0 => sum = sum.saturating_add(count.saturating_mul(bytes(number))),
                    0 => {
                        for _ in 0..count {
                            number = number.wrapping_add(least);
                            sum = sum.saturating_add(bytes(number));
                            if sum > REPEATED || (number <= 0 && least <= 0) {
                                break;
                            }
                        }
                    }
                    width @ 1..=64 => {
                        for delta in unpacked(packed, width).take(count as usize) {
                            number = number.wrapping_add(least).wrapping_add(delta as i64);
                            sum = sum.saturating_add(bytes(number));
                        }
                    }
                    _ => return Err(Unreadable),
                }
                left -= count;
            }
            if sum > REPEATED {
                break;
            }
        }
        Ok(sum)
    }
}

/// Returns the numbers of `width` bits that fill some bytes. `width` is 1 to 64.
pub(super) fn unpacked(bytes: &[u8], width: usize) -> impl Iterator<Item = u64> {
    (0..bytes.len() * 8 / width.max(1)).map(move |index| {
        let mut number = 0;
        let mut have = 0;
        let mut bit = index * width;
        while have < width {
            let Some(byte) = bytes.get(bit / 8) else { break };
            let taken = (8 - bit % 8).min(width - have);
            let part = u64::from(byte >> (bit % 8)) & ((1 << taken) - 1);
            number |= part << have;
            have += taken;
            bit += taken;
        }
        number
    })
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

    #[test]
    fn two_lists_of_lengths() {
        // Blocks of 128 in 4 miniblocks of 32. 34 prefixes: 0, then 32 times 1 more than the one before, then 1 more
        // again: a block whose least difference is 1, whose first miniblock has no bits and whose second has one. Then
        // 200 suffixes.
        let mut data = vec![0x80, 1, 4, 34, 0, 2, 0, 1, 99, 99];
        data.extend([0; 4]);
        data.extend([0x80, 1, 4, 0xc8, 1, 0]);
        let repeated = (0..34_u64).sum();
        assert_eq!(claims(&data, Encoding::DELTA_BYTE_ARRAY, 1000), Ok(Claims { lengths: 200, repeated }));
        let lengths = Claims { lengths: 34, repeated: 0 };
        assert_eq!(claims(&data, Encoding::DELTA_LENGTH_BYTE_ARRAY, 1000), Ok(lengths));
        assert_eq!(claims(&data, Encoding::PLAIN, 1000), Ok(Claims::default()));
        data.truncate(12);
        assert_eq!(claims(&data, Encoding::DELTA_BYTE_ARRAY, 1000), Err(Unreadable));
    }

    #[test]
    fn impossible_heads() {
        for head in [[0, 4, 9, 0], [8, 0, 9, 0], [1, 4, 9, 0]] {
            assert_eq!(claims(&head, Encoding::DELTA_LENGTH_BYTE_ARRAY, 1000), Err(Unreadable));
        }
    }

    #[test]
    fn numbers_of_any_width() {
        let of = |bytes: &[u8], width| unpacked(bytes, width).collect::<Vec<_>>();
        assert_eq!(of(&[0b1000_1000, 0b1100_0110, 0b1111_1010], 3), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(of(&[0xff, 0x01, 0x02], 8), [255, 1, 2]);
        assert_eq!(of(&[0x34, 0x12, 0xff], 16), [0x1234]);
        assert_eq!(of(&[0xff; 8], 64), [u64::MAX]);
        assert_eq!(of(&[0b101], 1), [1, 0, 1, 0, 0, 0, 0, 0]);
        assert!(of(&[], 7).is_empty());
    }
}
