//! What a layer has read whole although its factors have a dropout.

use std::sync::{Arc, OnceLock};

use crate::StrategyError;

/// The first matrix that a layer has read together with its factors in training, although the factors' input should be
/// dropped. All factors of a model share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadWhole(Arc<OnceLock<Arc<str>>>);

impl ReadWhole {
    /// Notes that a layer has read this matrix. The first one is reported.
    pub fn note(&self, matrix: &Arc<str>) {
        let _ = self.0.set(matrix.clone());
    }

    /// # Errors
    ///
    /// [`StrategyError::NothingDropped`] if there is one.
    pub fn check(&self) -> Result<(), StrategyError> {
        match self.0.get() {
            None => Ok(()),
            Some(parameter) => Err(StrategyError::NothingDropped { parameter: parameter.to_string() }),
        }
    }
}
