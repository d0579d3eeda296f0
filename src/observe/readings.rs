//! The numbers of a step by the names that people see.

use crate::observe::numbers::StepNumbers;

/// The name of the loss.
pub const LOSS: &str = "Loss";

/// The readings in bytes.
pub(crate) const BYTES: [&str; 6] =
    ["Memory", "Activations", "Peak memory", "Parameters", "Gradients", "Optimizer"];

/// The name of the loss scale.
pub const LOSS_SCALE: &str = "Loss scale";

/// Tokens per second of one of several devices.
pub(crate) const PER_DEVICE: &str = "Tokens per second per device";

/// Model FLOPs utilization, in percent.
pub(crate) const MFU: &str = "MFU";

/// The share of a step that a rank waited for another, the longest of all ranks.
pub const WAITING: &str = "Waiting for a rank";
/// The rank that the others waited for longest.
pub const SLOWEST: &str = "Slowest rank";

/// A number of a step or of an evaluated batch.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// The name that people see.
    pub name: &'static str,
    /// `None` if there is no value, as in a skipped step.
    pub value: Option<f64>,
    /// Number of items that the value is the mean of.
    pub weight: usize,
}

/// The readings of a step, the loss first.
pub fn of_step(step: &StepNumbers) -> [Reading; 16] {
    // A skipped step made no update: its loss and norm belong to dropped gradients.
    [
        (LOSS, step.applied(step.loss), step.items),
        ("Learning rate", step.applied(step.learning_rate), 1),
        ("Gradient norm", step.applied(step.gradient_norm), 1),
        ("Tokens per second", Some(step.tokens_per_second), 1),
        (PER_DEVICE, step.tokens_per_second_per_device, 1),
        (MFU, step.mfu.map(|share| 100.0 * share), 1),
        ("Skipped steps", Some(step.skipped_steps as f64), 1),
        (LOSS_SCALE, step.loss_scale, 1),
        (WAITING, step.waiting(), 1),
        (SLOWEST, step.slowest_rank.map(|rank| rank as f64), 1),
        ("Memory", Some(step.memory_bytes as f64), 1),
        ("Activations", Some(step.activation_bytes as f64), 1),
        ("Peak memory", Some(step.peak_bytes as f64), 1),
        ("Parameters", Some(step.parameter_bytes as f64), 1),
        ("Gradients", Some(step.gradient_bytes as f64), 1),
        ("Optimizer", Some(step.optimizer_bytes as f64), 1),
    ]
    .map(|(name, value, weight)| Reading { name, value, weight })
}

/// Formats a reading for people.
pub(crate) fn format_reading(name: &str, value: f64) -> String {
    match name {
        "Learning rate" => format!("{value:.2e}"),
        "Tokens per second" | PER_DEVICE if value >= 1e4 => format!("{:.1}k", value / 1e3),
        "Tokens per second" | PER_DEVICE | "Skipped steps" => format!("{value:.0}"),
        MFU => format!("{value:.1}%"),
        LOSS_SCALE | SLOWEST => format!("{value}"),
        WAITING => format!("{value:.0}%"),
        name if BYTES.contains(&name) => format!("{:.1} MB", value / 1e6),
        _ => format!("{value:.4}"),
    }
}
