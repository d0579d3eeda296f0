//! chrF: the n-grams of characters, and in chrF++ of words, that a translation shares with a reference.

use std::borrow::Cow;

use crate::counts::whole_numbers;
use crate::pairs::pairs;
use crate::words::{common, ngrams};
use crate::{Metric, MetricError, words};

/// Corpus chrF (Popović, 2015, <https://aclanthology.org/W15-3049/>) and chrF++ (Popović, 2017,
/// <https://aclanthology.org/W17-4770/>), computed like sacrebleu.
///
/// Characters are code points. If there are several references, the one with the best score counts.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{ChrF, Metric};
///
/// let (predictions, references) = (["Der Hund bellt laut."], [["Der Hund bellte laut."]]);
/// let mut chrf = ChrF::new();
/// chrf.add(&predictions, &references)?;
/// let mut chrf_plus_plus = ChrF::plus_plus();
/// chrf_plus_plus.add(&predictions, &references)?;
/// assert_eq!(format!("{:.2} {:.2}", chrf.score(), chrf_plus_plus.score()), "76.88 73.92");
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ChrF {
    settings: Settings,
    /// One for each order: characters first, then words.
    counts: Vec<OrderCounts>,
}

#[derive(Debug, Clone, PartialEq)]
struct Settings {
    char_orders: u8,
    word_orders: u8,
    beta: u8,
    lowercase: bool,
    whitespace: bool,
}

/// The n-grams of one order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct OrderCounts {
    predicted: u64,
    reference: u64,
    matches: u64,
}

/// The characters and words of a text.
struct Units<'a> {
    characters: Vec<char>,
    words: Vec<&'a str>,
}

impl ChrF {
    /// Creates chrF: n-grams of up to 6 characters without white space, recall weighted twice (beta 2).
    pub fn new() -> Self {
        let settings =
            Settings { char_orders: 6, word_orders: 0, beta: 2, lowercase: false, whitespace: false };
        Self { counts: settings.no_counts(), settings }
    }

    /// Creates chrF++: chrF with words and pairs of words. Punctuation at the end of a word, or else at its start, is a
    /// word of its own.
    pub fn plus_plus() -> Self {
        Self::new().orders(6, 2)
    }

    /// Sets the longest n-grams of characters and of words. Discards what was added.
    pub fn orders(mut self, characters: u8, words: u8) -> Self {
        self.settings.char_orders = characters;
        self.settings.word_orders = words;
        self.counts = self.settings.no_counts();
        self
    }

    /// Sets how many times as much recall weighs as precision. Call it before you add anything: with
    /// several references, it affects which of them counts.
    pub fn beta(mut self, beta: u8) -> Self {
        self.settings.beta = beta;
        self
    }

    /// Ignores case. Call it before you add anything.
    pub fn lowercase(mut self) -> Self {
        self.settings.lowercase = true;
        self
    }

    /// Counts white space as characters. Call it before you add anything.
    pub fn whitespace(mut self) -> Self {
        self.settings.whitespace = true;
        self
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
            let best = self.settings.best(prediction, references);
            for (sum, counts) in self.counts.iter_mut().zip(best) {
                sum.predicted += counts.predicted;
                sum.reference += counts.reference;
                sum.matches += counts.matches;
            }
        }
        Ok(())
    }

    /// Scores one prediction alone, from 0 to 100. Does not add it.
    ///
    /// # Errors
    ///
    /// [`MetricError::NoReference`] if there is none.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_metrics::ChrF;
    ///
    /// assert_eq!(ChrF::new().sentence("naïve", &["naif", "naïve"])?, 100.0);
    /// # Ok::<(), firebrick_metrics::MetricError>(())
    /// ```
    pub fn sentence<S: AsRef<str>>(&self, prediction: &str, references: &[S]) -> Result<f64, MetricError> {
        let mut sentence = Self { settings: self.settings.clone(), counts: self.settings.no_counts() };
        sentence.add(&[prediction], &[references])?;
        Ok(sentence.score())
    }
}

impl Default for ChrF {
    /// The same as [`ChrF::new`].
    fn default() -> Self {
        Self::new()
    }
}

impl Settings {
    fn no_counts(&self) -> Vec<OrderCounts> {
        vec![OrderCounts::default(); usize::from(self.char_orders) + usize::from(self.word_orders)]
    }

    /// Returns the counts against the reference with the best score, the first among equals.
    fn best<S: AsRef<str>>(&self, prediction: &str, references: &[S]) -> Vec<OrderCounts> {
        let prediction = self.cased(prediction);
        let prediction = self.units(&prediction);
        let mut best = (-1.0, Vec::new());
        for reference in references {
            let reference = self.cased(reference.as_ref());
            let counts = self.compare(&prediction, &self.units(&reference));
            let score = self.f_score(&counts);
            if score > best.0 {
                best = (score, counts);
            }
        }
        best.1
    }

