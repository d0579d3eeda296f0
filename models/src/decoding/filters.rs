//! Turning scores into a distribution: temperature, top-k, top-p, min-p.

use super::Decoding;

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
