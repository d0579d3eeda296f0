//! Scores of predicted labels: of tokens, and of whole texts.

use firebrick::Score;
use firebrick_datasets::IGNORE;
use firebrick_datasets::collators::{LabeledBatch, SequenceBatch};
use firebrick_metrics::{Classification, Entities, EntityScheme, Metric, Report};

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
fn class_scores(classes: &Classification, counts: &[f64]) -> Vec<Score> {
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
        ClassifiedTokens, Label, LabeledTokens, Labels, SequenceClassification, Target, TokenClassification,
        Tokens,
    };
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
