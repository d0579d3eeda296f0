//! LoRA in a run file.

use firebrick_strategies::Lora;
use serde::{Deserialize, Serialize};

/// Trains low-rank factors beside frozen matrices:
/// `Lora(rank: 8, alpha: 16, paths: ["*.query.weight"], also: ["classifier"])`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// The number of columns of the first factor, and of rows of the second.
    pub rank: usize,
    /// The product of the factors is scaled by `alpha / rank`. Default: the rank.
    #[serde(default)]
    pub alpha: Option<f64>,
    /// The paths of the matrices that get factors; `*` stands for any characters. Default: the attention projections.
    #[serde(default)]
    pub paths: Vec<String>,
    /// Further parameters that are trained in full. A head that the model's folder lacks is always included. Default:
    /// none.
    #[serde(default)]
    pub also: Vec<String>,
    /// Parameters that are trained in full because the model's folder lacks them. Set when the folder is opened; never
    /// written to a file.
    #[serde(skip)]
    pub fresh: Vec<String>,
}

impl LoraConfig {
    /// Writes the settings as in a run file, without those at their defaults.
    pub(super) fn written(&self) -> String {
        let patterns = |name: &str, of: &[String]| (!of.is_empty()).then(|| format!("{name}: {of:?}"));
        let rank = Some(format!("rank: {}", self.rank));
        let alpha = self.alpha.map(|alpha| format!("alpha: {alpha:?}"));
        let settings = [rank, alpha, patterns("paths", &self.paths), patterns("also", &self.also)];
        format!("Lora({})", settings.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    pub(super) fn recipe(&self) -> Lora {
        let lora = Lora::rank(self.rank).on(self.paths.clone()).also(self.also.clone());
        let lora = lora.fresh(self.fresh.clone());
        match self.alpha {
            None => lora,
            Some(alpha) => lora.alpha(alpha),
        }
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
    fn what_is_written_is_the_recipe() {
        let recipe = |text: &str| match &strategies(&format!("[{text}]")).unwrap()[0] {
            StrategyConfig::Lora(lora) => lora.recipe(),
            other => panic!("{other:?}"),
        };
        assert_eq!(recipe("Lora(rank: 8)"), Lora::rank(8).alpha(8.0));
        let all = "Lora(rank: 8, alpha: 16, paths: [\"*.query.weight\"], also: [\"head\"])";
        assert_eq!(recipe(all), Lora::rank(8).alpha(16.0).on(["*.query.weight"]).also(["head"]));
        let frozen = strategies("[Freeze([\"tokens\", \"positions\"])]").unwrap();
        assert_eq!(frozen, [StrategyConfig::Freeze(vec!["tokens".into(), "positions".into()])]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_place() {
        let error = |text: &str| strategies(text).unwrap_err().to_string();
        let rank = error("[Lora(rank: 0)]");
        assert!(rank.contains("`strategies.0.rank` must be at least 1"), "{rank}");
        let alpha = error("[Lora(rank: 1, alpha: -2)]");
        assert!(alpha.contains("`strategies.0.alpha` must be finite and above 0, found -2"), "{alpha}");
        let none = error("[Freeze([])]");
        assert!(none.contains("`strategies.0` must be at least one path"), "{none}");
        let name = error("[Lora(rnak: 1)]");
        assert!(name.contains("did you mean `rank`?"), "{name}");
    }
}
