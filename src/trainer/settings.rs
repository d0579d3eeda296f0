//! The settings of training that are not techniques.

use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};

use crate::ByteSize;

/// Declares a struct that has the settings of training beside fields of its own, so that a file has them all side by side.
///
/// serde's `flatten` cannot do it for RON, which has no struct whose fields are not known before. `seed` names the function
/// that returns the seed of a file without one. The struct gets a method `training`, which returns its
/// [`TrainingSettings`].
#[doc(hidden)]
#[macro_export]
macro_rules! with_training_settings {
    (@struct seed: $seed:literal, $(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        pub struct $name {
            /// Seeds the model's random draws during training, and in a run file also the weights and the order of the
            /// samples. Default: 0, and 1337 in a run file.
            #[serde(default = $seed)]
            pub seed: u64,
            /// The share of each label that is spread evenly over all classes during training, at least 0 and below 1.
            /// Default: 0.
            #[serde(default)]
            pub label_smoothing: f64,
            /// Number of updates. Either this or `epochs`.
            pub steps: Option<u64>,
            /// Number of passes over the data. Either this or `steps`.
            pub epochs: Option<u64>,
            /// Updates between two evaluations. Default: at the end of each epoch.
            pub evaluate_every: Option<u64>,
            /// The score that selects the best evaluation, for the best model, the best checkpoints and early stopping.
            /// Default: the validation loss.
            pub best_by: Option<String>,
            /// Number of evaluations without an improvement after which the run ends. Default: never.
            pub early_stopping: Option<usize>,
            /// The most bytes that may be on the device, as in `"2GB"`, `"512MiB"` or `2000000000`. A run that needs more
            /// stops with an error that suggests what would help. Default: no limit.
            pub device_budget: Option<$crate::ByteSize>,
            /// The updates, counted from 1, whose timelines are written as `timeline-STEP.json`. Default: none.
            #[serde(default)]
            pub timeline: Vec<u64>,
            $($own)*
        }
    };
    (seed: $seed:literal, $(#[$about:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $crate::with_training_settings! {
            @struct seed: $seed,
            $(#[$about])*
            pub struct $name { $($own)* }
        }

        impl $name {
            /// Returns the settings of training.
            pub fn training(&self) -> $crate::TrainingSettings {
                $crate::TrainingSettings {
                    seed: self.seed,
                    label_smoothing: self.label_smoothing,
                    steps: self.steps,
                    epochs: self.epochs,
                    evaluate_every: self.evaluate_every,
                    best_by: self.best_by.clone(),
                    early_stopping: self.early_stopping,
                    device_budget: self.device_budget,
                    timeline: self.timeline.clone(),
                }
            }
        }
    };
}

with_training_settings! {
    @struct
    seed: "u64::default",
    /// The settings of training that are not techniques. A run file has the same fields; a program sets them one by one,
    /// with the [`Trainer`](crate::Trainer)'s methods of these names, or all of them as it reads them from a file of its
    /// own.
    ///
    /// ```
    /// use firebrick::{Trainer, TrainingSettings};
    ///
    /// let settings: TrainingSettings = serde_json::from_str(r#"{"steps": 100, "evaluate_every": 50}"#)?;
    /// let trainer = Trainer::<()>::new().settings(settings.clone());
    /// // The same, one by one.
    /// let trainer = Trainer::<()>::new().steps(100).evaluate_every(50);
    /// assert!(settings.check().is_ok());
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct TrainingSettings {}
}

impl TrainingSettings {
    /// What `steps` must be beside `epochs`, for a message.
    pub const EITHER: &str = "given, or else `epochs`, and not both (`None` takes one away)";

    /// Checks the ranges of the settings. Without `steps` and `epochs`, a trainer trains for one epoch.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), SettingError> {
        let Self { label_smoothing: share, steps, epochs, .. } = self;
        SettingError::require(steps.is_none() || epochs.is_none(), "steps", Self::EITHER, "both")?;
        for (setting, value) in [
            ("steps", *steps),
            ("epochs", *epochs),
            ("evaluate_every", self.evaluate_every),
            ("early_stopping", self.early_stopping.map(|evaluations| evaluations as u64)),
        ] {
            SettingError::require(value != Some(0), setting, "at least 1", 0)?;
        }
        let timeline = "updates, of which the first is 1";
        SettingError::require(!self.timeline.contains(&0), "timeline", timeline, 0)?;
        SettingError::require(
            self.device_budget != Some(ByteSize(0)),
            "device_budget",
            "at least 1 byte",
            0,
        )?;
        SettingError::require((0.0..1.0).contains(share), "label_smoothing", "at least 0 and below 1", share)
    }
}
