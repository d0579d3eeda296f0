//! Affine maps whose operands are rounded to 8 bits: E4M3 in the forward pass, E5M2 for gradients (Micikevicius et al., 2022,
//! *FP8 Formats for Deep Learning*, arXiv:2209.05433).
//!
//! Each tensor has one scale, found from its largest magnitude when it is used ("current scaling"). It is a power of two, so a
//! rounded number is one of the tensor's own dtype, and the product of rounded operands is the product of 8-bit ones to the bit
//! of its sums: on devices without 8-bit products the operands are rounded and then multiplied like any others. On NVIDIA's GPUs
//! of compute capability 8.9 and above, [cuBLASLt](crate::product_library) multiplies the bytes.
//!
//! The backward pass keeps the operands in their own dtype, which the model holds anyway, and rounds them again.
//!
//! ```text
//! ops.rs       the map as an operation of a backend, its gradient, and rounding on all cores
//! cube.rs      maps on a device
//! rounding.rs  rounding on a device
//! library.rs   bytes for NVIDIA's library, as they stand or transposed
//! bytes.cu     its kernel
//! ```

#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
mod library;
mod ops;
#[cfg(feature = "cube")]
mod rounding;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

pub use ops::{Fp8Ops, Fp8Products};

/// The multiple that the last axis of each operand must be: 16 bytes.
const MULTIPLE: usize = 16;

/// Returns whether an affine map with a weight `[in, out]` is computed in 8 bits: both are multiples of 16, as the products of
/// GPUs require.
///
/// ```
/// assert!(firebrick_kernels::fits_fp8([768, 3072]));
/// assert!(!firebrick_kernels::fits_fp8([768, 2]));
/// ```
pub fn fits_fp8(weight: [usize; 2]) -> bool {
    weight.iter().all(|length| *length > 0 && length.is_multiple_of(MULTIPLE))
}

/// Rounds each element to what 8 bits hold, with one power of two as the scale of all: the largest with which no element
/// overflows, up to 2¹⁰⁰. The result is in the dtype of `x`, and its gradient is that of `x`. If an element is not finite, no
/// element is a number.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{Fp8, round_to_fp8};
///
/// let x = Tensor::<1>::from_data([1.0, 1.05, 1.1, 1.3], &Device::flex());
/// let rounded = |format| round_to_fp8(x.clone(), format).into_data().iter::<f32>().collect::<Vec<_>>();
/// assert_eq!(rounded(Fp8::E4m3), [1.0, 1.0, 1.125, 1.25]);
/// assert_eq!(rounded(Fp8::E5m2), [1.0, 1.0, 1.0, 1.25]);
/// ```
pub fn round_to_fp8<const D: usize>(x: Tensor<D>, format: Fp8) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as Fp8Ops>::round_to_fp8(x.into_dispatch(), format))
}

/// Computes [`linear`](crate::linear) with `x` and `weight` rounded to [E4M3](Fp8::E4m3). The backward pass rounds the gradient
/// of the result to [E5M2](Fp8::E5m2) and multiplies it by the same rounded operands; the gradient of the bias is its sum before
/// rounding. All sums are in f32. `x` is `[.., in]`, `weight` `[in, out]` and `bias` `[out]`, in one dtype, which the result has.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::full([1, 16], 1.05, &Device::flex());
/// let weight = Tensor::ones([16, 16], &Device::flex());
/// let y = firebrick_kernels::linear_in_fp8(x, weight, None);
/// assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), [16.0; 16]);
/// ```
///
/// # Panics
///
/// If the shapes do not fit or the dtypes differ, like [`linear`](crate::linear); or if the weight does not
/// [fit](fits_fp8).
pub fn linear_in_fp8<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let (shape, dims) = (x.dims(), weight.dims());
    assert!(fits_fp8(dims), "a weight in 8 bits has axes that are multiples of {MULTIPLE}, found {dims:?}");
    let [from, to] = dims;
    let fits = shape[D - 1] == from
        && x.dtype() == weight.dtype()
        && bias.as_ref().is_none_or(|bias| bias.dims() == [to] && bias.dtype() == x.dtype());
    // Of nothing there is nothing to round.
    if !fits || shape.contains(&0) {
        return crate::linear(x, weight, bias);
    }
    if D == 1 {
        return linear_in_fp8::<2>(x.reshape([1, from]), weight, bias).reshape([to; D]);
    }
    let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
    Tensor::from_dispatch(match bias {
        Some(bias) => Dispatch::fp8_affine(x, weight, bias.into_dispatch()),
        None => Dispatch::fp8_product(x, weight),
    })
}

/// A format of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa; the largest number is 448. Without infinities: OCP's E4M3, `float8_e4m3fn`.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa; the largest number is 57,344: `float8_e5m2`.
    E5m2,
}

/// The largest exponent of a scale: the smallest step is then far above the smallest normal f32, which devices may flush.
const MOST_SCALE: u32 = 100;

/// Bits of an f32 that is not finite are at least these.
const INFINITE: u32 = 0x7F80_0000;

/// The mantissa of 1.75, by which both formats' largest number is above a power of two.
const TOP: u32 = 0x60_0000;

impl Fp8 {
    /// Bits of the mantissa that are written.
    fn mantissa(self) -> u32 {
        match self {
            Self::E4m3 => 3,
            Self::E5m2 => 2,
        }
    }

    /// The exponent of the largest number, 1.75 times its power of two.
    fn largest(self) -> u32 {
        match self {
            Self::E4m3 => 8,
            Self::E5m2 => 15,
        }
    }

    /// Minus the exponent of the smallest normal number, which is the bias less one.
    fn smallest(self) -> u32 {
        match self {
            Self::E4m3 => 6,
            Self::E5m2 => 14,
        }
    }
}

/// Rounds the numbers of one tensor.
#[derive(Clone, Copy, Debug)]
struct Rounding {
    mantissa: u32,
    /// The exponent of the smallest number that is normal under the tensor's scale, with f32's bias.
    least: u32,
    /// 1, or NaN if an element is not finite.
    sound: f32,
}

impl Rounding {
    /// `most` is the largest of the bits of the tensor's magnitudes in f32.
    pub fn of(most: u32, format: Fp8) -> Self {
        let sound = if most < INFINITE { 1.0 } else { f32::NAN };
        // The exponent of the scale is `largest + 127 - exponent`, where the exponent has f32's bias.
        let exponent = (most.min(INFINITE - 1) >> 23) + u32::from(most & 0x7F_FFFF > TOP);
        let bounded = exponent.max(format.largest() + 127 - MOST_SCALE);
        Self { mantissa: format.mantissa(), least: bounded - format.largest() - format.smallest(), sound }
    }

    /// Rounds to the nearest, ties to even.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        let bits = x.to_bits() & 0x7FFF_FFFF;
        let step = (bits >> 23).max(self.least) - self.mantissa;
        let steps = f32::from_bits(bits) * f32::from_bits((254 - step) << 23);
        // A sum with 2²³ has no bits below 1.
        const WHOLE: f32 = 8_388_608.0;
        let rounded = ((steps + WHOLE) - WHOLE) * f32::from_bits(step << 23);
        rounded.copysign(x) * self.sound
    }
}
