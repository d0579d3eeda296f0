//! Frequencies for longer contexts, derived from those of the original training, and for samples longer than a context.

use std::f64::consts::TAU;

use serde::Deserialize;

/// How to derive the frequencies, as transformers does (`modeling_rope_utils.py`).
#[derive(Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub(super) enum Scaling {
    Default,
    /// Positions are closer together.
    Linear {
        factor: f64,
    },
    /// The base grows with a sample once it exceeds the model's positions (NTK-aware scaling, by bloc97 and emozilla).
    Dynamic {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
    },
    Yarn(Yarn),
    Longrope {
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        factor: Option<f64>,
        attention_factor: Option<f64>,
    },
}

/// YaRN (Peng et al., 2023, arXiv:2309.00071).
#[derive(Deserialize)]
pub(super) struct Yarn {
    factor: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
}

/// Frequencies, and for what they hold.
pub(super) struct Frequencies {
    /// Radians per position for each pair.
    pub frequencies: Vec<f64>,
    /// The factor of rotated numbers.
    pub factor: f64,
    /// How they change in long samples, if they do.
    pub longer: Option<Longer>,
}

impl Scaling {
    /// Scales the frequencies `plain` of a `base`, of a model for `positions` that was first trained on rows of
    /// `original` positions.
    ///
    /// # Errors
    ///
    /// What is expected of the fields, and what they hold.
    pub fn of(
        &self,
        plain: Vec<f64>,
        base: f64,
        positions: usize,
        original: usize,
    ) -> Result<Frequencies, (String, String)> {
        let context = original as f64;
        let longer = positions as f64 / context;
        let each =
            |scaled: &dyn Fn(f64) -> f64| -> Vec<f64> { plain.iter().map(|plain| scaled(*plain)).collect() };
        let unlimited = |frequencies| Frequencies { frequencies, factor: 1.0, longer: None };
        Ok(match *self {
            Self::Default => unlimited(plain),
            Self::Linear { factor } => unlimited(each(&|plain| plain / factor)),
            Self::Dynamic { factor } => {
                if plain.len() < 2 {
                    let found = format!("{}", 2 * plain.len());
                    return Err(("a model that rotates at least 4 numbers of a head".into(), found));
                }
                if !(factor > 0.0 && factor.is_finite()) {
                    return Err(("a `factor` above 0".into(), factor.to_string()));
                }
                let longer = Some(Longer { context: positions, rule: Rule::Growing { factor } });
                Frequencies { frequencies: plain, factor: 1.0, longer }
            }
            // Long waves are scaled as if positions were closer, short waves are unchanged, and waves in between get
            // a mixture.
            Self::Llama3 { factor, low_freq_factor: low, high_freq_factor: high } => {
                unlimited(each(&|plain| {
                    let waves = context * plain / TAU;
                    let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * plain / factor + kept * plain
                }))
            }
            Self::Yarn(ref yarn) => {
                let factor = yarn.factor.unwrap_or(longer);
                Frequencies {
                    frequencies: yarn.frequencies(&plain, factor, base, context),
                    factor: yarn.attention_factor(factor),
                    longer: None,
                }
            }
            Self::Longrope { ref short_factor, ref long_factor, factor, attention_factor } => {
                for (name, divisors) in [("short_factor", short_factor), ("long_factor", long_factor)] {
                    if divisors.len() != plain.len() {
                        let expected = format!("a `{name}` of {} numbers", plain.len());
                        return Err((expected, format!("one of {}", divisors.len())));
                    }
                    if let Some(found) = divisors.iter().find(|by| !(**by > 0.0 && by.is_finite())) {
                        return Err((format!("a `{name}` of numbers above 0"), found.to_string()));
                    }
                }
                let divided = |divisors: &[f64]| -> Vec<f64> {
                    plain.iter().zip(divisors).map(|(plain, by)| plain / by).collect()
                };
                let others = divided(long_factor).into_iter().map(|frequency| frequency as f32).collect();
                let longer = factor.unwrap_or(longer);
                let inferred = if longer <= 1.0 { 1.0 } else { (1.0 + longer.ln() / context.ln()).sqrt() };
                Frequencies {
                    frequencies: divided(short_factor),
                    factor: attention_factor.unwrap_or(inferred),
                    longer: Some(Longer { context: original, rule: Rule::Fixed(others) }),
                }
            }
        })
    }
}

impl Yarn {
    /// Pairs that turn often within the context keep their frequency, those that turn seldom have it divided by `factor`,
    /// and those in between get a mixture.
    fn frequencies(&self, plain: &[f64], factor: f64, base: f64, context: f64) -> Vec<f64> {
        let size = 2.0 * plain.len() as f64;
        // The pair that turns this many times, as a place among all pairs.
        let place = |turns: f64| size * (context / (turns * TAU)).ln() / (2.0 * base.ln());
        let of = |turns: Option<f64>, usual: f64| turns.filter(|turns| *turns != 0.0).unwrap_or(usual);
        let (first, last) = (place(of(self.beta_fast, 32.0)), place(of(self.beta_slow, 1.0)));
        let (first, last) =
            if self.truncate.unwrap_or(true) { (first.floor(), last.ceil()) } else { (first, last) };
        let (first, last) = (first.max(0.0), last.min(size - 1.0));
        let last = if first == last { last + 0.001 } else { last };
        let mixed = |(pair, plain): (usize, &f64)| {
            let divided = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
            plain / factor * divided + plain * (1.0 - divided)
        };
        plain.iter().enumerate().map(mixed).collect()
    }

    /// The factor of rotated numbers.
    fn attention_factor(&self, factor: f64) -> f64 {
        let of = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let given = |scale: Option<f64>| scale.filter(|scale| *scale != 0.0);
        match (self.attention_factor, given(self.mscale), given(self.mscale_all_dim)) {
            (Some(factor), _, _) => factor,
            (None, Some(scale), Some(of_all)) => of(scale) / of(of_all),
            _ => of(1.0),
        }
    }
}

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