    fn cased<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.lowercase { text.to_lowercase().into() } else { text.into() }
    }

    fn units<'a>(&self, text: &'a str) -> Units<'a> {
        let counts = |character: &char| self.whitespace || !words::is_space(*character);
        let words = if self.word_orders > 0 { words(text) } else { Vec::new() };
        Units { characters: text.chars().filter(counts).collect(), words }
    }

    fn compare(&self, prediction: &Units, reference: &Units) -> Vec<OrderCounts> {
        let characters = (1..=self.char_orders)
            .map(|order| OrderCounts::of(&prediction.characters, &reference.characters, order));
        let words =
            (1..=self.word_orders).map(|order| OrderCounts::of(&prediction.words, &reference.words, order));
        characters.chain(words).collect()
    }

    /// Returns F-beta of the mean precision and the mean recall, over the orders that both sides have.
    fn f_score(&self, counts: &[OrderCounts]) -> f64 {
        let seen: Vec<_> =
            counts.iter().filter(|counts| counts.predicted > 0 && counts.reference > 0).collect();
        let mean = |rate: fn(&OrderCounts) -> f64| {
            seen.iter().map(|counts| rate(counts)).sum::<f64>() / seen.len().max(1) as f64
        };
        let precision = mean(|counts| counts.matches as f64 / counts.predicted as f64);
        let recall = mean(|counts| counts.matches as f64 / counts.reference as f64);
        if precision + recall == 0.0 {
            return 0.0;
        }
        let weight = f64::from(self.beta).powi(2);
        100.0 * (1.0 + weight) * precision * recall / (weight * precision + recall)
    }
}

impl OrderCounts {
    fn of<T: Eq + std::hash::Hash>(prediction: &[T], reference: &[T], order: u8) -> Self {
        let order = usize::from(order);
        let (predicted, wanted) = (prediction.windows(order).len(), reference.windows(order).len());
        Self {
            // Counts none if the reference is too short for this order.
            predicted: if wanted > 0 { predicted as u64 } else { 0 },
            reference: wanted as u64,
            matches: common(&ngrams(prediction, order), &ngrams(reference, order)),
        }
    }
}

/// Splits a text into the words of chrF++: `(hi)` becomes `(hi` and `)`.
fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for word in words::split(text) {
        let punctuation = |character: char| character.is_ascii_punctuation();
        let parts = match (word.strip_suffix(punctuation), word.strip_prefix(punctuation)) {
            (Some(rest), _) if !rest.is_empty() => Some(word.split_at(rest.len())),
            (_, Some(rest)) if !rest.is_empty() => Some(word.split_at(word.len() - rest.len())),
            _ => None,
        };
        match parts {
            Some((first, second)) => words.extend([first, second]),
            None => words.push(word),
        }
    }
    words
}

impl Metric for ChrF {
    /// From 0 to 100.
    type Score = f64;

    const NAME: &'static str = "chrF";

    /// Computes chrF of the corpus. It is 0 if nothing was added.
    fn score(&self) -> f64 {
        self.settings.f_score(&self.counts)
    }

    /// Returns, for each order, the n-grams of the predictions, of the references, and the matches.
    fn counts(&self) -> Vec<f64> {
        let numbers =
            self.counts.iter().flat_map(|counts| [counts.predicted, counts.reference, counts.matches]);
        numbers.map(|count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let settings = settings.settings.clone();
        let mut orders = settings.no_counts();
        let mut counts = whole_numbers(Self::NAME, counts, 3 * orders.len())?.into_iter();
        let mut next = || counts.next().unwrap_or_default();
        for order in &mut orders {
            *order = OrderCounts { predicted: next(), reference: next(), matches: next() };
        }
        Ok(Self { settings, counts: orders })
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn punctuation_is_a_word_at_one_side_only() {
        assert_eq!(
            words("(hi) \"so, ... ! a é, end.\""),
            ["(hi", ")", "\"so", ",", "..", ".", "!", "a", "é", ",", "end.", "\""]
        );
        assert_eq!(words("'tis"), ["'", "tis"]);
    }

    #[test]
    fn errors_and_nothing_added() {
        let mut chrf = ChrF::new();
        assert!(chrf.add(&["a"], &[Vec::<String>::new()]).is_err());
        assert_eq!((chrf.score(), &chrf), (0.0, &ChrF::new()));
        assert!(chrf.merge(&ChrF::plus_plus()).is_err());
        assert!(ChrF::from_counts(&chrf, &[0.0; 24]).is_err());
        assert_eq!(ChrF::new().orders(0, 0).sentence("a", &["a"]), Ok(0.0));
    }
}
