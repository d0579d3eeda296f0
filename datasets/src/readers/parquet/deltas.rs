//! Reads how many lengths a page of delta-encoded texts claims, and how much its texts repeat.

use parquet::basic::Encoding;

use super::{
    packed::unpacked,
    thrift::{Compact, Unreadable},
};

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
