//! Ranges of settings that several optimizers have.

use crate::SettingError;

/// Checks the decay rates of two moments.
pub(super) fn betas((beta_1, beta_2): (f32, f32)) -> Result<(), SettingError> {
    let within = |beta| (0.0..1.0).contains(&beta);
    let found = format!("({beta_1}, {beta_2})");
    SettingError::require(within(beta_1) && within(beta_2), "betas", "at least 0 and below 1", found)
}

/// Checks a share.
pub(super) fn share(setting: &'static str, value: f32) -> Result<(), SettingError> {
    SettingError::require((0.0..1.0).contains(&value), setting, "at least 0 and below 1", value)
}

/// Checks what is added to a denominator.
pub(super) fn epsilon(epsilon: f32) -> Result<(), SettingError> {
    let possible = epsilon > 0.0 && epsilon.is_finite();
    SettingError::require(possible, "epsilon", "finite, above 0 and at least 1e-45", epsilon)
}

/// Checks the weight decay.
pub(super) fn weight_decay(weight_decay: f32) -> Result<(), SettingError> {
    let possible = weight_decay >= 0.0 && weight_decay.is_finite();
    SettingError::require(possible, "weight_decay", "at least 0", weight_decay)
}
