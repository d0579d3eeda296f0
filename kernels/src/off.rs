//! Kernels that the user turned off, so that Burn's operations compute in their place.
//!
//! On hardware on which a kernel is wrong, a run goes on without it: slower, with more memory, and right. The variable
//! [`VARIABLE`] names the kernels; a process reads it once.

use std::env;
use std::sync::OnceLock;

use thiserror::Error;

/// The environment variable with the [names](Kernel::name) of the kernels that are off, as in `attention,norms`, or
/// `all`.
pub const VARIABLE: &str = "FIREBRICK_KERNELS_OFF";

/// A group of kernels that is turned off as a whole, on every device.
///
/// ```
/// use firebrick_kernels::off::Kernel;
///
/// assert_eq!(Kernel::ALL.map(Kernel::name)[..2], ["activations", "attention"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// [GELU](crate::gelu()) and [gated activations](crate::gated()).
    Activations,
    /// [Attention](crate::attention()): all scores exist at a time.
    Attention,
    /// [Casts](crate::cast()).
    Casts,
    /// [Dropout](crate::dropout()).
    Dropout,
    /// [Rows of a table](crate::embedding()) and their gradient.
    Embedding,
    /// [Attention](crate::attention()) in tiles on NVIDIA's GPUs: the scores of some heads exist at a time.
    Flash,
    /// [Cross-entropy](crate::cross_entropy()), and the rows of [a head's losses](crate::head_loss()).
    Losses,
    /// Passes over many tensors, such as [sums of squares](crate::sum_of_squares()).
    Many,
    /// [Norms](crate::norm()).
    Norms,
    /// [Products](crate::matmul()) on the CPU and by [NVIDIA's library](crate::product_library), and the gradients of biases
    /// everywhere. Other products on GPUs are CubeCL's.
    Products,
    /// [Sums of a residual branch](crate::add_dropout()).
    Residual,
    /// [Rotary positions](crate::rotary()).
    Rotary,
    /// [Uploads](crate::Upload) and [reads](crate::Reading) beside what a device computes.
    Transfers,
    /// [Updates](crate::optim::step) of parameters in one pass.
    Updates,
}

impl Kernel {
    /// All of them, by name.
    pub const ALL: [Self; 14] = [
        Self::Activations,
        Self::Attention,
        Self::Casts,
        Self::Dropout,
        Self::Embedding,
        Self::Flash,
        Self::Losses,
        Self::Many,
        Self::Norms,
        Self::Products,
        Self::Residual,
        Self::Rotary,
        Self::Transfers,
        Self::Updates,
    ];

    /// Returns the name in [`VARIABLE`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Activations => "activations",
            Self::Attention => "attention",
            Self::Casts => "casts",
            Self::Dropout => "dropout",
            Self::Embedding => "embedding",
            Self::Flash => "flash",
            Self::Losses => "losses",
            Self::Many => "many",
            Self::Norms => "norms",
            Self::Products => "products",
            Self::Residual => "residual",
            Self::Rotary => "rotary",
            Self::Transfers => "transfers",
            Self::Updates => "updates",
        }
    }

    /// Returns whether Burn's operations compute in its place.
    pub fn is_off(self) -> bool {
        static OFF: OnceLock<Vec<Kernel>> = OnceLock::new();
        // A name that is unknown turns nothing off; whoever chooses a device asks `turned_off`, which refuses it.
        OFF.get_or_init(|| turned_off().unwrap_or_default()).contains(&self)
    }
}

/// [`VARIABLE`] has a name that no kernel has.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{VARIABLE}: there is no kernel {found:?}; expected names from this list, with commas between them: all, {}",
    Kernel::ALL.map(Kernel::name).join(", ")
)]
pub struct UnknownKernel {
    found: String,
}

/// Returns the kernels that [`VARIABLE`] turns off: none if it is not set or empty.
///
/// # Errors
///
/// A name is unknown.
pub fn turned_off() -> Result<Vec<Kernel>, UnknownKernel> {
    named(&env::var_os(VARIABLE).unwrap_or_default().to_string_lossy())
}

fn named(text: &str) -> Result<Vec<Kernel>, UnknownKernel> {
    let mut off = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match Kernel::ALL.into_iter().find(|kernel| kernel.name() == name) {
            Some(kernel) => off.push(kernel),
            None if name == "all" => off.extend(Kernel::ALL),
            None => return Err(UnknownKernel { found: name.into() }),
        }
    }
    Ok(off)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_turn_kernels_off() {
        assert_eq!(named("").unwrap(), []);
        assert_eq!(named(" norms, attention,").unwrap(), [Kernel::Norms, Kernel::Attention]);
        assert_eq!(named("all").unwrap(), Kernel::ALL);
        let said = named("attention,flashes").unwrap_err().to_string();
        assert!(said.contains("\"flashes\"") && said.contains("attention, casts"), "{said}");
    }
}
