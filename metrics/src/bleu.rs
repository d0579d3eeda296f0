//! BLEU: the share of a translation's n-grams that occur in its references.

use crate::counts::whole_array;
use crate::pairs::pairs;
use crate::words::{Ngrams, common, ngrams};
use crate::{Metric, MetricError, words};

/// The longest n-grams to count.
const ORDERS: usize = 4;
/// The logarithm used for a precision of zero, as in sacrebleu.
const LOG_OF_ZERO: f64 = -9_999_999_999.0;

/// Corpus BLEU (Papineni et al., 2002, <https://aclanthology.org/P02-1040/>), computed like sacrebleu
/// (Post, 2018, <https://aclanthology.org/W18-6319/>).
///
/// The defaults match sacrebleu's signature `case:mixed|eff:no|tok:13a|smooth:exp`. Pass texts as written, not
/// tokenized.
///
/// # Example
///
/// ```
/// use firebrick_metrics::{Bleu, Metric};
///
/// let mut bleu = Bleu::new();
/// bleu.add(
///     &["The dog bit the man.", "It wasn't surprising."],
///     &[
///         vec!["The dog bit the man.", "The dog had bit the man."],
///         vec!["It was not unexpected.", "No one was surprised.", "It wasn't a surprise."],
///     ],
/// )?;
/// let score = bleu.score();
/// assert_eq!(format!("{:.2}", score.score), "68.97");
/// assert_eq!((score.predicted_length, score.reference_length), (10, 11));
/// # Ok::<(), firebrick_metrics::MetricError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bleu {
    settings: Settings,
    counts: BleuCounts,
}

/// How to smooth a precision if no n-gram of an order matches (Chen and Cherry, 2014,
/// <https://aclanthology.org/W14-3346/>).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Smoothing {
    /// The precision is that of half a matching n-gram, then of a quarter, and so on for each such order: the default,
    /// as in `mteval-v13a.pl`.
    #[default]
    Exp,
    /// Counts this many n-grams as matches; sacrebleu uses 0.1.
    Floor(f64),
    /// Adds this number to the matches and to the total, from order 2 on; sacrebleu uses 1.
    AddK(f64),
    /// The score is 0.
    None,
}

/// How BLEU splits texts into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BleuTokens {
    /// sacrebleu's tokenizer 13a, the default: for languages in Latin, Greek or Cyrillic script.
    #[default]
    Mteval13a,
    /// Splits at white space only, for tokenized texts. sacrebleu calls it `none`.
    Whitespace,
}

#[derive(Debug, Clone, PartialEq, Default)]
struct Settings {
    smoothing: Smoothing,
    tokens: BleuTokens,
    lowercase: bool,
    effective_order: bool,
}

/// A BLEU score and its components.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BleuScore {
    /// From 0 to 100, up to rounding.
    pub score: f64,
    /// The smoothed precision of n-grams of order 1 to 4, from 0 to 100.
    pub precisions: [f64; ORDERS],
    /// The penalty for predictions that are shorter than the references, as a factor from 0 to 1.
    pub brevity_penalty: f64,
    /// Total tokens of the predictions.
    pub predicted_length: u64,
    /// Total tokens of the references, counting for each prediction the reference of the nearest length.
    pub reference_length: u64,
    /// Matching n-grams of order 1 to 4.
    pub matches: [u64; ORDERS],
    /// N-grams of order 1 to 4 in all predictions.
    pub totals: [u64; ORDERS],
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct BleuCounts {
    predicted_length: u64,
    reference_length: u64,
    matches: [u64; ORDERS],
    totals: [u64; ORDERS],
}

impl Bleu {
    /// Creates BLEU with sacrebleu's defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the smoothing. Call it before you add anything.
    ///
    /// # Errors
    ///
    /// [`MetricError::Value`] for a negative or non-finite number.
    pub fn smoothing(mut self, smoothing: Smoothing) -> Result<Self, MetricError> {
        if let Smoothing::Floor(value) | Smoothing::AddK(value) = smoothing
            && !(value >= 0.0 && value.is_finite())
        {
            let (setting, expected) = ("smoothing of BLEU", "a finite number from 0 on");
            return Err(MetricError::Value { setting, expected, found: value });
        }
        self.settings.smoothing = smoothing;
        Ok(self)
    }

