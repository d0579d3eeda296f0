//! Greedy decoding and sampling: each text grows by itself.

use rand::{RngExt, SeedableRng, rngs::ChaCha8Rng};

use super::logits::Logits;
use super::{Decoding, DecodingError, End, Prompt, Search, Step, Text};

/// The texts of one prompt, each of which grows by itself.
pub(super) struct Samples<'a> {
    decoding: &'a Decoding,
    prompt: &'a Prompt,
    written: usize,
    samples: Vec<Sample>,
}

struct Sample {
    /// The prompt, then the text.
    tokens: Vec<u32>,
    log_probability: f64,
    /// `None` if nothing is drawn.
    generator: Option<ChaCha8Rng>,
    end: Option<End>,
}

impl<'a> Samples<'a> {
    /// Prepares the texts of a prompt. They are allocated only after the check that memory suffices.
    pub fn new(decoding: &'a Decoding, prompt: &'a Prompt) -> Self {
        Self { decoding, prompt, written: 0, samples: Vec::new() }
    }

    fn begun(&self) -> Vec<Sample> {
        let Self { decoding, prompt, .. } = self;
        let draws = decoding.temperature > 0.0;
        let sample = |copy: usize| Sample {
            tokens: prompt.tokens.clone(),
            log_probability: 0.0,
            generator: draws.then(|| generator(decoding.seed, prompt.row, copy as u64)),
            end: None,
        };
        (0..decoding.returned).map(sample).collect()
    }
}

impl Search for Samples<'_> {
    fn advance(&mut self, rows: &[&[f32]]) -> Result<Vec<Step>, DecodingError> {
        let (row, written) = (self.prompt.row, self.written);
        if written == 0 {
            self.samples = self.begun();
        }
        self.written += 1;
        let mut steps = Vec::new();
        for (place, sample) in self.samples.iter_mut().filter(|sample| sample.end.is_none()).enumerate() {
            // At first, all copies continue the prompt's single row.
            let from = if written == 0 { 0 } else { place };
            let logits = Logits::read(rows[from], row, written)?;
            let mut scores = logits.values();
            self.decoding.process(&mut scores, &sample.tokens, written);
            let best = highest(&scores).ok_or(DecodingError::Banned { row, written })?;
            let token = match &mut sample.generator {
                None => best,
                Some(generator) => {
                    draw(&self.decoding.distribution(scores), generator.random()).unwrap_or(best)
                }
            };
            sample.tokens.push(token);
            sample.log_probability += logits.log_probability(token);
            sample.end = self.decoding.end(token, self.written);
            if sample.end.is_none() {
                steps.push(Step { from, token });
            }
        }
        Ok(steps)
    }

    fn texts(self: Box<Self>) -> Vec<Text> {
        let start = self.prompt.tokens.len();
        let text = |mut sample: Sample| Text {
            tokens: sample.tokens.split_off(start),
            log_probability: sample.log_probability,
            score: sample.log_probability,
            end: sample.end.unwrap_or(End::Length),
        };
        self.samples.into_iter().map(text).collect()
    }
}

/// The token with the highest score; the first of equal ones. `None` if all are banned.
fn highest(scores: &[f64]) -> Option<u32> {
    let possible = (0u32..).zip(scores).filter(|(_, score)| **score > f64::NEG_INFINITY);
    possible.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(token, _)| token)
}

/// The random numbers of text `copy` of a row, independent of all other rows.
fn generator(seed: u64, row: u64, copy: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, number) in key.chunks_exact_mut(8).zip([seed, row, copy]) {
        part.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// The token whose share of the cumulative distribution contains `point`, in `0.0..1.0`; `None` if no token is
/// possible.
fn draw(probabilities: &[f64], point: f64) -> Option<u32> {
    let possible = || (0u32..).zip(probabilities).filter(|(_, probability)| **probability > 0.0);
    let mut rest = point * probabilities.iter().sum::<f64>();
    let found = possible().find(|(_, probability)| {
        rest -= **probability;
        rest < 0.0
    });
    // Rounding may leave the last share slightly short.
    found.or_else(|| possible().last()).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::RngExt;

    use super::*;
    use crate::decoding::table_model::Table;

    #[test]
    fn texts_depend_only_on_seed_row_and_copy() {
        let table = Table { vocabulary: 9, logits: vec![0.0; 729] };
        let prompts = [4, 5].map(|row| Prompt::new(row, [1]));
        let write = |seed| {
            let decoding = Decoding { temperature: 1.0, returned: 3, seed, ..Decoding::default() };
            decoding.write(&mut table.model(&prompts), &prompts).unwrap()
        };
        let texts: Vec<_> = [0, 1].into_iter().flat_map(write).flatten().map(|text| text.tokens).collect();
        assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), 2 * 2 * 3);
        assert_eq!(write(1), write(1));
    }

    #[test]
    fn the_highest_is_the_first_of_equal_ones() {
        let banned = f64::NEG_INFINITY;
        assert_eq!(highest(&[banned, 1.0, 3.0, 3.0]), Some(2));
        assert_eq!(highest(&[banned, -1e308]), Some(1));
        assert_eq!(highest(&[banned; 3]), None);
        assert_eq!(highest(&[]), None);
    }

    #[test]
    fn a_draw_follows_the_distribution() {
        let mut counts = [0; 4];
        for point in (0..400).map(|i| (f64::from(i) + 0.5) / 400.0) {
            counts[draw(&[0.25, 0.5, 0.0, 0.25], point).unwrap() as usize] += 1;
        }
        assert_eq!(counts, [100, 200, 0, 100]);
    }

    #[test]
    fn impossible_tokens_are_never_drawn() {
        for point in [0.0, 0.5, 1.0 - f64::EPSILON / 2.0, 1.0] {
            assert_eq!(draw(&[0.0, 1.0, 0.0], point), Some(1));
        }
        assert_eq!(draw(&[0.0; 3], 0.5), None);
        assert_eq!(draw(&[], 0.5), None);
    }

    #[test]
    fn seed_row_and_copy_each_change_the_numbers() {
        let key = |i: u64| (i % 3, i / 3 % 3, i / 9);
        let first = |(seed, row, copy)| generator(seed, row, copy).random::<u64>();
        assert_eq!((0..27).map(|i| first(key(i))).collect::<BTreeSet<_>>().len(), 27);
        assert_eq!(first((1, 2, 0)), first((1, 2, 0)));
    }
}
