//! Longest common subsequences.

/// Where to go back from a cell of the table of lengths.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    /// The last items are equal and belong to the subsequence.
    Both,
    /// Drop the last item of the second sequence.
    Second,
    /// Drop the last item of the first sequence.
    First,
}

/// Returns the indices in `first` of one longest common subsequence, in descending order.
///
/// Among several, it chooses the one that `rouge_score` chooses, because ROUGE-Lsum depends on it. Time and memory
/// are proportional to the product of the lengths.
pub(crate) fn common_places<T: PartialEq>(first: &[T], second: &[T]) -> Vec<usize> {
    let mut steps: Vec<Vec<Step>> = Vec::with_capacity(first.len());
    lengths(first, second, |row| steps.push(row.to_vec()));
    let (mut places, mut column) = (Vec::new(), second.len());
    let mut row = first.len();
    while let (Some(above), Some(left)) = (row.checked_sub(1), column.checked_sub(1)) {
        match steps.get(above).and_then(|steps| steps.get(left)) {
            Some(Step::Both) => {
                places.push(above);
                (row, column) = (above, left);
            }
            Some(Step::Second) => column = left,
            Some(Step::First) | None => row = above,
        }
    }
    places
}

/// Returns the length of the longest common subsequences.
pub(crate) fn common_length<T: PartialEq>(first: &[T], second: &[T]) -> usize {
    lengths(first, second, |_| {})
}

/// Computes the table of lengths row by row and passes the steps of each row on.
fn lengths<T: PartialEq>(first: &[T], second: &[T], mut each_row: impl FnMut(&[Step])) -> usize {
    let mut lengths = vec![0; second.len()];
    let mut steps = vec![Step::First; second.len()];
    for item in first {
        let (mut diagonal, mut left) = (0, 0);
        for ((length, step), other) in lengths.iter_mut().zip(&mut steps).zip(second) {
            let above = *length;
            (*length, *step) = if item == other {
                (diagonal + 1, Step::Both)
            } else if left > above {
                (left, Step::Second)
            } else {
                (above, Step::First)
            };
            (diagonal, left) = (above, *length);
        }
        each_row(&steps);
    }
    lengths.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ties_follow_rouge_score() {
        assert_eq!(common_places(b"abcd", b"bdac"), [2, 0]);
        assert_eq!(common_places(b"abab", b"ba"), [2, 1]);
        assert_eq!(common_places(b"", b"a"), [0; 0]);
        assert_eq!(common_places(b"a", b""), [0; 0]);
    }

    proptest! {
        #[test]
        fn places_are_a_common_subsequence_of_that_length(first in "[abc]{0,12}", second in "[abc]{0,12}") {
            let (first, second) = (first.as_bytes(), second.as_bytes());
            let mut places = common_places(first, second);
            places.reverse();
            prop_assert_eq!(places.len(), common_length(first, second));
            prop_assert!(places.is_sorted_by(|a, b| a < b));
            let mut rest = second.iter();
            for place in places {
                prop_assert!(rest.any(|item| *item == first[place]));
            }
            // No longer subsequence of the first is one of the second.
            let longest = (0_u32..1 << first.len())
                .filter(|chosen| {
                    let mut rest = second.iter();
                    (0..first.len()).filter(|place| chosen >> place & 1 == 1).all(|place| rest.any(|item| *item == first[place]))
                })
                .map(u32::count_ones)
                .max();
            prop_assert_eq!(longest, Some(common_length(first, second) as u32));
        }
    }
}
