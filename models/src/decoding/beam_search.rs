//! Beam search: keeps the best of all possible continuations.

use super::logits::Logits;
use super::{Decoding, DecodingError, EarlyStopping, Prompt, Search, Step, Text};

/// The search for the texts of one prompt.
pub(super) struct BeamSearch<'a> {
    decoding: &'a Decoding,
    prompt: &'a Prompt,
    written: usize,
    /// The beams that continue, best first.
    beams: Vec<Beam>,
    /// The texts that have ended, best first; at most `beams` of them.
    ended: Vec<Text>,
}

struct Beam {
    /// The prompt, then the text.
    tokens: Vec<u32>,
    /// The sum of the log probabilities after the penalties.
    sum: f64,
    /// The sum of the log probabilities before the penalties.
    log_probability: f64,
}

/// A possible next token.
struct Candidate {
    /// The index of the beam that it continues.
    from: usize,
    token: u32,
    /// The beam's sum of log probabilities after the penalties, including this token.
    sum: f64,
}

impl<'a> BeamSearch<'a> {
    /// Starts the search for a prompt.
    pub fn new(decoding: &'a Decoding, prompt: &'a Prompt) -> Self {
        let beam = Beam { tokens: prompt.tokens.clone(), sum: 0.0, log_probability: 0.0 };
        Self { decoding, prompt, written: 0, beams: vec![beam], ended: Vec::new() }
    }

    /// The possible next tokens, best first. There are enough of them that, even if all beams end with every end
    /// token, `beams` candidates are left.
    fn candidates(&self, rows: &[Logits]) -> Vec<Candidate> {
        let better = |one: &Candidate, other: &Candidate| {
            other.sum.total_cmp(&one.sum).then_with(|| (one.from, one.token).cmp(&(other.from, other.token)))
        };
        let kept = self.decoding.beams.saturating_mul(self.decoding.end_tokens.len().max(1) + 1);
        let keep_best = |candidates: &mut Vec<Candidate>| {
            if kept < candidates.len() {
                candidates.select_nth_unstable_by(kept, better);
                candidates.truncate(kept);
            }
        };
        let mut candidates = Vec::new();
        for (from, (beam, logits)) in self.beams.iter().zip(rows).enumerate() {
            let mut scores = logits.log_probabilities();
            self.decoding.process(&mut scores, &beam.tokens, self.written);
            let possible = (0u32..).zip(scores).filter(|(_, score)| *score > f64::NEG_INFINITY);
            candidates.extend(possible.map(|(token, score)| Candidate {
                from,
                token,
                sum: beam.sum + score,
            }));
            // Holds one vocabulary beyond the best, rather than one for each beam.
            keep_best(&mut candidates);
        }
        candidates.sort_unstable_by(better);
        candidates
    }

    /// The score that ranks texts.
    fn score(&self, sum: f64, length: usize) -> f64 {
        sum / (length as f64).powf(self.decoding.length_penalty)
    }

    /// Whether no beam continues, or none needs to.
    fn is_over(&self) -> bool {
        let (Some(best), Some(worst)) = (self.beams.first(), self.ended.last()) else {
            return self.beams.is_empty();
        };
        let length = match self.decoding.early_stopping {
            EarlyStopping::Impossible if self.decoding.length_penalty > 0.0 => self.decoding.max_new_tokens,
            _ => self.written,
        };
        let is_settled = || {
            self.decoding.early_stopping == EarlyStopping::Full || self.score(best.sum, length) <= worst.score
        };
        self.ended.len() >= self.decoding.beams && is_settled()
    }
}

