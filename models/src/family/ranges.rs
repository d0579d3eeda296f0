//! Ranges of settings that several families have.

use firebrick_strategies::SettingError;

/// A size far above any use, so that a typo is reported instead of tried.
const MOST: usize = 1_000_000_000;

/// The settings of a transformer.
pub(crate) struct Transformer {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub inner: Option<usize>,
    pub dropout: f64,
}

impl Transformer {
    pub fn check(self) -> Result<(), SettingError> {
        let Self { layers, heads, width, inner, dropout } = self;
        for (setting, size) in
            [("layers", layers), ("heads", heads), ("width", width), ("inner", inner.unwrap_or(1))]
        {
            let possible = (1..=MOST).contains(&size);
            SettingError::require(possible, setting, "at least 1 and at most a billion", size)?;
        }
        let expected = format!("a multiple of `heads`, which is {heads}");
        SettingError::require(width.is_multiple_of(heads), "width", expected, width)?;
        let within = (0.0..1.0).contains(&dropout);
        SettingError::require(within, "dropout", "at least 0 and below 1", dropout)
    }
}