    /// Sets the tokenizer. Call it before you add anything.
    pub fn tokens(mut self, tokens: BleuTokens) -> Self {
        self.settings.tokens = tokens;
        self
    }

    /// Ignores case. Call it before you add anything.
    pub fn lowercase(mut self) -> Self {
        self.settings.lowercase = true;
        self
    }

    /// Leaves out orders for which the predictions are too short, instead of scoring 0.
    /// [`sentence`](Self::sentence) always does so.
    pub fn effective_order(mut self) -> Self {
        self.settings.effective_order = true;
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
            self.counts.add(&self.settings, prediction, references);
        }
        Ok(())
    }

    /// Scores one prediction alone, with effective order, like sacrebleu's `sentence_bleu`. Does not add it.
    ///
    /// # Errors
    ///
    /// [`MetricError::NoReference`] if there is none.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_metrics::Bleu;
    ///
    /// assert!((Bleu::new().sentence("Good morning!", &["Good morning!"])?.score - 100.0).abs() < 1e-9);
    /// # Ok::<(), firebrick_metrics::MetricError>(())
    /// ```
    pub fn sentence<S: AsRef<str>>(
        &self,
        prediction: &str,
        references: &[S],
    ) -> Result<BleuScore, MetricError> {
        let settings = Settings { effective_order: true, ..self.settings.clone() };
        let mut sentence = Self { settings, counts: BleuCounts::default() };
        sentence.add(&[prediction], &[references])?;
        Ok(sentence.score())
    }
}

impl BleuTokens {
    /// Splits a text into tokens.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_metrics::BleuTokens;
    ///
    /// let tokens = BleuTokens::Mteval13a.split("He paid $1,000.5, didn't he?");
    /// assert_eq!(tokens, ["He", "paid", "$", "1,000.5", ",", "didn't", "he", "?"]);
    /// ```
    pub fn split(self, text: &str) -> Vec<String> {
        // Trims first, because a newline at the end could join lines.
        let text = words::trim_end(text);
        match self {
            Self::Mteval13a => words::split(&words::tokenize_13a(text)).map(str::to_owned).collect(),
            Self::Whitespace => words::split(text).map(str::to_owned).collect(),
        }
    }
}

impl Settings {
    fn tokenize(&self, text: &str) -> Vec<String> {
        if self.lowercase { self.tokens.split(&text.to_lowercase()) } else { self.tokens.split(text) }
    }
}

impl BleuCounts {
    fn add<S: AsRef<str>>(&mut self, settings: &Settings, prediction: &str, references: &[S]) {
        let prediction = settings.tokenize(prediction);
        let references: Vec<Vec<String>> =
            references.iter().map(|reference| settings.tokenize(reference.as_ref())).collect();

        let lengths = references.iter().map(Vec::len);
        // The nearest length, and the shorter of two equally near ones.
        let nearest = lengths.min_by_key(|&length| (length.abs_diff(prediction.len()), length));
        self.predicted_length += prediction.len() as u64;
        self.reference_length += nearest.unwrap_or_default() as u64;
        let orders = self.matches.iter_mut().zip(&mut self.totals);
        for (order, (matches, totals)) in (1..).zip(orders) {
            // The largest count of each n-gram in any reference.
            let mut allowed = Ngrams::new();
            for reference in &references {
                for (ngram, count) in ngrams(reference, order) {
                    let most = allowed.entry(ngram).or_default();
                    *most = count.max(*most);
                }
            }
            *matches += common(&ngrams(&prediction, order), &allowed);
            *totals += prediction.windows(order).len() as u64;
        }
    }

    fn brevity_penalty(&self) -> f64 {
        let (predicted, reference) = (self.predicted_length as f64, self.reference_length as f64);
        if predicted >= reference {
            1.0
        } else if predicted > 0.0 {
            (1.0 - reference / predicted).exp()
        } else {
            0.0
        }
    }

