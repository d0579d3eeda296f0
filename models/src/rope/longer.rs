//! Frequencies of samples that are longer than a context.

/// How the frequencies change in samples that are longer than a context.
///
/// transformers decides by the longest row of a batch, and `dynamic` also by earlier batches. Here each sample has the
/// frequencies that it has in a batch of its own, so that its result doesn't depend on other samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Longer {
    /// The most tokens of a sample whose frequencies don't change.
    pub context: usize,
    pub rule: Rule,
}

/// The frequencies of longer samples.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rule {
    /// The same for all of them, in radians per position for each pair (`longrope`).
    Fixed(Vec<f32>),
    /// Those of a base that grows with the sample (`dynamic`).
    Growing { factor: f64 },
}

impl Longer {
    /// Returns the frequencies of a sample of so many tokens, where shorter samples have the frequencies `within`.
    pub fn frequencies(&self, within: &[f32], tokens: usize) -> Vec<f32> {
        if tokens <= self.context {
            return within.to_vec();
        }
        match &self.rule {
            Rule::Fixed(frequencies) => frequencies.clone(),
            // With d numbers of a head rotated, the base is multiplied by grownᵈᐟ⁽ᵈ⁻²⁾; pair i has base⁻²ⁱᐟᵈ.
            Rule::Growing { factor } => {
                let grown = factor * tokens as f64 / self.context as f64 - (factor - 1.0);
                let last = (within.len() - 1) as f64;
                let of =
                    |(pair, within): (usize, &f32)| f64::from(*within) * grown.powf(-(pair as f64) / last);
                within.iter().enumerate().map(|pair| of(pair) as f32).collect()
            }
        }
    }

    /// Whether the earlier tokens of a sample get other frequencies, once and for all, when it grows to `tokens` tokens.
    pub fn changes_at(&self, tokens: usize) -> bool {
        matches!(self.rule, Rule::Fixed(_)) && tokens == self.context + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longer_samples_have_other_frequencies() {
        let fixed = Longer { context: 4, rule: Rule::Fixed(vec![0.5, 0.25]) };
        assert_eq!([4, 5, 9].map(|tokens| fixed.frequencies(&[1.0, 0.1], tokens)[1]), [0.1, 0.25, 0.25]);
        assert_eq!([4, 5, 6].map(|tokens| fixed.changes_at(tokens)), [false, true, false]);
        // 2 · 6/4 - 1 = 2 and 2 · 8/4 - 1 = 3 divide the last of three frequencies.
        let growing = Longer { context: 4, rule: Rule::Growing { factor: 2.0 } };
        let last = |tokens| growing.frequencies(&[1.0, 0.1, 0.01], tokens)[2];
        assert_eq!([4, 6, 8].map(last), [0.01, 0.005, 0.01 / 3.0]);
        assert_eq!(growing.frequencies(&[1.0, 0.1, 0.01], 8)[0], 1.0);
        assert!(!growing.changes_at(5));
    }
}
