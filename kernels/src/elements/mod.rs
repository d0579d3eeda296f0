//! Passes over the elements of Flex's tensors, on all cores and in vectors.
//!
//! ```text
//! float.rs  the dtypes f32, bf16 and f16, each computed with in f32
//! map.rs    functions of the corresponding elements of some tensors, in place where possible
//! ```

mod float;
mod map;
#[cfg(test)]
mod tests;

pub use float::Float;
pub use map::{in_blocks, is_narrow, mapped, mapped_to_two};
