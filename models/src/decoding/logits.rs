//! A checked row of logits, and how it becomes a distribution: scores are adjusted for the tokens so far (repetition penalty,
//! n-grams, minimum length and forced tokens), then temperature, top-k, top-p and min-p apply.

use super::{Decoding, DecodingError};

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

impl Decoding {
    /// Adjusts the scores of the token after `tokens`. The last `written` tokens belong to the text, those before to
    /// the prompt. Banned tokens get minus infinity.
    pub(super) fn process(&self, scores: &mut [f64], tokens: &[u32], written: usize) {
        if self.repetition_penalty != 1.0 {
            penalize(scores, tokens, self.repetition_penalty);
        }
        for token in repeated(tokens, self.no_repeat_ngram) {
            ban(scores, token);
        }
        if written < self.min_new_tokens {
            self.end_tokens.iter().for_each(|token| ban(scores, *token));
        }
        if let (Some(first), [_]) = (self.forced_first, tokens) {
            force(scores, &[first]);
        }
        if !self.forced_last.is_empty() && written + 1 == self.max_new_tokens {
            force(scores, &self.forced_last);
        }
    }
}

/// Makes the tokens in `tokens` less likely, each once.
fn penalize(scores: &mut [f64], tokens: &[u32], penalty: f64) {
    let mut seen = tokens.to_vec();
    seen.sort_unstable();
    seen.dedup();
    for token in seen {
        if let Some(score) = scores.get_mut(token as usize) {
            *score = if *score < 0.0 { *score * penalty } else { *score / penalty };
        }
    }
}

/// The tokens that would complete a sequence of `length` tokens that already occurs in `tokens`.
fn repeated(tokens: &[u32], length: usize) -> impl Iterator<Item = u32> {
    // The beginning of such a sequence; `None` if there are too few tokens.
    let begun = length.checked_sub(1).and_then(|begun| tokens.len().checked_sub(begun));
    let begun = begun.map(|at| &tokens[at..]);
    tokens.windows(length.max(1)).filter_map(move |sequence| {
        let (last, first) = sequence.split_last()?;
        (Some(first) == begun).then_some(*last)
    })
}

/// Bans a token, if it is in the vocabulary.
fn ban(scores: &mut [f64], token: u32) {
    if let Some(score) = scores.get_mut(token as usize) {
        *score = f64::NEG_INFINITY;
    }
}

/// Bans all tokens but these, which become equally likely.
fn force(scores: &mut [f64], tokens: &[u32]) {
    scores.fill(f64::NEG_INFINITY);
    for token in tokens {
        if let Some(score) = scores.get_mut(*token as usize) {
            *score = 0.0;
        }
    }
}

impl Decoding {
    /// The probability of drawing each token. At least one score must be finite, and none may be positive infinity.
    pub(super) fn distribution(&self, mut scores: Vec<f64>) -> Vec<f64> {
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Subtract the highest score first, so that no temperature takes a score out of range.
        scores.iter_mut().for_each(|score| *score = (*score - highest) / self.temperature);
        keep_top_k(&mut scores, self.top_k);
        keep_top_p(&mut scores, self.top_p);
        keep_min_p(&mut scores, self.min_p);
        softmax(&scores)
    }
}

/// Keeps the `k` highest scores, and those equal to the last of them.
fn keep_top_k(scores: &mut [f64], k: usize) {
    if k == 0 || k >= scores.len() {
        return;
    }
    let mut sorted = scores.to_vec();
    let (_, &mut least, _) = sorted.select_nth_unstable_by(k - 1, |one, other| other.total_cmp(one));
    for score in scores.iter_mut().filter(|score| **score < least) {
        *score = f64::NEG_INFINITY;
    }
}

/// Removes the lowest scores whose total probability is at most `1 - p`, but never the highest. Of equal scores,
/// those of lower ids go first.
fn keep_top_p(scores: &mut [f64], p: f64) {
    if p >= 1.0 {
        return;
    }
    let probabilities = softmax(scores);
    let mut ascending: Vec<usize> = (0..scores.len()).collect();
    ascending.sort_by(|one, other| scores[*one].total_cmp(&scores[*other]));
    ascending.pop();
    let mut gone = 0.0;
    for token in ascending {
        gone += probabilities[token];
        if gone > 1.0 - p {
            break;
        }
        scores[token] = f64::NEG_INFINITY;
    }
}

/// Keeps scores whose probability is at least `p` times the highest one's. The highest score is 0, so this ratio is
/// the score's exponential.
fn keep_min_p(scores: &mut [f64], p: f64) {
    for score in scores.iter_mut().filter(|score| score.exp() < p) {
        *score = f64::NEG_INFINITY;
    }
}

