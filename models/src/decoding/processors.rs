//! Adjusting scores for the tokens so far: repetition penalty, n-grams, minimum length and forced tokens.

use super::Decoding;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
