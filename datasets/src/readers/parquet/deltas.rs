//! Reads the number of lengths that a page of delta-encoded texts claims.

use parquet::basic::Encoding;

use super::thrift::{Compact, Unreadable};

/// Returns the largest number of lengths that the data of a page claims. The parser allocates room for that many.
///
/// Two encodings begin with delta-encoded lengths
/// (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>).
pub(super) fn claimed_lengths(data: &[u8], encoding: Encoding) -> Result<u64, Unreadable> {
    match encoding {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => Ok(Head::read(&mut Compact::new(data))?.count),
        Encoding::DELTA_BYTE_ARRAY => {
            let mut prefixes = Compact::new(data);
            let head = Head::read(&mut prefixes)?;
            head.pass_over(&mut prefixes)?;
            let suffixes = data.get(prefixes.position()..).ok_or(Unreadable)?;
            Ok(head.count.max(Head::read(&mut Compact::new(suffixes))?.count))
        }
        _ => Ok(0),
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
}

impl Head {
    fn read(data: &mut Compact) -> Result<Self, Unreadable> {
        let (block, parts, count) = (data.varint()?, data.varint()?, data.varint()?);
        data.varint()?; // the first number
        Ok(Self { part: block.checked_div(parts).filter(|&part| part > 0).ok_or(Unreadable)?, parts, count })
    }

    /// Skips to the end of the deltas.
    fn pass_over(&self, data: &mut Compact) -> Result<(), Unreadable> {
        let mut left = self.count.saturating_sub(1);
        while left > 0 {
            data.varint()?; // the least difference
            let widths = data.take(self.parts)?;
            for &width in widths {
                if left == 0 {
                    break;
                }
                let bits = self.part.checked_mul(width.into()).ok_or(Unreadable)?;
                data.take(bits / 8)?;
                left = left.saturating_sub(self.part);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lists_of_lengths() {
        // Blocks of 128 in 4 miniblocks. 34 prefixes: a block whose first miniblock takes 4 bytes and the second 8.
        // Then 200 suffixes.
        let mut data = vec![0x80, 1, 4, 34, 0, 0, 1, 2, 99, 99];
        data.extend([0xff; 12]);
        data.extend([0x80, 1, 4, 0xc8, 1, 0]);
        assert_eq!(claimed_lengths(&data, Encoding::DELTA_BYTE_ARRAY), Ok(200));
        assert_eq!(claimed_lengths(&data, Encoding::DELTA_LENGTH_BYTE_ARRAY), Ok(34));
        assert_eq!(claimed_lengths(&data, Encoding::PLAIN), Ok(0));
        data.truncate(20);
        assert_eq!(claimed_lengths(&data, Encoding::DELTA_BYTE_ARRAY), Err(Unreadable));
    }

    #[test]
    fn impossible_heads() {
        for head in [[0, 4, 9, 0], [8, 0, 9, 0], [1, 4, 9, 0]] {
            assert_eq!(claimed_lengths(&head, Encoding::DELTA_LENGTH_BYTE_ARRAY), Err(Unreadable));
        }
    }
}
