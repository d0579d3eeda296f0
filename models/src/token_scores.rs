//! Scores of predicted token labels.

use firebrick_datasets::IGNORE;
use firebrick_datasets::collators::LabeledBatch;
use firebrick_metrics::{Classification, Entities, EntityScheme, Metric, Report};

use firebrick::Score;

/// How to score labels of tokens: as entities if the label names are IOB2 tags such as `B-PER`, otherwise as classes.
///
/// Entities are scored strictly, as in `seqeval`'s strict mode: an entity is correct if its first word, its last word
/// and its type are, and it begins with `B-`.
///
/// | Labels | Scores |
/// |---|---|
/// | entities | `f1`, `precision`, `recall` (micro averages over types), `accuracy` (of tags) |
/// | classes | `accuracy`, `macro_f1` |
///
/// ```
/// use firebrick::datasets::IGNORE;
/// use firebrick_models::TokenScores;
///
/// let scores = TokenScores::new(["O", "B-PER", "I-PER"]);
/// // Two rows of three tokens: the first has the whole entity, the second another one.
/// let labels = [1, 2, IGNORE, 0, 1, 0];
/// let counts = scores.counts(&[1, 2, 0, 0, 1, 2], &labels, 3);
/// let found = scores.scores(&counts);
/// assert_eq!((found[0].name, found[0].value), ("f1", 0.5));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScores {
    names: Vec<String>,
    kind: TokenMetric,
}

#[derive(Clone, Debug, PartialEq)]
enum TokenMetric {
    Entities(Entities),
    Classes(Classification),
}

impl TokenScores {
    /// Creates the scores for labels with these names, in the order of their ids.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let has_entities = names.iter().any(|name| name.starts_with("B-"));
        let entities = Entities::from_tags(EntityScheme::StrictIob2, &names);
        let kind = match entities {
            Ok(entities) if has_entities => TokenMetric::Entities(entities),
            _ => TokenMetric::Classes(Classification::new(names.clone())),
        };
        Self { names, kind }
    }

    /// The counts of one batch. `predicted` and `labels` hold rows of `length` tokens, one after the other. A token
    /// with the label [`IGNORE`] belongs to no word, or to a word that is scored by another token.
    ///
    /// # Panics
    ///
    /// If an id has no name.
    pub fn counts(&self, predicted: &[i32], labels: &[i32], length: usize) -> Vec<f64> {
        let row = |(predicted, labels): (&[i32], &[i32])| -> [Vec<usize>; 2] {
            let scored = predicted.iter().zip(labels).filter(|(_, label)| **label != IGNORE);
            let (predicted, labels) = scored.map(|(a, b)| (*a as usize, *b as usize)).unzip();
            [predicted, labels]
        };
        let length = length.max(1);
        self.counts_of_rows(predicted.chunks(length).zip(labels.chunks(length)).map(row))
    }

    /// The counts of one batch, whose rows may be pieces of longer records: those of the records' words, each of which
    /// counts once, in their order. `predicted` holds a label for each token, row by row.
    ///
    /// # Panics
    ///
    /// If an id has no name.
    pub fn counts_of_records(&self, predicted: &[i32], batch: &LabeledBatch) -> Vec<f64> {
        let length = batch.inputs().shape()[1].max(1);
        // The words of each record: their numbers, what is predicted and what is right.
        let mut records: Vec<Vec<(i32, usize, usize)>> = Vec::new();
        let tokens = predicted.iter().zip(batch.host_labels()).zip(batch.host_words());
        for (at, ((&predicted, &label), &word)) in tokens.enumerate() {
            if at % length == 0 && (batch.host_first()[at / length] || records.is_empty()) {
                records.push(Vec::new());
            }
            if let Some(record) = records.last_mut().filter(|_| word != IGNORE) {
                record.push((word, predicted as usize, label as usize));
            }
        }
        // If texts are cut at the left, the first piece has the last words.
        records.iter_mut().for_each(|record| record.sort_unstable());
        let labels = |record: Vec<(i32, usize, usize)>| -> [Vec<usize>; 2] {
            let (predicted, labels) =
                record.into_iter().map(|(_, predicted, label)| (predicted, label)).unzip();
            [predicted, labels]
        };
        self.counts_of_rows(records.into_iter().map(labels))
    }

    /// The counts of rows: what is predicted for each word, and what is right.
    fn counts_of_rows(&self, rows: impl Iterator<Item = [Vec<usize>; 2]>) -> Vec<f64> {
        match &self.kind {
            TokenMetric::Entities(entities) => {
                let tags = |ids: Vec<usize>| ids.into_iter().map(|id| self.names[id].as_str()).collect();
                let (predicted, labels): (Vec<Vec<&str>>, Vec<Vec<&str>>) =
                    rows.map(|row| row.map(tags).into()).unzip();
                added(entities, |batch| batch.add(&predicted, &labels))
            }
            TokenMetric::Classes(classes) => {
                let [predicted, labels] = rows.fold([vec![], vec![]], |[mut a, mut b], [more_a, more_b]| {
                    a.extend(more_a);
                    b.extend(more_b);
                    [a, b]
                });
                added(classes, |batch| batch.add(&predicted, &labels))
            }
        }
    }

    /// The scores from the sums of all counts; from empty counts, scores of NaN under their names.
    pub fn scores(&self, counts: &[f64]) -> Vec<Score> {
        match &self.kind {
            TokenMetric::Entities(entities) => {
                let report = Entities::from_counts(entities, counts).ok().map(|all| all.score());
                let of = |value: fn(&Report) -> f64| report.as_ref().map_or(f64::NAN, value);
                vec![
                    Score::higher("f1", of(|report| report.micro_average.f1)),
                    Score::higher("precision", of(|report| report.micro_average.precision)),
                    Score::higher("recall", of(|report| report.micro_average.recall)),
                    Score::higher("accuracy", of(|report| report.accuracy)),
                ]
            }
            TokenMetric::Classes(classes) => class_scores(classes, counts),
        }
    }
}

