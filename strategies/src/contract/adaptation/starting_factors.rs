//! Low-rank factors to start from.

use burn::tensor::TensorData;

use crate::{LowRank, StrategyError, UnfitFactors};

/// Factors that [`Lora`](crate::Lora) continues from, such as those of an earlier run.
///
/// Their rank and scale must be those of the recipe, and their matrices those that it adapts.
#[derive(Clone, Debug)]
pub struct StartingFactors {
    /// What errors call them, such as the folder that they were read from.
    pub source: String,
    /// Their rank and scale.
    pub low_rank: LowRank,
    /// The path of each matrix `[in, out]`, and its factors.
    pub factors: Vec<(String, FactorValues)>,
    /// The path and the values of parameters that the recipe trains whole. Others of these keep the model's values.
    pub whole: Vec<(String, TensorData)>,
    /// The path and the values of parameters that were not trained, and that the model they were trained on had: tables
    /// that have grown with a vocabulary. A matrix with factors may be among them.
    pub given: Vec<(String, TensorData)>,
}

/// The values of the factors of a matrix `[in, out]`.
#[derive(Clone, Debug)]
pub struct FactorValues {
    /// A, `[in, rank]`.
    pub a: TensorData,
    /// B, `[rank, out]`.
    pub b: TensorData,
    /// The norms of the columns, `[out]`, with [DoRA](crate::Lora::dora) alone.
    pub magnitude: Option<TensorData>,
}

impl StartingFactors {
    /// Checks whether they have the rank and scale of a recipe.
    ///
    /// # Errors
    ///
    /// [`StrategyError::Factors`].
    pub fn require(&self, recipe: LowRank) -> Result<(), StrategyError> {
        let error = UnfitFactors::Scale { expected: recipe, found: self.low_rank };
        match self.low_rank == recipe {
            true => Ok(()),
            false => Err(StrategyError::Factors { factors: self.source.clone(), error }),
        }
    }

    /// Returns the error for factors that no strategy has taken.
    pub fn not_taken(&self) -> StrategyError {
        let error = UnfitFactors::NotTaken { found: self.low_rank };
        StrategyError::Factors { factors: self.source.clone(), error }
    }
}
