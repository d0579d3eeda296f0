//! Reads numbers of a few bits each, packed without gaps, the lowest bits first.

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
