//! Offload to host memory in a run file.

use firebrick_strategies::Offload;
use serde::{Deserialize, Serialize};

/// What host memory keeps: `Offload(optimizer)` or `Offload(parameters)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "written as the field that it is about")]
pub enum OffloadConfig {
    /// The optimizer's state and the parameters that the optimizer updates.
    optimizer,
    /// The same, and the parameters that the forward pass reads, which are fetched one block at a time.
    parameters,
}

impl OffloadConfig {
    pub(super) fn recipe(self) -> Offload {
        match self {
            Self::optimizer => Offload::optimizer(),
            Self::parameters => Offload::parameters(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Run, StrategyConfig};

    #[test]
    fn what_is_written_is_the_recipe() {
        let file = include_str!("../../../examples/tinyshakespeare.ron");
        let strategies = |text: &str| Run::parse("file", file, &[format!("strategies=[{text}]")]);
        let run = strategies("Offload(optimizer), Offload(parameters)").unwrap();
        let recipes = run.strategies.iter().map(|strategy| match strategy {
            StrategyConfig::Offload(offload) => format!("{:?}", offload.recipe()),
            other => panic!("{other:?}"),
        });
        let expected = [Offload::optimizer(), Offload::parameters()].map(|recipe| format!("{recipe:?}"));
        assert_eq!(recipes.collect::<Vec<_>>(), expected);
        let error = strategies("Offload(parameter)").unwrap_err().to_string();
        assert!(error.contains("did you mean `parameters`?"), "{error}");
    }
}
