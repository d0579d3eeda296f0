//! Steps with events, in bounded memory.

/// The maximum number of marks to keep; more would be indistinguishable on a page.
const MOST: usize = 300;
/// The maximum number of characters to keep of a reason.
const REASON: usize = 300;
/// The maximum number of distinct reasons.
const MOST_REASONS: usize = 12;

/// Steps with events and their reasons. If there are too many, every other one is dropped; the count includes all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    pub kept: Vec<Mark>,
    pub count: u64,
    /// The count of each reason, in order of first occurrence.
    pub reasons: Vec<(String, u64)>,
    /// One in this many marks is kept.
    every: u64,
}

/// A step with an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mark {
    pub step: u64,
    pub reason: String,
}

impl Marks {
    pub fn add(&mut self, step: u64, reason: &str) {
        let reason: String = reason.chars().take(REASON).collect();
        let is_room = self.reasons.len() < MOST_REASONS;
        match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None if is_room => self.reasons.push((reason.clone(), 1)),
            None => {}
        }
        self.every = self.every.max(1);
        if self.count.is_multiple_of(self.every) {
            if self.kept.len() == MOST {
                let mut number = 0;
                self.kept.retain(|_| {
                    number += 1;
                    number % 2 == 1
                });
                self.every *= 2;
            }
            self.kept.push(Mark { step, reason });
        }
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_kept_as_they_are_and_many_thinned() {
        let mut marks = Marks::default();
        (0..10).for_each(|step| marks.add(step, "overflow"));
        assert_eq!(marks.kept.len(), 10);
        (10..100_000).for_each(|step| marks.add(step, if step % 2 == 0 { "overflow" } else { "no items" }));
        assert_eq!(marks.count, 100_000);
        assert!((MOST / 2..=MOST).contains(&marks.kept.len()));
        assert!(marks.kept.is_sorted_by_key(|mark| mark.step));
        // The kept marks are evenly spaced.
        let gaps = marks.kept.windows(2).map(|pair| pair[1].step - pair[0].step);
        assert!(gaps.clone().min() == gaps.max() && marks.kept.last().unwrap().step > 99_000);
        assert_eq!(marks.reasons, [("overflow".into(), 50_005), ("no items".into(), 49_995)]);
    }

    #[test]
    fn reasons_without_end_are_not_held() {
        let mut marks = Marks::default();
        (0..1000).for_each(|step| marks.add(step, &format!("{step} {}", "x".repeat(10_000))));
        assert_eq!(marks.reasons.len(), MOST_REASONS);
        assert!(marks.kept.iter().all(|mark| mark.reason.chars().count() <= REASON));
    }
}
