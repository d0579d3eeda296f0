//! The moving average of the weights in a run file.

use firebrick_strategies::Ema;
use serde::{Deserialize, Serialize};

/// The exponential moving average of the weights: `Ema(decay: 0.999)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmaConfig {
    /// The share of the average that each update keeps, at least 0 and below 1.
    pub decay: f64,
    /// Whether the first updates keep a smaller share, `(1 + t) / (10 + t)` after `t` updates. Default: yes.
    #[serde(default = "default_warmup")]
    pub warmup: bool,
}

fn default_warmup() -> bool {
    true
}

impl EmaConfig {
    pub(super) fn recipe(&self) -> Ema {
        let ema = Ema::new(self.decay);
        if self.warmup { ema } else { ema.without_warmup() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Run, RunError, StrategyConfig};

    fn strategies(text: &str) -> Result<Vec<StrategyConfig>, RunError> {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        Run::parse("file", file, &[format!("strategies={text}")]).map(|run| run.strategies)
    }

    #[test]
    fn the_warmup_is_on_unless_it_is_put_off() {
        let given = strategies("[Ema(decay: 0.999), Ema(decay: 0.9, warmup: false)]").unwrap();
        let recipes = given.iter().map(|strategy| match strategy {
            StrategyConfig::Ema(ema) => ema.recipe(),
            other => panic!("{other:?}"),
        });
        assert_eq!(recipes.collect::<Vec<_>>(), [Ema::new(0.999), Ema::new(0.9).without_warmup()]);
    }

    #[test]
    fn a_decay_that_cannot_be_is_refused_by_its_place() {
        let error = strategies("[Ema(decay: 1.0)]").unwrap_err().to_string();
        assert!(error.contains("`strategies.0.decay` must be at least 0 and below 1, found 1"), "{error}");
        let error = strategies("[Ema(decya: 0.9)]").unwrap_err().to_string();
        assert!(error.contains("did you mean `decay`?"), "{error}");
    }
}
