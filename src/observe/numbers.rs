//! The numbers of a step, of an evaluation and of a save.
//!
//! The loop fills them, observers see them, and each is a [line](crate::observe::log::LogLine) of the log. JSON has
//! no infinity and no NaN: such a number is `null` in the log, and reads as NaN. A field that a log lacks, as that of
//! another version, reads as 0, or as NaN where 0 would be a reading.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::Scores;

/// The numbers of one step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepNumbers {
    /// Updates made so far, including this one. A skipped step does not count.
    pub step: u64,
    /// Epoch of the data, from 0.
    #[serde(default)]
    pub epoch: u64,
    /// Mean loss over the supervised items of the global batch.
    #[serde(default = "nan", deserialize_with = "nan_if_null")]
    pub loss: f64,
    /// Learning rate of the update; 0 if it was skipped.
    #[serde(default = "nan", deserialize_with = "nan_if_null")]
    pub learning_rate: f64,
    /// L2 norm of all gradients before clipping, without the loss scale.
    #[serde(default = "nan", deserialize_with = "nan_if_null")]
    pub gradient_norm: f64,
    /// The loss scale of the step, if the loss is scaled. After an overflow that of the next step is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Supervised items in the global batch.
    #[serde(default)]
    pub items: usize,
    /// Tokens in the global batch, without padding.
    #[serde(default)]
    pub tokens: usize,
    /// Wall-clock seconds since the end of the previous step.
    #[serde(default)]
    pub seconds: f64,
    /// `tokens / seconds`.
    #[serde(default = "nan", deserialize_with = "nan_if_null")]
    pub tokens_per_second: f64,
    /// `tokens_per_second` over the number of devices, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second_per_device: Option<f64>,
    /// [Model FLOPs utilization](crate::Utilization), as a share of 1, if the peak of the devices is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Steps skipped so far.
    #[serde(default)]
    pub skipped_steps: u64,
    /// Why this step made no update, if it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Bytes in use after the step; 0 if nothing counts bytes.
    #[serde(default)]
    pub memory_bytes: usize,
    /// Bytes of the parameters: the optimizer's, the replica's if it is separate, and their average if there is one.
    #[serde(default)]
    pub parameter_bytes: usize,
    /// [`Report::gradient_bytes`](crate::Report::gradient_bytes) so far.
    #[serde(default)]
    pub gradient_bytes: usize,
    /// Bytes of the optimizer's state, measured as what the first update leaves in use; 0 if nothing counts bytes.
    #[serde(default)]
    pub optimizer_bytes: usize,
    /// Peak bytes that the forward and backward pass of this step used on top of the bytes in use before it, without
    /// the parameters' gradients of recomputed segments: activations and their gradients.
    #[serde(default)]
    pub activation_bytes: usize,
    /// Peak bytes in use so far.
    #[serde(default)]
    pub peak_bytes: usize,
    /// Bytes that this rank sent in this step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// Bytes that this rank received in this step.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub received_bytes: u64,
    /// The rank that others waited for longest in this step, if there are several ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_rank: Option<usize>,
    /// The longest time in seconds that a rank waited for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
}

impl StepNumbers {
    /// A number of a step that made an update. The numbers of a skipped step belong to discarded gradients.
    pub fn applied(&self, number: f64) -> Option<f64> {
        self.skipped.is_none().then_some(number)
    }

    /// The time that the longest-waiting rank waited for another, as a percentage of the step.
    pub fn waiting(&self) -> Option<f64> {
        Some(100.0 * self.waited_seconds? / self.seconds.max(f64::MIN_POSITIVE))
    }
}

/// A round of a run: its steps up to the next evaluation, and this evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// The round's number, from 1.
    pub number: usize,
    /// Updates made before the round.
    pub start: u64,
    /// Updates that the round makes, as far as that is known before.
    pub updates: u64,
}

/// The progress of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationProgress {
    /// Samples evaluated so far, by all ranks.
    pub done: usize,
    /// Samples of the validation data.
    pub samples: usize,
    /// Mean loss over the items of the last batch. With several ranks it is known only at the end, over all batches.
    pub loss: Option<f64>,
    /// Number of these items.
    pub items: usize,
}

/// The numbers of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationNumbers {
    /// The number of updates before it.
    pub step: u64,
    /// Mean loss over all supervised items of the validation data.
    #[serde(default = "nan", deserialize_with = "nan_if_null")]
    pub loss: f64,
    /// Number of supervised items.
    #[serde(default)]
    pub items: usize,
    /// The time it took, in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// The model's scores by name.
    #[serde(default, skip_serializing_if = "Scores::is_empty", deserialize_with = "nans_if_null")]
    pub scores: Scores,
}

/// The numbers of a save that has ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SaveNumbers {
    /// The number of updates before it.
    pub step: u64,
    /// Seconds from its start until the checkpoint was published.
    #[serde(default)]
    pub seconds: f64,
    /// Seconds for which training paused.
    #[serde(default)]
    pub pause_seconds: f64,
    /// The error, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Skips a zero field.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

fn nan() -> f64 {
    f64::NAN
}

/// A number, or the `null` of one that is not finite.
#[derive(Deserialize)]
#[serde(untagged)]
enum Nullable {
    Finite(f64),
    Null(()),
}

impl From<Nullable> for f64 {
    fn from(number: Nullable) -> Self {
        match number {
            Nullable::Finite(number) => number,
            Nullable::Null(()) => f64::NAN,
        }
    }
}

fn nan_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Nullable::deserialize(from).map(f64::from)
}

fn nans_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<Scores, D::Error> {
    let scores = BTreeMap::<String, Nullable>::deserialize(from)?;
    Ok(scores.into_iter().map(|(name, score)| (name, score.into())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_reads_back_whatever_its_numbers_are() {
        for (loss, score) in [(2.5, f64::NAN), (f64::NAN, 0.1), (3.0, 1e300), (0.1 + 0.2, -0.0)] {
            let scores = Scores::from([("f1".into(), score)]);
            let numbers = EvaluationNumbers { step: 3, loss, items: 7, seconds: 0.5, scores };
            let json = serde_json::to_string(&numbers).unwrap();
            let read: EvaluationNumbers = serde_json::from_str(&json).unwrap();
            assert_eq!(format!("{read:?}"), format!("{numbers:?}"), "{json}");
        }
    }
}
