//! The numbers of a step by the names that TensorBoard and other trackers show.

use crate::observe::numbers::StepNumbers;

/// Returns the known numbers of a step. A skipped step has no rate, and its loss would only distort the curve.
pub fn scalars(step: &StepNumbers) -> impl Iterator<Item = (&'static str, f64)> + use<> {
    let values = [
        ("tokens_per_second", Some(step.tokens_per_second)),
        ("tokens_per_second_per_device", step.tokens_per_second_per_device),
        ("mfu", step.mfu),
        ("skipped_steps", Some(step.skipped_steps as f64)),
        ("memory_bytes", Some(step.memory_bytes as f64)),
        ("peak_bytes", Some(step.peak_bytes as f64)),
        ("loss_scale", step.loss_scale),
        ("loss", step.applied(step.loss)),
        ("learning_rate", step.applied(step.learning_rate)),
        ("gradient_norm", step.applied(step.gradient_norm)),
    ];
    values.into_iter().filter_map(|(name, value)| Some((name, value?)))
}
