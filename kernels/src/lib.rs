//! Tensor operations for training Burn models, with gradients of their own, and measurement of memory.
//!
//! Each operation is a function of tensors. In its folder, `ops.rs`, or `mod.rs` of a short one, declares it once, as a trait
//! over [`Backend`](burn::backend::Backend) whose defaults are Burn's operations, and whose implementation for Burn's dispatch
//! is generated. The implementation for Burn's autodiff backend, which gives the value and its gradients, stands beside it.
//! `flex.rs` has the kernels of Flex, Burn's CPU backend, unless they are few lines, and `cube.rs` those of GPUs. The crate
//! knows nothing of models, strategies, ranks or training: numbers that a run depends on, such as the [`Draws`] of a dropout
//! mask, are arguments.
//!
//! ```text
//! attention/ attention in tiles, whose scores never exist as a whole on the CPU
//! gelu/      GELU and its gradient, vectorized on the CPU
//! gated/     the activation of one projection times another: SwiGLU, GEGLU
//! product/   matmul and linear, in f32 and half precision on the CPU
//! fp8/       affine maps of operands that are rounded to 8 bits
//! half/      casts between half precision and f32
//! elements/  passes over the elements of the CPU's tensors
//! residual/  sums of a residual branch and its input, with dropout
//! embedding/ rows of a table, with a gradient summed by rows
//! loss/      cross-entropy, and that of an output layer without all logits at once
//! rotary/    rotary positions in one pass
//! norm/      layer norm and RMS norm, with the sum before them
//! dropout/   dropout whose mask is a function of each element's position
//! ragged.rs  rows of different lengths, one after the other
//! cap.rs     values that are bounded by a hyperbolic tangent
//! autodiff.rs values and gradients of operations on Burn's autodiff backend
//! draws.rs   counter-based random numbers, without a stateful generator
//! handover.rs tensors for another thread
//! reading.rs reads that begin while the device still computes
//! upload/    copies to a device beside what it computes
//! many/      passes over all tensors of a model, many in one kernel
//! optim/     updates of a parameter in one pass over memory
//! packed/    frozen matrices in 4 or 8 bits
//! memory/    bytes in use: by the process or a rank on the CPU, in the device's pool elsewhere
//! flex/      what the kernels for the CPU have in common
//! cublas/    products by NVIDIA's library on CUDA devices
//! cube/      what the kernels for CubeCL's devices have in common
//! device.rs  the backend of a device
//! off.rs     kernels that the user turned off
//! zero_results.rs operations of which only the memory is of interest
//! check/     checks of the kernels on a device
//! ```
//!
//! An affine map in bf16 with dropout and GELU after it, and the gradient of its weight:
//!
//! ```
//! use burn::tensor::{Device, FloatDType, Tensor};
//! use firebrick_kernels::{Draws, Gelu, Samples, Site, cast, dropout, gelu, linear};
//!
//! let device = Device::flex().autodiff();
//! let x = cast(Tensor::<2>::ones([4, 8], &device), FloatDType::BF16);
//! let weight = Tensor::<2>::full([8, 3], 0.25, &device).require_grad();
//! let y = gelu(linear(x, cast(weight.clone(), FloatDType::BF16), None), Gelu::Exact);
//! let site = Site { draws: Draws { seed: 1, epoch: 0, first: 0 }, number: 0, samples: &Samples::Columns, from: 0 };
//! let loss = cast(dropout(y, 0.1, &[], site), FloatDType::F32).sum();
//! let gradient = weight.grad(&loss.backward()).expect("the loss depends on the weight");
//! assert_eq!(gradient.dims(), [8, 3]);
//! ```
//!
//! # Features
//!
//! `cube` is every backend that runs CubeCL kernels; `fusion` must be on where Burn's feature of that name is.

mod attention;
mod autodiff;
mod cap;
pub mod check;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
mod cublas;
mod device;
mod draws;
mod dropout;
mod elements;
mod embedding;
mod flex;
mod fp8;
mod gated;
mod gelu;
mod half;
mod handover;
#[cfg(test)]
mod longer;
#[cfg(test)]
mod longer_tests;
mod loss;
mod many;
pub mod memory;
mod norm;
pub mod off;
pub mod optim;
pub mod packed;
mod product;
mod ragged;
mod reading;
mod residual;
mod rotary;
#[cfg(test)]
mod testing;
mod upload;
mod zero_results;

pub use attention::{
    Attending, AttentionInParts, AttentionSoFar, Reads, attends_in_tiles, attention, attention_of_joint,
};
pub use draws::Draws;
pub use dropout::{DropMask, DropoutOps, Samples, Site, dropout};
pub use embedding::{EmbeddingOps, embedding, embedding_sum};
pub use fp8::{Fp8, Fp8Ops, Fp8Products, fits_fp8, linear_in_fp8, round_to_fp8};
pub use gated::{Gate, GatedOps, gated};
pub use gelu::{Gelu, GeluOps, gelu};
pub use half::{HalfOps, cast};
pub use handover::Handover;
pub use loss::{
    Head, HeadWeight, IGNORED, LossOps, LossRows, cross_entropy, head_loss, head_losses, rows_of_logits,
    with_share_of_classes,
};
pub use many::{ManyOps, add_all, cast_all, clip_all, l2_norm, scale_all, sum_of_squares};
pub use norm::{NormKind, NormOps, NormRows, norm, norm_and_input, norm_of_sum};
pub use product::{
    ProductOps, linear, linear_gradients, matmul, product_library, settle_products, with_read_products,
    with_unread_products,
};
pub use ragged::Ragged;
pub use reading::Reading;
pub use residual::{ResidualOps, add, add_dropout};
pub use rotary::{RotaryOps, rotary};
pub use upload::{Upload, staged};
pub use zero_results::with_zero_results;