/// `accuracy` and `macro_f1` of classes.
pub(super) fn class_scores(classes: &Classification, counts: &[f64]) -> Vec<Score> {
    let report = Classification::from_counts(classes, counts).ok().map(|all| all.score());
    let of = |value: fn(&Report) -> f64| report.as_ref().map_or(f64::NAN, value);
    vec![
        Score::higher("accuracy", of(|report| report.accuracy)),
        Score::higher("macro_f1", of(|report| report.macro_average.f1)),
    ]
}

/// The counts of one batch, added to empty `settings`.
pub(super) fn added<M: Metric + Clone>(
    settings: &M,
    add: impl FnOnce(&mut M) -> Result<(), firebrick_metrics::MetricError>,
) -> Vec<f64> {
    let mut batch = settings.clone();
    add(&mut batch).expect("a model predicts the labels that it has names for, one for each token");
    batch.counts()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use firebrick_datasets::collators::{LabeledTokens, Labels, TokenClassification, Tokens};
    use firebrick_datasets::{Collator, Drawn, Encoder, Tokenizer};

    use super::*;

    #[test]
    fn tags_are_entities_and_other_names_are_classes() {
        let names = |scores: &TokenScores| -> Vec<_> {
            scores.scores(&[]).into_iter().map(|score| score.name).collect()
        };
        assert_eq!(names(&TokenScores::new(["O", "B-X", "I-X"])), ["f1", "precision", "recall", "accuracy"]);
        assert_eq!(names(&TokenScores::new(["NOUN", "VERB"])), ["accuracy", "macro_f1"]);
        // A name that is not a tag turns all of them into classes.
        assert_eq!(names(&TokenScores::new(["O", "B-X", "other"])), ["accuracy", "macro_f1"]);
        assert!(TokenScores::new(["O", "B-X"]).scores(&[])[0].value.is_nan());
    }

    #[test]
    fn batches_add_up() {
        let scores = TokenScores::new(["O", "B-PER", "I-PER"]);
        let (predicted, labels) = ([1, 2, 0, 2, 1, 0], [1, 2, 0, 1, 1, IGNORE]);
        let whole = scores.counts(&predicted, &labels, 3);
        let mut parts = scores.counts(&predicted[..3], &labels[..3], 3);
        let more = scores.counts(&predicted[3..], &labels[3..], 3);
        parts.iter_mut().zip(more).for_each(|(sum, count)| *sum += count);
        assert_eq!(parts, whole);
        let found = scores.scores(&whole);
        // Of three entities, the first and the last are found, and nothing else: an I- tag alone is not an entity.
        assert_eq!(found[1].value, 1.0);
        assert_eq!(found[2].value, 2.0 / 3.0);
    }

    /// An entity over the edge of two pieces is one entity, and the word that both have counts once.
    #[test]
    fn pieces_are_scored_as_their_record() {
        let sample = |labels: &[i32], words: &[Option<u32>], first| {
            let ids = vec![5; labels.len()];
            let tokens = Tokens { type_ids: vec![0; ids.len()], ids };
            let sample = LabeledTokens { tokens, labels: labels.into(), words: words.into(), first };
            Drawn { epoch: 0, index: 0, sample: Arc::new(sample) }
        };
        let names = ["O", "B-PER", "I-PER"];
        let tokenizer = Arc::new(Tokenizer::characters("abc").unwrap());
        let task = TokenClassification::new(Encoder::new(tokenizer), Labels::new(names).unwrap()).pad_id(0);
        let scores = TokenScores::new(names);
        // One record of five words, B I I O O, whose second word is in both pieces; and one record of one word.
        let samples = [
            sample(&[1, 2], &[Some(0), Some(1)], true),
            sample(&[2, 2, 0, 0], &[None, Some(2), Some(3), Some(4)], false),
            sample(&[1], &[Some(0)], true),
        ];
        let batch = task.collate(&samples).unwrap();
        // The repeated word is predicted wrong in the second piece, where it does not count.
        let predicted = [1, 2, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0];
        let found = scores.scores(&scores.counts_of_records(&predicted, &batch));
        assert!(found.iter().all(|score| score.value == 1.0), "{found:?}");
        let whole = scores.counts(&[1, 2, 2, 0, 0, 1], &[1, 2, 2, 0, 0, 1], 5);
        assert_eq!(scores.counts_of_records(&predicted, &batch), whole);

        // Cut at the left, the first piece has the last words.
        let samples = [
            sample(&[2, 2, 0, 0], &[Some(1), Some(2), Some(3), Some(4)], true),
            sample(&[1, 2], &[Some(0), None], false),
            sample(&[1], &[Some(0)], true),
        ];
        let batch = task.collate(&samples).unwrap();
        let predicted = [2, 2, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(scores.counts_of_records(&predicted, &batch), whole);
    }

    #[test]
    fn classes_of_tokens() {
        let scores = TokenScores::new(["NOUN", "VERB"]);
        let found = scores.scores(&scores.counts(&[0, 1, 1, 1], &[0, 1, 0, IGNORE], 2));
        assert_eq!(found[0].value, 2.0 / 3.0);
    }
}
