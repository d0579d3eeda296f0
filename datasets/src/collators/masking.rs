//! How many tokens are masked, and what replaces them.

use serde::{Deserialize, Serialize};

use crate::DataError;

/// How many tokens a masked language model predicts, and what it sees in their place.
///
/// The defaults are BERT's (Devlin et al., "BERT: Pre-training of deep bidirectional transformers for language
/// understanding", 2019): 15 % of the tokens are predicted; of these, 80 % are masked, 10 % replaced by a random token,
/// and the rest kept. In a run file, omitted settings have their default.
///
/// # Example
///
/// ```
/// use firebrick_datasets::collators::Masking;
///
/// let masking = Masking::default().probability(0.3)?.replaced(1.0, 0.0)?.whole_words(true);
/// assert!(masking.probability(f64::NAN).is_err());
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Masking {
    pub(super) probability: f64,
    pub(super) masked: f64,
    pub(super) random: f64,
    pub(super) whole_words: bool,
    pub(super) seed: u64,
}

impl Default for Masking {
    fn default() -> Self {
        Self { probability: 0.15, masked: 0.8, random: 0.1, whole_words: false, seed: 0 }
    }
}

impl Masking {
    /// Sets the probability with which a token, or a whole word, is predicted. Default: 0.15.
    ///
    /// # Errors
    ///
    /// [`DataError::Probability`] if it is not from 0 to 1.
    pub fn probability(mut self, probability: f64) -> Result<Self, DataError> {
        self.probability = checked("probability", probability)?;
        Ok(self)
    }

    /// Sets the fractions of the predicted tokens that are replaced by the mask token and by a random token. The rest
    /// is kept as it is. Default: 0.8 and 0.1.
    ///
    /// # Errors
    ///
    /// [`DataError::Probability`] if one of them, or their sum, is not from 0 to 1.
    pub fn replaced(mut self, masked: f64, random: f64) -> Result<Self, DataError> {
        self.masked = checked("masked", masked)?;
        self.random = checked("random", random)?;
        // Rounding may exceed 1 slightly, as in 0.7 + 0.2 + 0.1.
        let sum = masked + random;
        checked("masked + random", if sum <= 1.0 + 1e-9 { sum.min(1.0) } else { sum })?;
        Ok(self)
    }

    /// Sets whether the tokens of a word are predicted together or not at all. Default: no.
    pub fn whole_words(mut self, whole_words: bool) -> Self {
        self.whole_words = whole_words;
        self
    }

    /// Sets the random seed. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

fn checked(setting: &'static str, value: f64) -> Result<f64, DataError> {
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(DataError::Probability { setting, value }) }
}

/// The settings as they appear in a file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename = "Masking")]
struct Unchecked {
    probability: f64,
    masked: f64,
    random: f64,
    whole_words: bool,
    seed: u64,
}

impl Default for Unchecked {
    fn default() -> Self {
        let Masking { probability, masked, random, whole_words, seed } = Masking::default();
        Self { probability, masked, random, whole_words, seed }
    }
}

impl TryFrom<Unchecked> for Masking {
    type Error = DataError;

    fn try_from(file: Unchecked) -> Result<Self, DataError> {
        let masking = Self::default().whole_words(file.whole_words).seed(file.seed);
        masking.probability(file.probability)?.replaced(file.masked, file.random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks() {
        let masking = Masking::default();
        for value in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(matches!(masking.probability(value), Err(DataError::Probability { .. })), "{value}");
            assert!(masking.replaced(value, 0.0).is_err() && masking.replaced(0.0, value).is_err());
        }
        let error = masking.replaced(0.8, 0.3).unwrap_err().to_string();
        assert!(error.starts_with("`masked + random` is 1.1"), "{error}");
        assert!(masking.replaced(0.9, 0.1).is_ok() && masking.replaced(0.7, 0.2 + 0.1).is_ok());
    }

    #[test]
    fn in_a_file() {
        let read = |json: &str| serde_json::from_str::<Masking>(json);
        assert_eq!(read("{}").unwrap(), Masking::default());
        let masking = read(r#"{"probability":0.3,"whole_words":true}"#).unwrap();
        assert_eq!(masking, Masking::default().probability(0.3).unwrap().whole_words(true));
        assert_eq!(read(&serde_json::to_string(&masking).unwrap()).unwrap(), masking);
        assert!(read(r#"{"masked":0.95}"#).is_err());
        assert!(read(r#"{"mask":0.5}"#).is_err());
    }
}
