//! Precision, recall and F1 of a class, and averages over classes.

use std::fmt;

/// Precision, recall and their harmonic mean, each from 0 to 1.
///
/// A division by zero gives 0, as with `zero_division=0` in scikit-learn.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PrecisionRecallF1 {
    /// The share of predictions that are correct.
    pub precision: f64,
    /// The share of the references that were found.
    pub recall: f64,
    /// 2 precision recall / (precision + recall).
    pub f1: f64,
}

/// The scores of one class, or of one entity type.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassScore {
    /// The name of the class.
    pub name: String,
    /// Its precision, recall and F1.
    pub scores: PrecisionRecallF1,
    /// Its number of occurrences in the references.
    pub support: u64,
}

/// Scores per class and their averages; scikit-learn and seqeval call it a classification report.
///
/// Only classes that occur in the predictions or the references count.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Every class that occurs in the predictions or the references, in the order of the metric.
    pub classes: Vec<ClassScore>,
    /// The scores of the summed counts of all classes.
    pub micro_average: PrecisionRecallF1,
    /// The mean over classes, each with the same weight.
    pub macro_average: PrecisionRecallF1,
    /// The mean over classes, weighted by their support.
    pub weighted_average: PrecisionRecallF1,
    /// The total support of all classes.
    pub support: u64,
    /// The share of items, or of tags for entities, whose prediction equals the reference.
    pub accuracy: f64,
}

/// How often something was predicted, occurs in the references, and both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub correct: u64,
    pub predicted: u64,
    pub support: u64,
}

impl PrecisionRecallF1 {
    /// Computes F1 from rates between 0 and 1.
    pub(crate) fn of_rates(precision: f64, recall: f64) -> Self {
        let sum = precision + recall;
        let f1 = if sum > 0.0 { 2.0 * precision * recall / sum } else { 0.0 };
        Self { precision, recall, f1 }
    }

    pub(crate) fn of_counts(tally: Tally) -> Self {
        let correct = tally.correct;
        Self::of_rates(share(correct, tally.predicted), share(correct, tally.support))
    }

    /// Adds the three numbers of `other`, multiplied by `weight`.
    fn add(&mut self, other: Self, weight: f64) {
        self.precision += weight * other.precision;
        self.recall += weight * other.recall;
        self.f1 += weight * other.f1;
    }
}

impl Report {
    pub(crate) fn new<'a>(classes: impl Iterator<Item = (&'a String, Tally)>, accuracy: f64) -> Self {
        let seen: Vec<_> = classes.filter(|(_, tally)| tally.predicted + tally.support > 0).collect();
        let mut all = Tally::default();
        for (_, tally) in &seen {
            all.correct += tally.correct;
            all.predicted += tally.predicted;
            all.support += tally.support;
        }
        let mut macro_average = PrecisionRecallF1::default();
        let mut weighted_average = PrecisionRecallF1::default();
        let mut classes = Vec::with_capacity(seen.len());
        for &(name, tally) in &seen {
            let scores = PrecisionRecallF1::of_counts(tally);
            macro_average.add(scores, 1.0 / seen.len() as f64);
            weighted_average.add(scores, share(tally.support, all.support));
            classes.push(ClassScore { name: name.clone(), scores, support: tally.support });
        }
        let micro_average = PrecisionRecallF1::of_counts(all);
        Self { classes, micro_average, macro_average, weighted_average, support: all.support, accuracy }
    }

    /// Returns the scores of the class of this name, if it occurs in the predictions or the references.
    pub fn class(&self, name: &str) -> Option<&ClassScore> {
        self.classes.iter().find(|class| class.name == name)
    }
}

impl fmt::Display for Report {
    /// Writes a table of all classes and averages.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let averages = [
            ("micro average", self.micro_average),
            ("macro average", self.macro_average),
            ("weighted average", self.weighted_average),
        ];
        let rows = self.classes.iter().map(|class| (class.name.as_str(), class.scores, class.support));
        let rows = rows.chain(averages.map(|(name, scores)| (name, scores, self.support)));
        let names = self.classes.iter().map(|class| class.name.chars().count());
        let width = names.max().unwrap_or_default().max("weighted average".len());
        write!(f, "{:width$}  precision  recall      f1  support", "")?;
        for (name, PrecisionRecallF1 { precision, recall, f1 }, support) in rows {
            write!(f, "\n{name:width$}  {precision:9.4}  {recall:6.4}  {f1:6.4}  {support:7}")?;
        }
        Ok(())
    }
}

/// Returns a share of a whole; 0 if the whole is 0.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tallies: &[(&str, [u64; 3])]) -> Report {
        let names: Vec<String> = tallies.iter().map(|(name, _)| name.to_string()).collect();
        let tallies =
            tallies.iter().map(|&(_, [correct, predicted, support])| Tally { correct, predicted, support });
        Report::new(names.iter().zip(tallies), 0.5)
    }

    #[test]
    fn averages() {
        let report = report(&[("cat", [1, 2, 4]), ("absent", [0, 0, 0]), ("dog", [0, 3, 0])]);
        let names: Vec<&str> = report.classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!((names, report.support), (vec!["cat", "dog"], 4));
        assert_eq!(report.micro_average, PrecisionRecallF1::of_rates(0.2, 0.25));
        assert_eq!(report.macro_average, PrecisionRecallF1 { precision: 0.25, recall: 0.125, f1: 1.0 / 6.0 });
        assert_eq!(report.weighted_average, report.class("cat").unwrap().scores);
        assert!(report.class("absent").is_none());
    }

    #[test]
    fn without_items_scores_are_zero() {
        let report = report(&[("absent", [0, 0, 0])]);
        assert_eq!(report.macro_average, PrecisionRecallF1::default());
        assert_eq!(report.weighted_average, PrecisionRecallF1::default());
    }

    #[test]
    fn a_table() {
        let table = report(&[("cat", [1, 2, 4])]).to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1], "cat                  0.5000  0.2500  0.3333        4");
        assert_eq!(lines.len(), 5);
    }
}
