//! A checked row of logits.

use super::DecodingError;

/// A row of logits that defines a distribution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logits<'a> {
    raw: &'a [f32],
    highest: f64,
    /// The logarithm of the sum of their exponentials, after subtracting `highest`.
    normalizer: f64,
}

impl<'a> Logits<'a> {
    /// Checks the logits of the token after the first `written` tokens of `row`.
    ///
    /// # Errors
    ///
    /// A logit is positive infinity or not a number, or all are minus infinity.
    pub fn read(raw: &'a [f32], row: u64, written: usize) -> Result<Self, DecodingError> {
        let is_wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        if let Some(token) = raw.iter().position(is_wrong) {
            return Err(DecodingError::NotANumber { row, written, token, found: raw[token] });
        }
        let highest = f64::from(raw.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        if highest == f64::NEG_INFINITY {
            return Err(DecodingError::NoToken { row, written });
        }
        let sum: f64 = raw.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
        Ok(Self { raw, highest, normalizer: sum.ln() })
    }

    /// The logits as f64.
    pub fn values(&self) -> Vec<f64> {
        self.raw.iter().map(|logit| f64::from(*logit)).collect()
    }

    /// The log probability of each token.
    pub fn log_probabilities(&self) -> Vec<f64> {
        self.raw.iter().map(|logit| self.normalized(*logit)).collect()
    }

    /// The log probability of one token.
    pub fn log_probability(&self, token: u32) -> f64 {
        self.normalized(self.raw[token as usize])
    }

    /// Subtract the highest first: next to large logits, rounding would swallow the normalizer.
    fn normalized(&self, logit: f32) -> f64 {
        f64::from(logit) - self.highest - self.normalizer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_are_of_a_distribution_however_large_the_logits() {
        let raw = [f32::MAX, 3.0, f32::MAX, f32::NEG_INFINITY];
        let logits = Logits::read(&raw, 0, 0).unwrap();
        let expected = [0.5, 0.0, 0.5, 0.0];
        for (token, log_probability) in logits.log_probabilities().into_iter().enumerate() {
            assert!((log_probability.exp() - expected[token]).abs() < 1e-12);
            assert_eq!(logits.log_probability(token as u32), log_probability);
        }
    }

    #[test]
    fn invalid_logits_are_reported_with_their_position() {
        let error = Logits::read(&[0.0, f32::NAN], 7, 3).unwrap_err().to_string();
        assert!(error.contains("row 7, after 3 tokens: the logit of token 1"), "{error}");
        assert!(error.contains("found NaN"), "{error}");
        let infinite = Logits::read(&[f32::INFINITY, 0.0], 7, 3).unwrap_err();
        assert_eq!(
            infinite,
            DecodingError::NotANumber { row: 7, written: 3, token: 0, found: f32::INFINITY }
        );
        let none = DecodingError::NoToken { row: 7, written: 3 };
        assert_eq!(Logits::read(&[f32::NEG_INFINITY; 2], 7, 3).unwrap_err(), none);
        assert_eq!(Logits::read(&[], 7, 3).unwrap_err(), none);
    }
}