/// The probabilities of scores that are at most 0, one of which is 0.
fn softmax(scores: &[f64]) -> Vec<f64> {
    let sum: f64 = scores.iter().map(|score| score.exp()).sum();
    scores.iter().map(|score| score.exp() / sum).collect()
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

    const BANNED: f64 = f64::NEG_INFINITY;

    #[test]
    fn a_repeated_token_is_penalized_once_for_either_sign() {
        let decoding = Decoding { repetition_penalty: 2.0, ..Decoding::default() };
        let mut scores = [1.0, -1.0, 4.0, -3.0];
        // The model reads token 9 but cannot write it.
        decoding.process(&mut scores, &[2, 1, 2, 9, 2], 0);
        assert_eq!(scores, [1.0, -2.0, 2.0, -3.0]);
    }

    #[test]
    fn no_ngram_repeats() {
        let tokens = [0, 1, 2, 0, 1, 3, 0, 1];
        let banned = |length| repeated(&tokens, length).collect::<Vec<_>>();
        let none: [u32; 0] = [];
        assert_eq!(banned(0), none);
        assert_eq!(banned(1), tokens);
        assert_eq!(banned(2), [2, 3]);
        assert_eq!(banned(3), [2, 3]);
        assert_eq!(banned(4), none);
        assert_eq!(banned(100), none);
        assert_eq!(repeated(&[], 1).count(), 0);
    }

    #[test]
    fn texts_have_the_minimum_length() {
        let decoding = Decoding { min_new_tokens: 2, end_tokens: vec![1, 9], ..Decoding::default() };
        for (written, expected) in [(0, BANNED), (1, BANNED), (2, 5.0)] {
            let mut scores = [4.0, 5.0];
            decoding.process(&mut scores, &[0; 6], written);
            assert_eq!(scores, [4.0, expected]);
        }
    }

    #[test]
    fn the_first_and_the_last_token_are_forced() {
        let decoding = Decoding {
            max_new_tokens: 3,
            min_new_tokens: 3,
            end_tokens: vec![2],
            forced_first: Some(1),
            forced_last: vec![0, 2, 9],
            ..Decoding::default()
        };
        let processed = |decoding: &Decoding, tokens: &[u32], written| {
            let mut scores = [4.0, 5.0, 6.0];
            decoding.process(&mut scores, tokens, written);
            scores
        };
        assert_eq!(processed(&decoding, &[2], 0), [BANNED, 0.0, BANNED]);
        // After a longer prompt, the model chooses.
        assert_eq!(processed(&decoding, &[2, 0], 0), [4.0, 5.0, BANNED]);
        assert_eq!(processed(&decoding, &[2, 1], 1), [4.0, 5.0, BANNED]);
        assert_eq!(processed(&decoding, &[2, 1, 1], 2), [0.0, BANNED, 0.0]);
        let short = Decoding { max_new_tokens: 1, min_new_tokens: 0, ..decoding };
        assert_eq!(processed(&short, &[2], 0), [0.0, BANNED, 0.0]);
    }

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        let is_close = |(found, expected): (&f64, &f64)| (found - expected).abs() < 1e-12;
        assert!(found.iter().zip(expected).all(is_close), "{found:?} {expected:?}");
    }

    fn scores(probabilities: &[f64]) -> Vec<f64> {
        probabilities.iter().map(|probability| probability.ln()).collect()
    }

    #[test]
    fn each_filter_leaves_what_it_says() {
        let drawn = Decoding { temperature: 1.0, ..Decoding::default() };
        let distribution = |decoding: Decoding| decoding.distribution(scores(&[0.25, 0.5, 0.05, 0.2]));
        close(&distribution(drawn.clone()), &[0.25, 0.5, 0.05, 0.2]);
        close(&distribution(Decoding { top_k: 2, ..drawn.clone() }), &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
        close(&distribution(Decoding { top_k: 9, ..drawn.clone() }), &[0.25, 0.5, 0.05, 0.2]);
        close(&distribution(Decoding { top_p: 0.7, ..drawn.clone() }), &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
        close(&distribution(Decoding { top_p: 0.0, ..drawn.clone() }), &[0.0, 1.0, 0.0, 0.0]);
        close(&distribution(Decoding { min_p: 0.45, ..drawn.clone() }), &[1.0 / 3.0, 2.0 / 3.0, 0.0, 0.0]);
        close(&distribution(Decoding { min_p: 1.0, ..drawn.clone() }), &[0.0, 1.0, 0.0, 0.0]);
        // Top-p comes first: without the last token, the third has 2/9, and would be removed too.
        let both = Decoding { top_p: 0.75, min_p: 0.3, ..drawn.clone() };
        let expected = [0.4, 0.3, 0.2, 0.0].map(|probability| probability / 0.9);
        close(&both.distribution(scores(&[0.4, 0.3, 0.2, 0.1])), &expected);
        // Squared probabilities.
        let sum = 0.0625 + 0.25 + 0.0025 + 0.04;
        let expected = [0.0625, 0.25, 0.0025, 0.04].map(|square| square / sum);
        close(&distribution(Decoding { temperature: 0.5, ..drawn }), &expected);
    }

    #[test]
    fn equal_scores_stay_at_top_k_and_go_from_the_first_at_top_p() {
        let drawn = Decoding { temperature: 1.0, ..Decoding::default() };
        let equal = vec![0.0; 4];
        close(&Decoding { top_k: 1, ..drawn.clone() }.distribution(equal.clone()), &[0.25; 4]);
        // Two of them make exactly the half that is removed.
        for top_p in [0.4, 0.5] {
            let decoding = Decoding { top_p, ..drawn.clone() };
            close(&decoding.distribution(equal.clone()), &[0.0, 0.0, 0.5, 0.5]);
        }
    }

    #[test]
    fn the_smallest_temperature_takes_the_most_likely() {
        let decoding = Decoding { temperature: f64::MIN_POSITIVE, top_p: 0.9, ..Decoding::default() };
        close(&decoding.distribution(vec![1.0, 3e38, -3e38, f64::NEG_INFINITY]), &[0.0, 1.0, 0.0, 0.0]);
    }
}
