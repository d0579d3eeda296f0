//! The kinds of norms.

/// What a norm divides by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// `(x - mean) / √(variance + ε) · scale + bias` (Ba et al., 2016, arXiv:1607.06450).
    Layer {
        /// Added to the variance.
        epsilon: f64,
    },
    /// `x / √(mean(x²) + ε) · scale + bias` (Zhang & Sennrich, 2019, arXiv:1910.07467).
    Rms {
        /// Added to the mean square.
        epsilon: f64,
    },
}

impl NormKind {
    pub(super) fn epsilon(self) -> f64 {
        match self {
            Self::Layer { epsilon } | Self::Rms { epsilon } => epsilon,
        }
    }

    pub(super) fn is_centered(self) -> bool {
        matches!(self, Self::Layer { .. })
    }
}

/// What to compute.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// The kind of norm.
    pub kind: NormKind,
    /// Whether the second tensor is added to the first.
    pub sums: bool,
    /// Whether the bias is added.
    pub biased: bool,
}
