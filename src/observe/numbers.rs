//! The numbers of an evaluation and of a save. Those of a step are [`StepNumbers`](crate::StepNumbers).

use serde::{Deserialize, Serialize};

use crate::Scores;

/// The numbers of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationNumbers {
    /// The number of updates before it.
    pub step: u64,
    /// Mean loss over all supervised items of the validation data.
    pub loss: f64,
    /// Number of supervised items.
    pub items: usize,
    /// The time it took, in seconds.
    pub seconds: f64,
    /// The model's scores by name.
    #[serde(default, skip_serializing_if = "Scores::is_empty")]
    pub scores: Scores,
}

/// The numbers of a save that has ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaveNumbers {
    /// The number of updates before it.
    pub step: u64,
    /// Seconds from its start until the checkpoint was published.
    pub seconds: f64,
    /// Seconds for which training paused.
    pub pause_seconds: f64,
    /// The error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
