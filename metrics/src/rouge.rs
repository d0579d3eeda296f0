//! ROUGE: the overlap of a summary with its reference.

use std::collections::{BTreeSet, HashMap};

use crate::counts::{ExactSum, counts_and_sums};
use crate::pairs::pairs;
use crate::report::Tally;
use crate::words::{common, ngrams};
use crate::{Metric, MetricError, PrecisionRecallF1};

/// ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum (Lin, 2004, <https://aclanthology.org/W04-1013/>), computed like
/// Google's `rouge_score` without its stemmer.
///
/// Words are runs of the lowercased letters a to z and of digits, which suits English. ROUGE-Lsum compares line by
/// line: put a newline between sentences. If there are several references, the one with the best F1 counts, separately
/// for each of the four. The score of a corpus is the mean over its predictions; `evaluate` reports the median of means
/// of random samples instead, which is close to it but varies between calls.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Metric, Rouge};
///
/// let mut rouge = Rouge::new();
/// rouge.add(&["The cat sat on the mat.\nIt slept."], &[["A cat was on the mat.\nIt slept well."]])?;
/// let score = rouge.score().ok_or("nothing was added")?;
/// assert_eq!(format!("{:.4}", score.rouge1.f1), "0.7059");
/// assert_eq!(format!("{:.4}", score.rouge2.f1), "0.5333");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rouge {
    segments: u64,
    /// Precision, recall and F1 of each of the four.
    sums: [ExactSum; RATES],
}

const RATES: usize = 12;

/// The scores of one prediction, or their means.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RougeScore {
    /// Overlap of words.
    pub rouge1: PrecisionRecallF1,
    /// Overlap of pairs of adjacent words.
    pub rouge2: PrecisionRecallF1,
    /// The longest common subsequence of words.
    pub rouge_l: PrecisionRecallF1,
    /// For each line of the reference, the words in its longest common subsequences with all lines of the prediction.
    pub rouge_lsum: PrecisionRecallF1,
}

impl Rouge {
    /// Creates an empty metric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds predictions, each with its references.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] if their numbers differ, [`MetricError::NoReference`] for a prediction
    /// without references. In both cases nothing is added.
    pub fn add<P, R, S>(&mut self, predictions: &[P], references: &[R]) -> Result<(), MetricError>
    where
        P: AsRef<str>,
        R: AsRef<[S]>,
        S: AsRef<str>,
    {
        for (prediction, references) in pairs(predictions, references)? {
            let scores: Vec<RougeScore> =
                references.iter().map(|reference| RougeScore::of(prediction, reference.as_ref())).collect();
            for (sum, rate) in self.sums.iter_mut().zip(RougeScore::best(&scores).rates()) {
                sum.add(rate);
            }
            self.segments += 1;
        }
        Ok(())
    }
}

impl RougeScore {
    /// Scores one prediction against one reference.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_metrics::RougeScore;
    ///
    /// let score = RougeScore::of("police killed the gunman", "the gunman killed police");
    /// assert_eq!((score.rouge1.f1, score.rouge_l.f1), (1.0, 0.5));
    /// ```
    pub fn of(prediction: &str, reference: &str) -> Self {
        let (prediction, reference) = (prediction.to_lowercase(), reference.to_lowercase());
        let (predicted, wanted) = (words(&prediction), words(&reference));
        Self {
            rouge1: of_ngrams(&predicted, &wanted, 1),
            rouge2: of_ngrams(&predicted, &wanted, 2),
            rouge_l: PrecisionRecallF1::of_counts(Tally {
                correct: common_length(&wanted, &predicted) as u64,
                predicted: predicted.len() as u64,
                support: wanted.len() as u64,
            }),
            rouge_lsum: of_lines(&lines(&prediction), &lines(&reference)),
        }
    }

    /// Selects, for each of the four, the scores with the best F1, the first among equals.
    fn best(scores: &[Self]) -> Self {
        Self::of_kinds(|kind| {
            let scores = scores.iter().map(|score| score.kinds()[kind]);
            scores.reduce(|best, score| if score.f1 > best.f1 { score } else { best }).unwrap_or_default()
        })
    }

    fn kinds(&self) -> [PrecisionRecallF1; 4] {
        [self.rouge1, self.rouge2, self.rouge_l, self.rouge_lsum]
    }

    fn of_kinds(kind: impl Fn(usize) -> PrecisionRecallF1) -> Self {
        let [rouge1, rouge2, rouge_l, rouge_lsum] = std::array::from_fn(kind);
        Self { rouge1, rouge2, rouge_l, rouge_lsum }
    }

