//! Which segments to recompute so that the rest fits a number of bytes.

use std::collections::{BTreeMap, HashSet};

/// Keeps what fits into `bytes`, and recomputes as few segments as possible.
///
/// What a segment would keep is not known until it has run. So each one is recomputed at first, which
/// needs the least, and is measured when it runs again in the backward pass, one at a time. From then
/// on the choice stands, until a segment is given a larger input than was measured: that one is
/// recomputed and measured anew.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    costs: BTreeMap<u64, Cost>,
    chosen: Option<HashSet<u64>>,
}

/// What a segment holds from the forward to the backward pass, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Where it is recomputed: its inputs.
    pub input: usize,
    /// Where it is not: all that its operations save.
    pub kept: usize,
}

/// The budget is too small: even with every segment recomputed so many bytes are needed.
#[derive(Debug, PartialEq)]
pub(crate) struct Needs(pub usize);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, costs: BTreeMap::new(), chosen: None }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether this segment is to be recomputed.
    pub fn recomputes(&mut self, segment: u64, input: usize) -> Result<bool, Needs> {
        if self.costs.get(&segment).is_none_or(|known| input > known.input) {
            return Ok(true);
        }
        if self.chosen.is_none() {
            self.chosen = Some(self.choose()?);
        }
        Ok(self.chosen.as_ref().is_some_and(|chosen| chosen.contains(&segment)))
    }

    /// Takes down what a segment was measured to hold.
    pub fn learn(&mut self, segment: u64, cost: Cost) {
        if self.costs.get(&segment).is_none_or(|known| cost.input > known.input) {
            self.costs.insert(segment, cost);
            self.chosen = None;
        }
    }

    /// The fewest segments are those that save most.
    fn choose(&self) -> Result<HashSet<u64>, Needs> {
        let saving = |cost: &Cost| cost.kept.saturating_sub(cost.input);
        let mut held: usize = self.costs.values().map(|cost| cost.kept).sum();
        let mut by_saving: Vec<_> = self.costs.iter().collect();
        by_saving.sort_by_key(|(segment, cost)| (std::cmp::Reverse(saving(cost)), **segment));
        let mut chosen = HashSet::new();
        for (segment, cost) in by_saving {
            if held <= self.bytes {
                break;
            }
            held -= saving(cost);
            chosen.insert(*segment);
        }
        if held <= self.bytes { Ok(chosen) } else { Err(Needs(held)) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(bytes: usize, costs: &[(usize, usize)]) -> Budget {
        let mut budget = Budget::new(bytes);
        for (segment, &(input, kept)) in costs.iter().enumerate() {
            assert_eq!(budget.recomputes(segment as u64, input), Ok(true), "nothing is known yet");
            budget.learn(segment as u64, Cost { input, kept });
        }
        budget
    }

    #[test]
    fn as_few_as_fit_and_those_that_save_most() {
        let costs = [(1, 10), (1, 30), (1, 20)];
        for (bytes, expected) in
            [(60, vec![]), (59, vec![1]), (31, vec![1]), (30, vec![1, 2]), (3, vec![0, 1, 2])]
        {
            let mut budget = measured(bytes, &costs);
            let chosen: Vec<_> = (0..3).filter(|segment| budget.recomputes(*segment, 1).unwrap()).collect();
            assert_eq!(chosen, expected, "{bytes} bytes");
        }
        assert_eq!(measured(2, &costs).recomputes(0, 1), Err(Needs(3)));
    }

    #[test]
    fn a_larger_input_is_recomputed_and_measured_anew() {
        let mut budget = measured(100, &[(10, 40), (10, 40)]);
        assert_eq!(budget.recomputes(0, 10), Ok(false));
        assert_eq!(budget.recomputes(0, 20), Ok(true));
        budget.learn(0, Cost { input: 20, kept: 80 });
        assert_eq!(budget.recomputes(0, 20), Ok(true));
        assert_eq!(budget.recomputes(1, 10), Ok(false));
        // A smaller one changes nothing.
        budget.learn(0, Cost { input: 1, kept: 1 });
        assert_eq!(budget.recomputes(0, 20), Ok(true));
    }

    proptest! {
        #[test]
        fn no_smaller_choice_fits(
            costs in prop::collection::vec((0usize..20, 0usize..100), 1..8),
            bytes in 0usize..400,
        ) {
            let mut budget = measured(bytes, &costs);
            let held = |chosen: &dyn Fn(usize) -> bool| -> usize {
                let of = |(i, (input, kept)): (usize, &(usize, usize))| if chosen(i) { *input.min(kept) } else { *kept };
                costs.iter().enumerate().map(of).sum()
            };
            let fewest = (0u32..1 << costs.len())
                .filter(|set| held(&|i| set >> i & 1 == 1) <= bytes)
                .map(u32::count_ones)
                .min();
            let found: Result<Vec<_>, _> =
                costs.iter().enumerate().map(|(i, cost)| budget.recomputes(i as u64, cost.0)).collect();
            match found {
                Err(_) => prop_assert_eq!(fewest, None),
                Ok(found) => {
                    prop_assert!(held(&|i| found[i]) <= bytes);
                    prop_assert_eq!(Some(found.iter().filter(|is| **is).count() as u32), fewest);
                }
            }
        }
    }
}
