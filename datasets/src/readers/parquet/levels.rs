//! Measures the lists of a page from its packed levels.

use super::thrift::Compact;

/// Returns the largest number of values in any list of a page, including those of nested lists, or `None` if the levels
/// are damaged.
///
/// `levels` are the repetition levels in Parquet's hybrid of run lengths and packed bits
/// (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>): level 0 begins a record. `open` counts the
/// values of the list that continues from page to page.
pub(super) fn longest_list(levels: &[u8], max_level: i16, values: u64, open: &mut u64) -> Option<u64> {
    let width = (i16::BITS - max_level.leading_zeros()) as usize;
    let mut rest = levels;
    let mut left = values;
    let mut longest = *open;
    while left > 0 {
        let mut head = Compact::new(rest);
        let run = head.varint().ok()?;
        rest = rest.get(head.position()..)?;
        if run & 1 == 0 {
            let (level, after) = rest.split_at_checked(width.div_ceil(8))?;
            let count = (run >> 1).min(left);
            let begins = level.iter().all(|&byte| byte == 0);
            // In a run of beginnings, each list has one value.
            *open = if begins && count > 0 { 1 } else { open.saturating_add(count) };
            longest = longest.max(*open);
            left -= count;
            rest = after;
        } else {
            let groups = usize::try_from(run >> 1).ok()?;
            let bytes = groups.checked_mul(width)?.min(rest.len());
            let (packed, after) = rest.split_at(bytes);
            let count = ((bytes * 8 / width) as u64).min(left);
            for index in 0..count as usize {
                let is_set = |bit: usize| packed.get(bit / 8).is_some_and(|byte| byte >> (bit % 8) & 1 == 1);
                let goes_on = (index * width..(index + 1) * width).any(is_set);
                *open = if goes_on { open.saturating_add(1) } else { 1 };
                longest = longest.max(*open);
            }
            if count == 0 && groups > 0 {
                return None;
            }
            left -= count;
            rest = after;
        }
    }
    Some(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_bits() {
        // One beginning and 511 continuations, twice.
        let runs = [0x02, 0, 0xfe, 0x07, 1].repeat(2);
        let mut open = 0;
        assert_eq!(longest_list(&runs, 1, 1024, &mut open), Some(512));
        assert_eq!(open, 512);
        // The list continues in the next page: six more values, a beginning, one more value.
        assert_eq!(longest_list(&[0x03, 0b1011_1111], 1, 8, &mut open), Some(518));
        assert_eq!(open, 2);
        // Levels of two bits each: 2, 0, 1, 2, 0, 0, 0, 3.
        assert_eq!(longest_list(&[0x03, 0b1001_0010, 0b1100_0000], 3, 8, &mut 0), Some(3));
    }

    #[test]
    fn a_huge_run() {
        let mut run = vec![0xfe, 0xff, 0xff, 0xff, 0x0f, 1];
        // The levels end one value before the page does.
        assert_eq!(longest_list(&run, 1, 1 << 31, &mut 0), None);
        run.extend([0x02, 0]);
        assert_eq!(longest_list(&run, 1, 1 << 31, &mut 0), Some((1 << 31) - 1));
    }

    #[test]
    fn damaged() {
        for levels in [[].as_slice(), &[0x02], &[0xff; 11], &[0x03]] {
            assert_eq!(longest_list(levels, 1, 8, &mut 0), None, "{levels:?}");
        }
    }
}
