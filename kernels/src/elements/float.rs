//! Numbers that are computed with in f32.

use burn::backend::Element;
use burn::tensor::{bf16, f16};
use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;

/// A float of at most 32 bits, as it lies in memory. Both conversions are of slices of equal lengths.
pub trait Float: Element + Pod + Sync + Send {
    /// Converts to f32, which is exact.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds to nearest, ties to even.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Float for f32 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        crate::half::bf16::widen(from, to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        crate::half::bf16::narrow(from, to);
    }
}

impl Float for f16 {
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    #[inline(always)]
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}
