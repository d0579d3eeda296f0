//! Checks of this crate's kernels on a device: the same functions on the CPU in f64 say what is right.
//!
//! In f64, every function of this crate is composed of Burn's operations, so a kernel is never compared with itself. Each
//! [`Check`] runs forward and backward on small tensors of odd shapes and on one shape as a model has it, in each dtype that
//! the device computes in; the latter is also timed. [`all`] returns the checks of every kernel, and [`run`] runs them.
//!
//! ```text
//! run.rs        one run of a check: inputs, results, gradients, and how far they are apart
//! running.rs    runs checks on a device, until the time is over
//! attention.rs, products.rs, rows.rs, elements.rs, many.rs, updates.rs, transfers.rs
//!               the checks
//! ```
//!
//! ```
//! use std::time::Duration;
//!
//! use burn::tensor::Device;
//! use firebrick_kernels::check::{Check, Tolerance, Verdict, run};
//! use firebrick_kernels::{Gelu, gelu};
//!
//! let gelu = Check::new("GELU", &["gelu"], Tolerance::ROUNDED, |run| {
//!     let x = run.leaf("x", [3, 5]);
//!     run.result("GELU", gelu(x, Gelu::Exact));
//! });
//! let checked = run(vec![gelu], &Device::flex(), Duration::from_secs(10), |_| ());
//! assert_eq!(checked.len(), 3); // f32, f16, bf16
//! assert!(checked.iter().all(|checked| checked.verdict == Verdict::Right));
//! ```

mod attention;
mod elements;
mod many;
mod products;
mod rows;
mod run;
mod running;
#[cfg(test)]
mod tests;
mod transfers;
mod updates;

use burn::tensor::FloatDType;

use crate::off::Kernel;

pub use run::{Deviation, Run};
pub use running::{Checked, Speed, Verdict, run};
#[cfg(test)]
pub(crate) use updates::ADAMW;

/// How far the results of a device may be from those in f64, relative to the largest number of a result.
///
/// A kernel that reads a wrong element, loses a term or races is wrong by the size of the numbers themselves, so a bound
/// need not be tight: it must be above all that rounding and the functions of a device's driver do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    f32: f64,
    /// In f32 on a GPU.
    f32_on_gpu: f64,
    f16: f64,
    bf16: f64,
}

impl Tolerance {
    /// For functions that compute in f32 and round once, forward and back: four times the unit roundoff of f16 (2⁻¹¹) and
    /// bf16 (2⁻⁸). In f32, exponentials and hyperbolic tangents of GPUs are exact to some 2⁻¹⁸, and sums of thousands of
    /// terms lose as much.
    pub const ROUNDED: Self = Self { f32: 2e-5, f32_on_gpu: 2e-5, f16: 2e-3, bf16: 1.6e-2 };

    /// For products, and for what reads them: several tensors are rounded one after another, to eight times the unit
    /// roundoff together. In f32, CUDA multiplies in TF32, whose unit roundoff is that of f16.
    pub const PRODUCTS: Self = Self { f32: 5e-5, f32_on_gpu: 4e-3, f16: 4e-3, bf16: 3.2e-2 };

    /// For copies.
    pub const EXACT: Self = Self { f32: 0.0, f32_on_gpu: 0.0, f16: 0.0, bf16: 0.0 };

    fn of(self, dtype: FloatDType, on_gpu: bool) -> f64 {
        match dtype {
            FloatDType::F16 => self.f16,
            FloatDType::BF16 => self.bf16,
            _ if on_gpu => self.f32_on_gpu,
            _ => self.f32,
        }
    }
}

/// What a check computes.
type Compute = Box<dyn Fn(&mut Run) + Send + Sync>;

/// A check of a kernel.
pub struct Check {
    name: &'static str,
    covers: &'static [&'static str],
    kernel: Option<Kernel>,
    tolerance: Tolerance,
    small: Compute,
    real: Option<Compute>,
}

impl Check {
    /// Checks the public functions and types that are named in `covers`, by what `small` computes from small tensors of odd
    /// shapes. It must compute the same in each run.
    pub fn new(
        name: &'static str,
        covers: &'static [&'static str],
        tolerance: Tolerance,
        small: impl Fn(&mut Run) + Send + Sync + 'static,
    ) -> Self {
        Self { name, covers, kernel: None, tolerance, small: Box::new(small), real: None }
    }

    /// Names the kernel that the user can turn off if it is wrong.
    pub fn of(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Also checks and times what `real` computes, from tensors as a model has them. It must say how many
    /// [operations](Run::operations) or [bytes](Run::moves) that are.
    pub fn real(mut self, real: impl Fn(&mut Run) + Send + Sync + 'static) -> Self {
        self.real = Some(Box::new(real));
        self
    }

    /// Returns the name, as in `attention, causal`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the public functions and types that it checks.
    pub fn covers(&self) -> &'static [&'static str] {
        self.covers
    }
}

/// Returns the checks of all kernels of this crate.
pub fn all() -> Vec<Check> {
    let groups = [
        attention::checks(),
        products::checks(),
        rows::checks(),
        elements::checks(),
        many::checks(),
        updates::checks(),
        transfers::checks(),
    ];
    groups.into_iter().flatten().collect()
}
