//! Columns of a tensor: ranges of its last axis, side by side.

use std::ops::Range;

/// Rejects ranges that are not columns of an axis of this length: at least one range, ascending and disjoint. A range
/// without columns stands alone.
pub(crate) fn check(columns: &[Range<usize>], length: usize) -> Result<(), String> {
    if columns.is_empty() {
        return Err("an empty list of columns".into());
    }
    // A list may be long, so the errors show only what is wrong with it.
    if let Some(wrong) = columns.iter().find(|range| range.start > range.end || range.end > length) {
        return Err(format!("columns {wrong:?} of {length}"));
    }
    if let Some(empty) = columns.iter().find(|range| range.is_empty()).filter(|_| columns.len() > 1) {
        return Err(format!("columns {empty:?}, which are none, in a list of {}", columns.len()));
    }
    match columns.windows(2).find(|pair| pair[0].end > pair[1].start) {
        Some(pair) => Err(format!("columns {:?} after columns {:?}", pair[1], pair[0])),
        None => Ok(()),
    }
}

/// Counts checked columns: at most the length of their axis.
pub(crate) fn count(columns: &[Range<usize>]) -> usize {
    columns.iter().map(ExactSizeIterator::len).sum()
}

/// Joins checked ranges that touch.
pub(crate) fn joined(columns: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined = Vec::<Range<usize>>::with_capacity(columns.len());
    for range in columns {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Columns that lie side by side in two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The number of columns before them in the first list.
    pub(crate) from: usize,
    /// The number of columns before them in the second list.
    pub(crate) to: usize,
    /// The number of columns.
    pub(crate) count: usize,
}

/// Returns the columns that two checked lists share, in as few runs as possible.
pub(crate) fn shared(first: &[Range<usize>], second: &[Range<usize>]) -> Vec<Run> {
    let mut runs = Vec::<Run>::new();
    let (mut ours, mut theirs) = (first.iter().peekable(), second.iter().peekable());
    let (mut from, mut to) = (0, 0);
    while let (Some(&our), Some(&their)) = (ours.peek(), theirs.peek()) {
        let (start, end) = (our.start.max(their.start), our.end.min(their.end));
        if start < end {
            let run =
                Run { from: from + start - our.start, to: to + start - their.start, count: end - start };
            match runs.last_mut() {
                Some(last) if (last.from + last.count, last.to + last.count) == (run.from, run.to) => {
                    last.count += run.count;
                }
                _ => runs.push(run),
            }
        }
        if our.end <= their.end {
            from += our.len();
            ours.next();
        } else {
            to += their.len();
            theirs.next();
        }
    }
    runs
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "columns are lists of ranges")]
mod tests {
    use super::*;

    #[test]
    fn columns_are_ascending_ranges_of_their_axis() {
        for right in [&[0..6][..], &[0..2, 2..4], &[1..2, 5..6], &[3..3], &[6..6]] {
            assert_eq!(check(right, 6), Ok(()), "{right:?}");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "that is one of the mistakes")]
        for (wrong, message) in [
            (&[][..], "an empty list of columns"),
            (&[4..7], "columns 4..7 of 6"),
            (&[0..1, 0..usize::MAX], "columns 0..18446744073709551615 of 6"),
            (&[3..2], "columns 3..2 of 6"),
            (&[7..7], "columns 7..7 of 6"),
            (&[0..1, 2..2], "columns 2..2, which are none, in a list of 2"),
            (&[2..4, 0..2], "columns 0..2 after columns 2..4"),
            (&[0..3, 2..4], "columns 2..4 after columns 0..3"),
            (&[0..3, 0..3], "columns 0..3 after columns 0..3"),
        ] {
            assert_eq!(check(wrong, 6), Err(message.into()), "{wrong:?}");
        }
    }

    #[test]
    fn ranges_that_touch_are_joined() {
        assert_eq!(joined(vec![0..1, 1..3, 4..5, 5..6]), [0..3, 4..6]);
        assert_eq!(joined(vec![2..2]), [2..2]);
    }

    #[test]
    fn shared_columns_are_found_in_few_runs() {
        let run = |from, to, count| Run { from, to, count };
        assert_eq!(shared(&[0..2, 4..6], &[0..6]), [run(0, 0, 2), run(2, 4, 2)]);
        assert_eq!(shared(&[0..6], &[1..2, 3..6]), [run(1, 0, 1), run(3, 1, 3)]);
        assert_eq!(shared(&[0..2, 4..6], &[0..2, 4..6]), [run(0, 0, 4)]);
        assert_eq!(shared(&[0..2, 2..6], &[1..3, 3..5]), [run(1, 0, 4)]);
        assert_eq!(shared(&[0..2], &[2..4]), []);
        assert_eq!(shared(&[3..3], &[0..6]), []);
    }
}