    fn rates(&self) -> impl Iterator<Item = f64> {
        self.kinds().into_iter().flat_map(|scores| [scores.precision, scores.recall, scores.f1])
    }

    fn of_rates(rates: [f64; RATES]) -> Self {
        let (rates, _) = rates.as_chunks();
        Self::of_kinds(|kind| {
            let [precision, recall, f1] = rates[kind];
            PrecisionRecallF1 { precision, recall, f1 }
        })
    }
}

/// Splits a lowercased text into words.
fn words(text: &str) -> Vec<&str> {
    let parts = text.split(|character: char| !matches!(character, 'a'..='z' | '0'..='9'));
    parts.filter(|word| !word.is_empty()).collect()
}

/// Splits each line into words; an empty line has none.
fn lines(text: &str) -> Vec<Vec<&str>> {
    text.split('\n').map(words).collect()
}

fn of_ngrams(predicted: &[&str], wanted: &[&str], order: usize) -> PrecisionRecallF1 {
    PrecisionRecallF1::of_counts(Tally {
        correct: common(&ngrams(predicted, order), &ngrams(wanted, order)),
        predicted: predicted.windows(order).len() as u64,
        support: wanted.windows(order).len() as u64,
    })
}

/// Summary-level common subsequences, section 3.2 of the paper. No word counts more often than it occurs in both texts.
fn of_lines(predicted: &[Vec<&str>], wanted: &[Vec<&str>]) -> PrecisionRecallF1 {
    let (mut left_predicted, mut left_wanted) = (word_counts(predicted), word_counts(wanted));
    let mut hits = 0;
    for line in wanted {
        let union: BTreeSet<usize> = predicted.iter().flat_map(|other| common_places(line, other)).collect();
        for word in union.into_iter().filter_map(|place| line.get(place)) {
            let (Some(predicted), Some(wanted)) = (left_predicted.get_mut(word), left_wanted.get_mut(word))
            else {
                continue;
            };
            if *predicted > 0 && *wanted > 0 {
                (*predicted, *wanted) = (*predicted - 1, *wanted - 1);
                hits += 1;
            }
        }
    }
    let words = |lines: &[Vec<&str>]| lines.iter().map(Vec::len).sum::<usize>() as u64;
    PrecisionRecallF1::of_counts(Tally { correct: hits, predicted: words(predicted), support: words(wanted) })
}

fn word_counts<'a>(lines: &[Vec<&'a str>]) -> HashMap<&'a str, u64> {
    let mut counts = HashMap::new();
    for word in lines.iter().flatten() {
        *counts.entry(*word).or_default() += 1;
    }
    counts
}

impl Metric for Rouge {
    /// Each from 0 to 1; `None` if nothing was added.
    type Score = Option<RougeScore>;

    const NAME: &'static str = "ROUGE";

    fn score(&self) -> Option<RougeScore> {
        let mean = |sum: ExactSum| sum.value() / self.segments as f64;
        (self.segments > 0).then(|| RougeScore::of_rates(self.sums.map(mean)))
    }

    /// Returns the number of predictions, then the sums of precision, recall and F1 of ROUGE-1, 2, L and Lsum,
    /// each as five numbers whose sums are exact.
    fn counts(&self) -> Vec<f64> {
        let sums = self.sums.iter().flat_map(ExactSum::parts);
        [self.segments as f64].into_iter().chain(sums).collect()
    }

    fn from_counts(_: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let ([segments], sums) = counts_and_sums(Self::NAME, counts)?;
        Ok(Self { segments, sums })
    }
}

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
fn common_places<T: PartialEq>(first: &[T], second: &[T]) -> Vec<usize> {
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
fn common_length<T: PartialEq>(first: &[T], second: &[T]) -> usize {
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
    fn each_kind_takes_its_own_best_reference() {
        let mut rouge = Rouge::new();
        assert_eq!(rouge.score(), None);
        rouge.add(&["a b c"], &[["c b a", "a b x x x x x"]]).unwrap();
        let score = rouge.score().unwrap();
        assert_eq!((score.rouge1.f1, score.rouge2.precision), (1.0, 0.5));
    }

    #[test]
    fn empty_texts_have_nothing_in_common() {
        assert_eq!(RougeScore::of("", ""), RougeScore::default());
        assert_eq!(RougeScore::of("word", "!?\n\n"), RougeScore::default());
    }

    #[test]
    fn wrong_counts() {
        for count in [0, 1, 60, 62] {
            assert!(Rouge::from_counts(&Rouge::new(), &vec![0.0; count]).is_err());
        }
        assert!(Rouge::from_counts(&Rouge::new(), &[0.0; 61]).is_ok());
    }

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
