//! Chooses the segments to recompute, so that the others fit a number of bytes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};

/// Keeps the segments that fit into `bytes`, and recomputes as few as possible.
///
/// The size of a segment is unknown until it has run. Each segment is therefore recomputed at first, which needs the
/// least memory, and is measured when it runs again in the backward pass, one at a time. The choice then stands until
/// the input of a segment is larger along some axis than all measured inputs. That segment is recomputed and measured
/// again, and its largest measurement counts.
///
/// If it suffices, the first segments of a pass are recomputed: the others, later in the pass, are through with the
/// backward pass and hold nothing by then.
#[derive(Debug)]
pub struct Budget {
    bytes: usize,
    known: BTreeMap<u64, MeasuredSegment>,
    chosen: Option<HashSet<u64>>,
}

/// The measurements of a segment.
#[derive(Debug, Default)]
struct MeasuredSegment {
    cost: Cost,
    /// Segments measured before it. A backward pass measures the last segment first.
    place: usize,
    /// The shapes of the inputs that were measured.
    shapes: Vec<Vec<usize>>,
}

impl MeasuredSegment {
    /// Returns whether an input of this shape costs no more than the measured ones.
    fn covers(&self, shape: &[usize]) -> bool {
        let is_within = |known: &Vec<usize>| {
            known.len() == shape.len() && known.iter().zip(shape).all(|(known, axis)| axis <= known)
        };
        self.shapes.iter().any(is_within)
    }
}

/// What a segment holds from the forward to the backward pass, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// If it is recomputed: its inputs, unless they are on another device.
    pub input: usize,
    /// If it is not recomputed: everything that its operations save.
    pub kept: usize,
}

/// The budget is too small: this many bytes are needed even if every segment is recomputed.
#[derive(Debug, PartialEq)]
pub(crate) struct Needs(pub usize);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, known: BTreeMap::new(), chosen: None }
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether to recompute this segment for an input of this shape.
    pub(super) fn recomputes(&mut self, segment: u64, shape: &[usize]) -> Result<bool, Needs> {
        if !self.knows(segment, shape) {
            return Ok(true);
        }
        if self.chosen.is_none() {
            self.chosen = Some(self.choose()?);
        }
        Ok(self.chosen.as_ref().is_some_and(|chosen| chosen.contains(&segment)))
    }

    /// Returns whether the cost of a segment is known for inputs of this shape.
    pub(super) fn knows(&self, segment: u64, shape: &[usize]) -> bool {
        self.known.get(&segment).is_some_and(|known| known.covers(shape))
    }

    /// Records the measured cost of a segment.
    pub(super) fn learn(&mut self, segment: u64, shape: Vec<usize>, cost: Cost) {
        let place = self.known.len();
        let known = self
            .known
            .entry(segment)
            .or_insert_with(|| MeasuredSegment { place, ..MeasuredSegment::default() });
        if known.covers(&shape) {
            return;
        }
        known.cost.input = known.cost.input.max(cost.input);
        known.cost.kept = known.cost.kept.max(cost.kept);
        known.shapes.retain(|smaller| {
            !(MeasuredSegment { shapes: vec![shape.clone()], ..MeasuredSegment::default() }).covers(smaller)
        });
        known.shapes.push(shape);
        self.chosen = None;
    }

    /// Chooses as few segments as possible: the first of a pass if they save enough, or else those that save the most.
    fn choose(&self) -> Result<HashSet<u64>, Needs> {
        let saving = |known: &MeasuredSegment| known.cost.kept.saturating_sub(known.cost.input);
        let all: usize = self.known.values().map(|known| known.cost.kept).sum();
        let mut segments: Vec<_> = self.known.iter().collect();
        segments.sort_by_key(|(_, known)| Reverse((saving(known), known.place)));
        let (mut held, mut fewest) = (all, 0);
        while held > self.bytes {
            let (_, next) = segments.get(fewest).ok_or(Needs(held))?;
            held -= saving(next);
            fewest += 1;
        }
        let mut in_order = segments.clone();
        in_order.sort_by_key(|(_, known)| Reverse(known.place));
        let saved: usize = in_order[..fewest].iter().map(|(_, known)| saving(known)).sum();
        let chosen = if all - saved <= self.bytes { in_order } else { segments };
        Ok(chosen[..fewest].iter().map(|(segment, _)| **segment).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHAPE: [usize; 2] = [4, 8];

    fn measured(bytes: usize, costs: &[(usize, usize)]) -> Budget {
        let mut budget = Budget::new(bytes);
        for (segment, &(input, kept)) in costs.iter().enumerate() {
            assert_eq!(budget.recomputes(segment as u64, &SHAPE), Ok(true), "nothing is known yet");
            budget.learn(segment as u64, SHAPE.into(), Cost { input, kept });
        }
        budget
    }

    #[test]
    fn as_few_as_fit_the_first_of_a_pass_or_those_that_save_most() {
        // The last segment is measured last, so it is the first of a pass.
        let costs = [(1, 10), (1, 30), (1, 20)];
        for (bytes, expected) in
            [(60, vec![]), (59, vec![2]), (31, vec![1]), (30, vec![1, 2]), (3, vec![0, 1, 2])]
        {
            let mut budget = measured(bytes, &costs);
            let chosen: Vec<_> =
                (0..3).filter(|segment| budget.recomputes(*segment, &SHAPE).unwrap()).collect();
            assert_eq!(chosen, expected, "{bytes} bytes");
        }
        assert_eq!(measured(2, &costs).recomputes(0, &SHAPE), Err(Needs(3)));
    }

    #[test]
    fn an_input_that_is_larger_along_some_axis_is_recomputed_and_measured_too() {
        let mut budget = measured(85, &[(10, 40), (10, 40)]);
        assert_eq!(budget.recomputes(0, &[3, 8]), Ok(false));
        // This input has the same number of elements as the measured one, but is larger along one axis.
        assert_eq!(budget.recomputes(0, &[2, 16]), Ok(true));
        budget.learn(0, vec![2, 16], Cost { input: 10, kept: 80 });
        assert_eq!(budget.recomputes(0, &[2, 16]), Ok(true));
        assert_eq!(budget.recomputes(1, &SHAPE), Ok(false));
        // A smaller input changes nothing.
        budget.learn(0, vec![1, 1], Cost { input: 1, kept: 1000 });
        assert_eq!(budget.recomputes(1, &SHAPE), Ok(false));
        assert_eq!(budget.known[&0].shapes.len(), 2);
        budget.learn(0, vec![4, 16], Cost { input: 20, kept: 80 });
        assert_eq!(budget.known[&0].shapes, [[4, 16]]);
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
                (0..costs.len()).map(|i| budget.recomputes(i as u64, &SHAPE)).collect();
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