impl Search for BeamSearch<'_> {
    fn advance(&mut self, rows: &[&[f32]]) -> Result<Vec<Step>, DecodingError> {
        let (row, written) = (self.prompt.row, self.written);
        let rows: Vec<_> =
            rows.iter().map(|raw| Logits::read(raw, row, written)).collect::<Result<_, _>>()?;
        let candidates = self.candidates(&rows);
        if candidates.is_empty() && self.ended.is_empty() {
            return Err(DecodingError::Banned { row, written });
        }
        self.written += 1;
        let (mut beams, mut steps) = (Vec::new(), Vec::new());
        for (place, Candidate { from, token, sum }) in candidates.into_iter().enumerate() {
            let beam = &self.beams[from];
            let log_probability = beam.log_probability + rows[from].log_probability(token);
            let with_token = |before: &[u32]| before.iter().copied().chain([token]).collect::<Vec<_>>();
            match self.decoding.end(token, self.written) {
                // A candidate ranked below the first `beams` does not end a text, even if no better one does.
                Some(end) if place < self.decoding.beams => {
                    let tokens = with_token(&beam.tokens[self.prompt.tokens.len()..]);
                    let score = self.score(sum, self.written);
                    self.ended.push(Text { tokens, log_probability, score, end });
                }
                None if beams.len() < self.decoding.beams => {
                    beams.push(Beam { tokens: with_token(&beam.tokens), sum, log_probability });
                    steps.push(Step { from, token });
                }
                _ => {}
            }
        }
        // A stable sort: of equal texts, the one that ended first stays.
        self.ended.sort_by(|one, other| other.score.total_cmp(&one.score));
        self.ended.truncate(self.decoding.beams);
        self.beams = beams;
        if self.is_over() {
            steps.clear();
        }
        Ok(steps)
    }

    fn texts(mut self: Box<Self>) -> Vec<Text> {
        self.ended.truncate(self.decoding.returned);
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoding::{End, Rereading, Row};

    /// After token 1, which is less likely at first, token 3 is nearly certain; after token 0, no token is.
    fn read(rows: &[Row]) -> Result<Vec<f32>, DecodingError> {
        let logits = |row: &Row| -> [f32; 4] {
            match row.tokens.last() {
                None => [0.6, 0.4, 0.0, 0.0],
                Some(1) => [0.0, 0.05, 0.0, 0.95],
                _ => [0.25; 4],
            }
        };
        Ok(rows.iter().flat_map(logits).map(f32::ln).collect())
    }

    #[test]
    fn a_token_that_leads_to_a_likelier_text_is_found() {
        let prompts = [Prompt::new(0, [])];
        let found = |beams| {
            let decoding = Decoding { max_new_tokens: 2, beams, length_penalty: 1.0, ..Decoding::default() };
            decoding.write(&mut Rereading::new(&prompts, 4, read), &prompts).unwrap()[0][0].clone()
        };
        assert_eq!(found(1).tokens, [0, 0]);
        let best = found(2);
        assert_eq!(best.tokens, [1, 3]);
        assert!((best.log_probability - (0.4f64 * 0.95).ln()).abs() < 1e-6);
        assert!((best.score - best.log_probability / 2.0).abs() < 1e-12);
    }
    #[test]
    fn the_search_ends_when_no_beam_can_improve() {
        use EarlyStopping::{Full, Impossible, Unlikely};
        // The best beam has the sum -4: its score is -2 at its 2 tokens and -0.4 at the maximum of 10, and with the
        // other penalty -8 and -40.
        for (early_stopping, length_penalty, worst, expected) in [
            (Full, 1.0, -9.0, true),
            (Unlikely, 1.0, -2.0, true),
            (Unlikely, 1.0, -2.1, false),
            (Impossible, 1.0, -0.4, true),
            (Impossible, 1.0, -0.5, false),
            (Unlikely, -1.0, -8.0, true),
            (Unlikely, -1.0, -8.1, false),
            (Impossible, -1.0, -8.0, true),
            (Impossible, -1.0, -8.1, false),
        ] {
            let beams = 2;
            let decoding =
                Decoding { max_new_tokens: 10, beams, early_stopping, length_penalty, ..Decoding::default() };
            let prompt = Prompt::new(0, []);
            let text = |score| Text { tokens: vec![0], log_probability: score, score, end: End::Token };
            let beam = |sum| Beam { tokens: vec![0; 2], sum, log_probability: sum };
            let mut search = BeamSearch::new(&decoding, &prompt);
            (search.written, search.beams) = (2, vec![beam(-4.0), beam(-5.0)]);
            search.ended = vec![text(-0.1)];
            assert!(!search.is_over(), "one place is free");
            search.ended.push(text(worst));
            assert_eq!(search.is_over(), expected, "{early_stopping:?} {length_penalty} {worst}");
            search.beams.clear();
            assert!(search.is_over());
        }
    }
}
