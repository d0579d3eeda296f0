//! Slices of floats in f32 or half precision, read and written as blocks of f32.

use burn::tensor::{bf16, f16};
use half::slice::HalfFloatSliceExt;

use crate::half::bf16 as halves;

/// Elements computed at a time: those of a parameter, its gradient and its moments together fit the L1 cache.
pub(super) const BLOCK: usize = 512;

/// A block of f32.
pub(super) type Block = [f32; BLOCK];

/// Floats that an update reads.
#[derive(Clone, Copy)]
pub(super) enum Floats<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Floats<'a> {
    pub fn len(&self) -> usize {
        match self {
            Self::F32(floats) => floats.len(),
            Self::Bf16(floats) => floats.len(),
            Self::F16(floats) => floats.len(),
        }
    }

    /// Splits off the first `length` floats, or all if there are fewer.
    #[inline(always)]
    pub fn take(&mut self, length: usize) -> Self {
        let length = length.min(self.len());
        match self {
            Self::F32(floats) => Self::F32(floats.split_off(..length).unwrap_or_default()),
            Self::Bf16(floats) => Self::Bf16(floats.split_off(..length).unwrap_or_default()),
            Self::F16(floats) => Self::F16(floats.split_off(..length).unwrap_or_default()),
        }
    }

    /// Returns the floats as f32: themselves, or widened into `block`. There are at most [`BLOCK`].
    #[inline(always)]
    pub fn read<'b>(&self, block: &'b mut Block) -> &'b [f32]
    where
        'a: 'b,
    {
        let block = &mut block[..self.len()];
        match self {
            Self::F32(floats) => return floats,
            Self::Bf16(floats) => halves::widen(floats, block),
            Self::F16(floats) => floats.convert_to_f32_slice(block),
        }
        block
    }
}

/// Floats that an update changes in place.
pub(super) enum FloatsMut<'a> {
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl FloatsMut<'_> {
    /// Returns the number of floats before the first cache line boundary.
    pub fn before_line(&self) -> usize {
        match self {
            Self::F32(floats) => floats.as_ptr().align_offset(LINE),
            Self::Bf16(floats) => floats.as_ptr().align_offset(LINE),
            Self::F16(floats) => floats.as_ptr().align_offset(LINE),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::F32(floats) => floats.len(),
            Self::Bf16(floats) => floats.len(),
            Self::F16(floats) => floats.len(),
        }
    }

    /// Splits off the first `length` floats, or all if there are fewer.
    #[inline(always)]
    pub fn take(&mut self, length: usize) -> Self {
        let length = length.min(self.len());
        match self {
            Self::F32(floats) => Self::F32(floats.split_off_mut(..length).unwrap_or_default()),
            Self::Bf16(floats) => Self::Bf16(floats.split_off_mut(..length).unwrap_or_default()),
            Self::F16(floats) => Self::F16(floats.split_off_mut(..length).unwrap_or_default()),
        }
    }

    /// Returns the floats as mutable f32: themselves, or widened into `block`, from which [`close`](Self::close) writes
    /// them back. There are at most [`BLOCK`].
    #[inline(always)]
    pub fn open<'b>(&'b mut self, block: &'b mut Block) -> &'b mut [f32] {
        let block = &mut block[..self.len()];
        match self {
            Self::F32(floats) => return floats,
            Self::Bf16(floats) => halves::widen(floats, block),
            Self::F16(floats) => floats.convert_to_f32_slice(block),
        }
        block
    }

    /// Writes back the floats that [`open`](Self::open) widened.
    #[inline(always)]
    pub fn close(&mut self, block: &Block) {
        if !matches!(self, Self::F32(_)) {
            self.write(&block[..self.len()]);
        }
    }

    /// Writes `values`, rounded to nearest, ties to even.
    #[inline(always)]
    pub fn write(&mut self, values: &[f32]) {
        match self {
            Self::F32(floats) => floats.copy_from_slice(values),
            Self::Bf16(floats) => halves::narrow(values, floats),
            Self::F16(floats) => floats.convert_from_f32_slice(values),
        }
    }
}
