//! Counts n-grams.

use std::collections::HashMap;
use std::hash::Hash;

/// The n-grams of a sequence and their counts.
pub(crate) type Ngrams<'a, T> = HashMap<&'a [T], u64>;

/// Counts the n-grams of this order, from 1.
pub(crate) fn ngrams<T: Eq + Hash>(items: &[T], order: usize) -> Ngrams<'_, T> {
    let mut counts = Ngrams::new();
    for ngram in items.windows(order.max(1)) {
        *counts.entry(ngram).or_default() += 1;
    }
    counts
}

/// Counts the n-grams that two sequences share, each with the smaller of its two counts.
pub(crate) fn common<T: Eq + Hash>(first: &Ngrams<'_, T>, second: &Ngrams<'_, T>) -> u64 {
    first.iter().filter_map(|(ngram, &count)| Some(count.min(*second.get(ngram)?))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_ngrams_are_clipped() {
        let (first, second) = (['a', 'a', 'a', 'b'], ['a', 'a', 'b', 'b']);
        assert_eq!(common(&ngrams(&first, 1), &ngrams(&second, 1)), 3);
        assert_eq!(common(&ngrams(&first, 2), &ngrams(&second, 2)), 2);
        assert_eq!(ngrams(&first, 2)[&['a', 'a'][..]], 2);
        assert!(ngrams(&first, 5).is_empty());
    }
}
