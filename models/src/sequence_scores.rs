//! Scores of predictions for whole texts.

use firebrick_datasets::collators::SequenceBatch;
use firebrick_metrics::Classification;

use super::token_scores::{added, class_scores};
use firebrick::Score;

/// How to score classes of texts, or numbers.
///
/// | Each text has | Scores |
/// |---|---|
/// | one class | `accuracy`, `macro_f1` |
/// | several classes | `f1` (micro average over all decisions), `accuracy` (of texts with all of them right) |
/// | a number | `rmse`, `pearson` |
#[derive(Clone, Debug, PartialEq)]
pub enum SequenceScores {
    /// One of these classes for each text.
    Class(Classification),
    /// Any number of this many classes for each text: those whose logit is above 0.
    Classes(usize),
    /// A number.
    Number,
}

impl SequenceScores {
    /// The counts of one batch; `logits` holds those of the classes, row by row. Of the pieces of a long text, the first
    /// counts, from which its class is predicted. Empty if the batch's labels are of another kind.
    pub fn counts(&self, logits: &[f32], batch: &SequenceBatch) -> Vec<f64> {
        let first = batch.host_first();
        match self {
            Self::Class(classes) => {
                let Some(labels) = batch.host_classes() else { return Vec::new() };
                let width = logits.len() / labels.len().max(1);
                let pairs = logits.chunks(width.max(1)).zip(labels).zip(first).filter(|(_, first)| **first);
                let (predicted, labels): (Vec<_>, Vec<_>) =
                    pairs.map(|((logits, label), _)| (largest(logits), *label as usize)).unzip();
                added(classes, |batch| batch.add(&predicted, &labels))
            }
            Self::Classes(width) => {
                let Some(flags) = batch.host_multi_hot() else { return Vec::new() };
                let mut counts = [0.0; 5];
                let [both, predicted, labelled, exact, rows] = &mut counts;
                let texts = logits.chunks(*width).zip(flags.chunks(*width)).zip(first);
                for ((logits, flags), _) in texts.filter(|(_, first)| **first) {
                    let decisions =
                        logits.iter().map(|logit| *logit > 0.0).zip(flags.iter().map(|flag| *flag > 0.5));
                    let mut all_right = true;
                    for (decided, is_so) in decisions {
                        *both += f64::from(u8::from(decided && is_so));
                        *predicted += f64::from(u8::from(decided));
                        *labelled += f64::from(u8::from(is_so));
                        all_right &= decided == is_so;
                    }
                    *exact += f64::from(u8::from(all_right));
                    *rows += 1.0;
                }
                counts.into()
            }
            Self::Number => {
                let Some(numbers) = batch.host_numbers() else { return Vec::new() };
                let mut sums = [0.0; 6];
                let rows = logits.iter().zip(numbers).zip(first).filter(|(_, first)| **first);
                for (x, y) in rows.map(|((x, y), _)| (f64::from(*x), f64::from(*y))) {
                    let terms = [1.0, x, y, x * x, y * y, x * y];
                    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                }
                sums.into()
            }
        }
    }

    /// The scores from the sums of all counts; from empty counts, scores of NaN under their names.
    pub fn scores(&self, counts: &[f64]) -> Vec<Score> {
        match self {
            Self::Class(classes) => class_scores(classes, counts),
            Self::Classes(_) => {
                let [both, predicted, labelled, exact, rows] = counts.try_into().unwrap_or([f64::NAN; 5]);
                // Nothing predicted and nothing to find scores 0, as in scikit-learn.
                let f1 = if predicted + labelled == 0.0 { 0.0 } else { 2.0 * both / (predicted + labelled) };
                vec![Score::higher("f1", f1), Score::higher("accuracy", exact / rows)]
            }
            Self::Number => {
                let [n, x, y, xx, yy, xy] = counts.try_into().unwrap_or([f64::NAN; 6]);
                let covariance = xy - x * y / n;
                let deviations = ((xx - x * x / n) * (yy - y * y / n)).sqrt();
                vec![
                    // Rounding may make the mean square slightly negative.
                    Score::lower("rmse", ((xx - 2.0 * xy + yy) / n).clamp(0.0, f64::INFINITY).sqrt()),
                    Score::higher("pearson", covariance / deviations),
                ]
            }
        }
    }
}

