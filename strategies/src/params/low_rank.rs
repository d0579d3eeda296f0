//! The rank and scale of low-rank factors, and how given factors may differ from a recipe's.

use std::fmt::{self, Display, Formatter};

use thiserror::Error;

/// Low-rank factors attached to matrices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// The columns of the first factor, and the rows of the second.
    pub rank: usize,
    /// The product of the factors is scaled by `alpha / rank`, or by `alpha / √rank`.
    pub alpha: f64,
    /// Whether the scale is `alpha / √rank` (Kalajdzievski, 2023, arXiv:2312.03732).
    pub rank_stabilized: bool,
    /// Whether the norms of the columns are trained beside the factors (DoRA: Liu et al., 2024, arXiv:2402.09353).
    pub dora: bool,
}

impl LowRank {
    /// Returns the scale of the factors' product.
    pub fn scale(&self) -> f64 {
        let rank = self.rank as f64;
        self.alpha / if self.rank_stabilized { rank.sqrt() } else { rank }
    }

    /// Returns the settings as in the `Lora` of a run file.
    pub(crate) fn settings(&self) -> String {
        let Self { rank, alpha, rank_stabilized, dora } = self;
        let stabilized = if *rank_stabilized { ", rank_stabilized: true" } else { "" };
        let dora = if *dora { ", dora: true" } else { "" };
        format!("rank: {rank}, alpha: {alpha}{stabilized}{dora}")
    }
}

/// Prints rank, alpha, whether the scale is rank-stabilized, and whether magnitudes are trained.
impl Display for LowRank {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { rank, alpha, rank_stabilized, dora } = self;
        write!(f, "rank {rank} and alpha {alpha}")?;
        let stabilized = if *rank_stabilized { ", rank-stabilized" } else { "" };
        let dora = if *dora { ", with magnitudes" } else { "" };
        write!(f, "{stabilized}{dora}")
    }
}

/// A difference between given factors and what [`Lora`](crate::Lora) trains.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum UnfitFactors {
    /// Rank, alpha or scale differ.
    #[error("expected factors of {expected}, as the recipe says, found {found}: write `Lora({})`", found.settings())]
    Scale {
        /// Those of the recipe.
        expected: LowRank,
        /// Those of the factors.
        found: LowRank,
    },
    /// The model has no such parameter.
    #[error("`{path}` is no parameter of the model: start from the model that they were trained on")]
    NoParameter {
        /// The path.
        path: String,
    },
    /// The recipe does not adapt the matrix.
    #[error("it has factors of `{path}`, which the recipe does not adapt: name this matrix too in `paths`")]
    NotAdapted {
        /// The matrix.
        path: String,
    },
    /// There are no factors for a matrix.
    #[error("it has no factors of `{path}`, which the recipe adapts: name only its matrices in `paths`")]
    NoFactors {
        /// The matrix.
        path: String,
    },
    /// The recipe does not train the parameter whole.
    #[error("it has values of `{path}`, which the recipe does not train whole: name it in `also`")]
    NotWhole {
        /// The parameter.
        path: String,
    },
    /// Values have another shape.
    #[error("`{path}` must be {expected:?}, found {found:?}: start from the model that they were trained on")]
    Shape {
        /// The path of a parameter, or of a factor: `PATH.lora.a`, `PATH.lora.b` or `PATH.lora.magnitude`.
        path: String,
        /// The shape in the model.
        expected: Vec<usize>,
        /// The shape of the values.
        found: Vec<usize>,
    },
    /// A table has another number of tokens than the model.
    #[error(
        "it has the values of `{path}` as {found:?}, and the model has {expected:?}: read the data with the tokenizer that it \
         was trained with (`data.tokenizer`)"
    )]
    Vocabulary {
        /// The path of the parameter.
        path: String,
        /// The shape in the model.
        expected: Vec<usize>,
        /// The shape of the values.
        found: Vec<usize>,
    },
    /// No strategy takes the factors.
    #[error("no strategy adapts the model with it: add `Lora({})`", found.settings())]
    NotTaken {
        /// Their rank and scale.
        found: LowRank,
    },
}
