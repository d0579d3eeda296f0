//! ZeRO in a run file.

use firebrick_strategies::Zero;
use serde::{Deserialize, Serialize};

use super::FloatConfig;

/// What the ranks shard: `Zero(stage: 2)`, or with settings,
/// `Zero(stage: 3, sum_in: bf16, replicate_below: 2048, blocks: ["blocks.*"])`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroConfig {
    /// Stage 0 shards nothing, 1 the optimizer state and the parameters that it updates, 2 also the gradients, 3 also
    /// the parameters that the forward pass reads.
    pub stage: u8,
    /// The dtype in which gradients are sent. Default: their own.
    #[serde(default)]
    pub sum_in: Option<FloatConfig>,
    /// Parameters with fewer elements are replicated on every rank. Default: 1024.
    #[serde(default)]
    pub replicate_below: Option<usize>,
    /// The paths of the modules that stages 2 and 3 treat one at a time; `*` stands for any characters. Default: the
    /// elements of the model's lists.
    #[serde(default)]
    pub blocks: Option<Vec<String>>,
}

impl From<u8> for ZeroConfig {
    fn from(stage: u8) -> Self {
        Self { stage, sum_in: None, replicate_below: None, blocks: None }
    }
}

impl ZeroConfig {
    pub(super) fn recipe(&self) -> Zero {
        let zero = Zero::stage(self.stage);
        let zero = match self.sum_in {
            None => zero,
            Some(dtype) => zero.summing_in(dtype.into()),
        };
        let zero = match self.replicate_below {
            None => zero,
            Some(elements) => zero.replicate_below(elements),
        };
        match &self.blocks {
            None => zero,
            Some(paths) => zero.blocks(paths.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::FloatDType;

    use super::*;
    use crate::run::{Run, RunError, StrategyConfig};

    fn run(sets: &[&str]) -> Result<Run, RunError> {
        Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), sets)
    }

    #[test]
    fn what_is_written_is_the_recipe() {
        let recipe = |text: &str| match &run(&[&format!("strategies=[{text}]")]).unwrap().strategies[0] {
            StrategyConfig::Zero(zero) => zero.recipe(),
            other => panic!("{other:?}"),
        };
        assert_eq!(recipe("Zero(stage: 2)"), Zero::stage(2));
        let all = "Zero(stage: 3, sum_in: bf16, replicate_below: 9, blocks: [\"blocks.*\"])";
        let expected = Zero::stage(3).summing_in(FloatDType::BF16).replicate_below(9).blocks(["blocks.*"]);
        assert_eq!(recipe(all), expected);
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_place() {
        let error = |set: &str| run(&[set]).unwrap_err().to_string();
        let stage = error("strategies=[Zero(stage: 4)]");
        assert!(stage.contains("`strategies.0.stage` must be 0, 1, 2 or 3, found 4"), "{stage}");
        let blocks = error("strategies=[Zero(stage: 1, blocks: [\"blocks.0\"])]");
        assert!(blocks.contains("`strategies.0.blocks` must be left out"), "{blocks}");
        let name = error("strategies=[Zero(stag: 1)]");
        assert!(name.contains("did you mean `stage`?"), "{name}");
        let ranks = error("ranks=0");
        assert!(ranks.contains("`ranks` must be at least 1"), "{ranks}");
    }

    #[test]
    fn many_ranks_sum_their_gradients_before_they_are_clipped() {
        let composed = |sets: &[&str]| run(sets).unwrap().composed();
        let one = composed(&["ranks=1"]);
        assert!(!one.iter().any(|strategy| matches!(strategy, StrategyConfig::Zero(_))), "{one:?}");
        let clip = "strategies=[Amp(bf16), Clip(norm: 1.0)]";
        let many = composed(&["ranks=4", clip, "batch.accumulate=2"]);
        let zero = StrategyConfig::Zero(0.into());
        assert!(matches!(many[1], StrategyConfig::Accumulate(2)) && many[2] == zero, "{many:?}");
        assert!(matches!(many[3], StrategyConfig::Clip(_)), "{many:?}");
        let named = composed(&["ranks=4", "strategies=[Zero(stage: 1), Clip(norm: 1.0)]"]);
        assert_eq!(named[0], StrategyConfig::Zero(1.into()));
        assert_eq!(composed(&["ranks=2", "strategies=[]"]).last(), Some(&zero));
    }

    #[test]
    fn ranks_whose_micro_batches_are_cut_by_tokens_sum_them() {
        let composed = |sets: &[&str]| run(sets).unwrap().composed();
        let is_sum = |strategy: &&StrategyConfig| {
            matches!(strategy, StrategyConfig::Accumulate(_) | StrategyConfig::AccumulateIn(..))
        };
        let tokens = "batch=(micro_tokens: 64)";
        let four = composed(&["ranks=4", tokens, "strategies=[Zero(stage: 2), Clip(norm: 1.0)]"]);
        assert!(matches!(four[1], StrategyConfig::Accumulate(1)), "{four:?}");
        assert!(matches!(four[2], StrategyConfig::Clip(_)), "{four:?}");
        let written = ["ranks=4", tokens, "strategies=[AccumulateIn(2, bf16), Clip(norm: 1.0)]"];
        assert_eq!(composed(&written).iter().filter(is_sum).count(), 1);
        for without in [["ranks=1", tokens], ["ranks=4", "batch=(micro: 4)"]] {
            let strategies = composed(&[without[0], without[1], "strategies=[Clip(norm: 1.0)]"]);
            assert_eq!(strategies.iter().find(is_sum), None);
        }
    }
}
