//! Frozen matrices in 4 or 8 bits.
//!
//! Dettmers et al., *QLoRA: Efficient Finetuning of Quantized LLMs*, 2023 (arXiv:2305.14314).
//!
//! ```text
//! packing.rs  the values, the blocks, and packed matrices in host memory
//! matrix.rs   packed matrices on any device
//! ```

mod matrix;
mod packing;

pub use matrix::PackedMatrix;
pub use packing::{Packed, Packing};

#[cfg(test)]
mod tests;