    /// Returns the precisions, and the number of orders that have n-grams.
    fn precisions(&self, smoothing: Smoothing) -> ([f64; ORDERS], usize) {
        let mut precisions = [0.0; ORDERS];
        let mut halved = 1.0;
        let counts = self.matches.iter().zip(&self.totals);
        for (index, (precision, (&matches, &total))) in precisions.iter_mut().zip(counts).enumerate() {
            let added = match smoothing {
                Smoothing::AddK(k) if index > 0 => k,
                _ => 0.0,
            };
            let (matches, total) = (matches as f64 + added, total as f64 + added);
            if total == 0.0 {
                return (precisions, index);
            }
            *precision = 100.0 * matches / total;
            match smoothing {
                Smoothing::Exp if matches == 0.0 => {
                    halved *= 2.0;
                    *precision = 100.0 / (halved * total);
                }
                Smoothing::Floor(value) if matches == 0.0 => *precision = 100.0 * value / total,
                _ => {}
            }
        }
        (precisions, ORDERS)
    }
}

impl Metric for Bleu {
    type Score = BleuScore;

    const NAME: &'static str = "BLEU";

    /// Computes the corpus score. It is 0 if no token matches or nothing was added.
    fn score(&self) -> BleuScore {
        let BleuCounts { predicted_length, reference_length, matches, totals } = self.counts;
        let brevity_penalty = self.counts.brevity_penalty();
        let (mut score, mut precisions) = (0.0, [0.0; ORDERS]);
        if matches.iter().any(|&matches| matches > 0) {
            let (smoothed, seen) = self.counts.precisions(self.settings.smoothing);
            let orders = if self.settings.effective_order { seen } else { ORDERS };
            let log = |&precision: &f64| if precision == 0.0 { LOG_OF_ZERO } else { precision.ln() };
            let logs: f64 = smoothed.iter().take(orders).map(log).sum();
            score = brevity_penalty * (logs / orders as f64).exp();
            precisions = smoothed;
        }
        BleuScore { score, precisions, brevity_penalty, predicted_length, reference_length, matches, totals }
    }

    /// Returns the lengths of predictions and references, then the matches of each order, then the totals of each
    /// order.
    fn counts(&self) -> Vec<f64> {
        let counts = &self.counts;
        let numbers = [counts.predicted_length, counts.reference_length].into_iter();
        numbers.chain(counts.matches).chain(counts.totals).map(|count| count as f64).collect()
    }

    fn from_counts(settings: &Self, counts: &[f64]) -> Result<Self, MetricError> {
        let [predicted_length, reference_length, m1, m2, m3, m4, t1, t2, t3, t4] =
            whole_array(Self::NAME, counts)?;
        let (matches, totals) = ([m1, m2, m3, m4], [t1, t2, t3, t4]);
        let counts = BleuCounts { predicted_length, reference_length, matches, totals };
        Ok(Self { settings: settings.settings.clone(), counts })
    }

    fn same_settings(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_nothing_added() {
        let mut bleu = Bleu::new();
        let none: [&str; 0] = [];
        let error = bleu.add(&["a", "b"], &[vec!["a"], vec![]]).unwrap_err();
        assert_eq!(error, MetricError::NoReference { segment: 1 });
        assert!(bleu.add(&["a", "b"], &[["a"]]).is_err());
        assert!(bleu.sentence("a", &none).is_err());
        assert_eq!(bleu, Bleu::new());
        assert_eq!(bleu.score().score, 0.0);
        for value in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Bleu::new().smoothing(Smoothing::Floor(value)).is_err());
        }
        assert!(bleu.merge(&Bleu::new().lowercase()).is_err());
    }

    #[test]
    fn the_nearest_reference_gives_the_length_and_the_shorter_of_two() {
        let bleu = Bleu::new();
        let length = |references: &[&str]| bleu.sentence("a b c", references).unwrap().reference_length;
        assert_eq!(length(&["a b c d", "a b"]), 2);
        assert_eq!(length(&["a", "a b c d"]), 4);
    }
}