/// The index of the largest number; the first of equal ones.
fn largest(logits: &[f32]) -> usize {
    let better = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
    (0..logits.len()).reduce(better).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebrick_datasets::collators::{
        ClassifiedTokens, Label, Labels, SequenceClassification, Target, Tokens,
    };
    use firebrick_datasets::{Collator, Drawn, Encoder, Tokenizer};

    use super::*;

    fn values(scores: Vec<Score>) -> Vec<f64> {
        scores.into_iter().map(|score| score.value).collect()
    }

    #[test]
    fn multi_label_scores_count_each_decision() {
        let scores = SequenceScores::Classes(2);
        // Three texts: three of four predicted classes are right, and one class was missed.
        assert_eq!(values(scores.scores(&[3.0, 4.0, 4.0, 1.0, 3.0])), [0.75, 1.0 / 3.0]);
        assert_eq!(values(scores.scores(&[0.0, 0.0, 0.0, 3.0, 3.0])), [0.0, 1.0]);
        assert!(values(scores.scores(&[])).iter().all(|value| value.is_nan()));
    }

    #[test]
    fn number_scores_are_error_and_correlation() {
        let pairs = [(1.0, 2.0), (2.0, 4.0), (4.0, 5.0)];
        let mut sums = [0.0; 6];
        for (x, y) in pairs {
            let terms = [1.0, x, y, x * x, y * y, x * y];
            sums.iter_mut().zip(terms).for_each(|(sum, term): (&mut f64, f64)| *sum += term);
        }
        let found = values(SequenceScores::Number.scores(&sums));
        assert!((found[0] - 2f64.sqrt()).abs() < 1e-12, "{found:?}");
        // numpy.corrcoef([1, 2, 4], [2, 4, 5])
        assert!((found[1] - 0.928_571_428_571_428_6).abs() < 1e-12, "{found:?}");
        assert!(values(SequenceScores::Number.scores(&[])).iter().all(|value| value.is_nan()));
    }

    /// Three pieces of one text count as one text, with the class of the first.
    #[test]
    fn pieces_are_scored_as_their_text() {
        let tokenizer = Arc::new(Tokenizer::characters("abc").unwrap());
        let names = || Labels::new(["a", "b"]).unwrap();
        let batch = |target, label: Label| {
            let task = SequenceClassification::new(Encoder::new(tokenizer.clone()), target).pad_id(0);
            let sample = |first| {
                let tokens = Tokens { ids: vec![5], type_ids: vec![0] };
                let sample = ClassifiedTokens { tokens, label: label.clone(), first };
                Drawn { epoch: 0, index: 0, sample: Arc::new(sample) }
            };
            task.collate(&[true, false, false, true].map(sample)).unwrap()
        };
        // The first text is right, the second wrong; further pieces would be wrong too.
        let of_classes = [0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let scores = SequenceScores::Class(Classification::new(["a", "b"]));
        let counts = scores.counts(&of_classes, &batch(Target::Class(names()), Label::Class(1)));
        assert_eq!(values(scores.scores(&counts))[0], 0.5);
        let scores = SequenceScores::Classes(2);
        let of_flags = of_classes.map(|logit| logit - 0.5);
        let counts = scores.counts(&of_flags, &batch(Target::Classes(names()), Label::Classes(vec![1])));
        assert_eq!(values(scores.scores(&counts)), [0.5, 0.5]);
        let counts =
            SequenceScores::Number.counts(&[1.0, 9.0, 9.0, 3.0], &batch(Target::Number, Label::Number(1.0)));
        assert_eq!((counts[0], values(SequenceScores::Number.scores(&counts))[0]), (2.0, 2f64.sqrt()));
    }

    #[test]
    fn the_first_of_the_largest() {
        assert_eq!([largest(&[1.0, 3.0, 3.0]), largest(&[2.0]), largest(&[])], [1, 0, 0]);
    }
}
