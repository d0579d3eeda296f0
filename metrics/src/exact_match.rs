//! Exact match and word F1 of short answers.

use std::sync::LazyLock;

use regex::Regex;

use crate::counts::{ExactSum, counts_and_sums};
use crate::pairs::pairs_or_none;
use crate::report::Tally;
use crate::words::{common, ngrams};
use crate::{Metric, MetricError, PrecisionRecallF1, words};

/// Exact match and word F1 of answers to questions, computed like the script of SQuAD 2.0 (Rajpurkar et al., 2018,
/// <https://aclanthology.org/P18-2124/>).
///
/// Compares answers in lower case, without ASCII punctuation, without the articles a, an and the, and with single
/// spaces. If there are several references the best one counts, separately for each of the two scores. A question has
/// no answer if it has no references or only references that normalize to nothing; the prediction should then be empty.
/// (SQuAD 1.1 has no such questions and gives an F1 of 0 to two answers that normalize to nothing.)
///
/// # Example
///
/// ```
/// use firebrick_metrics::{AnswerScore, ExactMatch, Metric};
///
/// let mut answers = ExactMatch::new();
/// answers.add(&["The Eiffel Tower!", "in 1889, Paris"], &[vec!["Eiffel tower"], vec!["1889", "Paris"]])?;
/// answers.add(&[""], &[Vec::<&str>::new()])?;
/// let score = answers.score();
/// assert_eq!(score.map(|score| format!("{:.2} {:.2}", score.exact_match, score.f1)), Some("66.67 83.33".into()));
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ExactMatch {
    answers: u64,
    exact: u64,
    f1: ExactSum,
}

/// The scores of answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnswerScore {
    /// The share of answers that equal a reference, from 0 to 100.
    pub exact_match: f64,
    /// The mean F1 of words, from 0 to 100.
    pub f1: f64,
}

/// Runs of the characters that Python's `\w` matches.
static WORDS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[\p{L}\p{N}_]+").expect("the pattern is a constant"));

impl ExactMatch {
    /// Creates an empty metric.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds answers, each with its references, possibly none.
    ///
    /// # Errors
    ///
    /// [`MetricError::Pairs`] if their numbers differ. In that case nothing is added.
    pub fn add<P, R, S>(&mut self, predictions: &[P], references: &[R]) -> Result<(), MetricError>
    where
        P: AsRef<str>,
        R: AsRef<[S]>,
        S: AsRef<str>,
    {
        for (prediction, references) in pairs_or_none(predictions, references)? {
            let prediction = normalize_answer(prediction);
            let mut wanted: Vec<String> =
                references.iter().map(|reference| normalize_answer(reference.as_ref())).collect();
            wanted.retain(|reference| !reference.is_empty());
            if wanted.is_empty() {
                wanted.push(String::new());
            }
            self.answers += 1;
            self.exact += u64::from(wanted.contains(&prediction));
            self.f1.add(wanted.iter().map(|wanted| word_f1(&prediction, wanted)).fold(0.0, f64::max));
        }
        Ok(())
    }
}

/// Normalizes an answer like SQuAD: to lower case, without ASCII punctuation, without a, an and the, and
/// with single spaces.
///
/// # Example
///
/// ```
/// use firebrick_metrics::normalize_answer;
///
/// assert_eq!(normalize_answer(" The  U.S. Army's, an\tarmy"), "us armys army");
/// ```
pub fn normalize_answer(text: &str) -> String {
    let mut text = text.to_lowercase();
    text.retain(|character| !character.is_ascii_punctuation());
    let without_articles = WORDS.replace_all(&text, |word: &regex::Captures| match &word[0] {
        "a" | "an" | "the" => " ".to_owned(),
        word => word.to_owned(),
    });
    words::split(&without_articles).collect::<Vec<_>>().join(" ")
}

/// Returns the F1 of the words of two normalized answers; 1 if both are empty.
fn word_f1(prediction: &str, wanted: &str) -> f64 {
    let prediction: Vec<&str> = words::split(prediction).collect();
    let wanted: Vec<&str> = words::split(wanted).collect();
    if prediction.is_empty() && wanted.is_empty() {
        return 1.0;
    }
    let scores = PrecisionRecallF1::of_counts(Tally {
        correct: common(&ngrams(&prediction, 1), &ngrams(&wanted, 1)),
        predicted: prediction.len() as u64,
        support: wanted.len() as u64,
    });
    scores.f1
}

impl Metric for ExactMatch {
    /// `None` if nothing was added.
    type Score = Option<AnswerScore>;

    const NAME: &'static str = "exact match";

    fn score(&self) -> Option<AnswerScore> {
        let answers = self.answers as f64;
        (self.answers > 0).then(|| AnswerScore {
            exact_match: 100.0 * self.exact as f64 / answers,
            f1: 100.0 * self.f1.value() / answers,
        })
    }

    /// Returns the number of answers, the exact ones, and the sum of F1 as five numbers whose sums are exact.
    fn counts(&self) -> Vec<f64> {
        [self.answers as f64, self.exact as f64].into_iter().chain(self.f1.parts()).collect()
    }

    fn from_counts(_: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let ([answers, exact], [f1]) = counts_and_sums(Self::NAME, counts)?;
        Ok(Self { answers, exact, f1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn articles_are_words_of_their_own() {
        for (answer, normalized) in [
            ("the theatre, an answer", "theatre answer"),
            ("a-b", "ab"),
            ("\u{201c}a\u{201d} b", "\u{201c} \u{201d} b"),
            ("a_b", "ab"),
            // Python does not count the combining mark as a letter, so the letter below it is an article.
            ("a\u{301} b", "\u{301} b"),
            ("The THE An", ""),
        ] {
            assert_eq!(normalize_answer(answer), normalized, "{answer}");
        }
    }

    #[test]
    fn questions_without_an_answer() {
        let f1 = |prediction: &str, references: &[&str]| {
            let mut answers = ExactMatch::new();
            answers.add(&[prediction], &[references]).unwrap();
            let score = answers.score().unwrap();
            (score.exact_match, score.f1)
        };
        assert_eq!(f1("", &[]), (100.0, 100.0));
        assert_eq!(f1("word", &[]), (0.0, 0.0));
        assert_eq!(f1("", &["the", "word"]), (0.0, 0.0));
        assert_eq!(f1("a", &["the"]), (100.0, 100.0));
        assert_eq!(ExactMatch::new().score(), None);
    }

    #[test]
    fn wrong_counts() {
        for counts in [&[][..], &[1.0], &[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0], &[1.0; 8]] {
            assert!(ExactMatch::from_counts(&ExactMatch::new(), counts).is_err(), "{counts:?}");
        }
    }
}
