//! Floating-point formats: the numeric limits of their bits.

use std::sync::LazyLock;

use serde::Serialize;

/// The meaning of a format's largest exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TopExponent {
    /// Infinity and NaN only, as in IEEE 754.
    Special,
    /// Numbers, except the last code, which is NaN.
    NumbersButOne,
    /// Numbers only.
    Numbers,
}

/// A binary floating-point format: `f64`, `f32` and `f16` of IEEE 754, `bf16`, and the 8, 6 and 4 bit
/// formats of the Open Compute Project's Microscaling Formats specification, version 1.0.
///
/// ```
/// use firebrick::device::NumberFormat;
///
/// let f16 = NumberFormat::named("f16").unwrap();
/// assert_eq!((f16.bits, f16.exponent_bits, f16.mantissa_bits), (16, 5, 10));
/// assert_eq!(f16.largest, 65504.0);
/// assert_eq!(f16.epsilon, 2f64.powi(-10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct NumberFormat {
    /// Its usual name, such as `bf16` or `fp8 e4m3`.
    pub name: &'static str,
    /// Total number of bits, including the sign.
    pub bits: u32,
    /// Number of exponent bits.
    pub exponent_bits: u32,
    /// Number of stored mantissa bits; a normal number has one more, which is 1.
    pub mantissa_bits: u32,
    /// The smallest positive number with full precision.
    pub smallest_normal: f64,
    /// The smallest positive number, with reduced precision, if the format has subnormal numbers.
    pub smallest_subnormal: Option<f64>,
    /// The largest finite number.
    pub largest: f64,
    /// The distance from 1 to the next number. The relative error of rounding is at most half of it.
    pub epsilon: f64,
}

/// The formats, from the widest to the narrowest.
static FORMATS: LazyLock<[NumberFormat; 10]> = LazyLock::new(|| {
    use TopExponent::{Numbers, NumbersButOne, Special};
    [
        NumberFormat::new("f64", 1, 11, 52, Special),
        NumberFormat::new("f32", 1, 8, 23, Special),
        NumberFormat::new("f16", 1, 5, 10, Special),
        NumberFormat::new("bf16", 1, 8, 7, Special),
        NumberFormat::new("fp8 e4m3", 1, 4, 3, NumbersButOne),
        NumberFormat::new("fp8 e5m2", 1, 5, 2, Special),
        NumberFormat::new("fp8 e8m0", 0, 8, 0, NumbersButOne),
        NumberFormat::new("fp6 e2m3", 1, 2, 3, Numbers),
        NumberFormat::new("fp6 e3m2", 1, 3, 2, Numbers),
        NumberFormat::new("fp4 e2m1", 1, 2, 1, Numbers),
    ]
});

impl NumberFormat {
    /// All formats in a [`Listing`](super::Listing), from the widest to the narrowest.
    pub fn all() -> &'static [Self] {
        &*FORMATS
    }

    /// The format with this name.
    pub fn named(name: &str) -> Option<Self> {
        FORMATS.iter().find(|format| format.name == name).copied()
    }

    /// The format with these numbers of bits: sign, exponent and mantissa.
    fn new(name: &'static str, sign: u32, exponent: u32, mantissa: u32, top: TopExponent) -> Self {
        let value = |code| value(exponent, mantissa, code);
        let end = 1 << (exponent + mantissa);
        Self {
            name,
            bits: sign + exponent + mantissa,
            exponent_bits: exponent,
            mantissa_bits: mantissa,
            smallest_normal: value(if mantissa == 0 { 0 } else { 1 << mantissa }),
            smallest_subnormal: (mantissa > 0).then(|| value(1)),
            largest: value(match top {
                TopExponent::Special => end - (1 << mantissa) - 1,
                TopExponent::NumbersButOne => end - 2,
                TopExponent::Numbers => end - 1,
            }),
            epsilon: 2f64.powi(-(mantissa as i32)),
        }
    }
}

/// The number with the bits `code`, not counting the sign. It does not treat infinity and NaN specially.
///
/// With `e` bits of exponent E and `m` bits of mantissa M, and the bias `b = 2^(e-1) - 1`, the value is
/// `2^(E-b) (1 + M/2^m)`, or `2^(1-b) M/2^m` if E is 0. A format without mantissa is a bare power of two: it has
/// no 0 and no subnormal numbers.
fn value(exponent_bits: u32, mantissa_bits: u32, code: u64) -> f64 {
    let (exponent, mantissa) = (code >> mantissa_bits, code & ((1 << mantissa_bits) - 1));
    let bias = (1i64 << (exponent_bits - 1)) - 1;
    let (power, digits) = match exponent == 0 && mantissa_bits > 0 {
        true => (1, mantissa),
        false => (exponent as i64, mantissa + (1 << mantissa_bits)),
    };
    // Each factor is exact: digits have at most 53 bits, and the power of two is representable.
    digits as f64 * 2f64.powf((power - bias - i64::from(mantissa_bits)) as f64)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{bf16, f16};

    use super::*;

    fn numbers(name: &str) -> (u32, f64, Option<f64>, f64, f64) {
        let numbers = NumberFormat::named(name).unwrap();
        let NumberFormat { bits, smallest_normal, smallest_subnormal, largest, epsilon, .. } = numbers;
        (bits, smallest_normal, smallest_subnormal, largest, epsilon)
    }

    #[test]
    fn formats_that_rust_has_are_as_it_says() {
        let f64s = (64, f64::MIN_POSITIVE, Some(f64::from_bits(1)), f64::MAX, f64::EPSILON);
        assert_eq!(numbers("f64"), f64s);
        let f32s = [f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::EPSILON].map(f64::from);
        assert_eq!(numbers("f32"), (32, f32s[0], Some(f32s[1]), f32s[2], f32s[3]));
        let f16s = [f16::MIN_POSITIVE, f16::MIN_POSITIVE_SUBNORMAL, f16::MAX, f16::EPSILON].map(f64::from);
        assert_eq!(numbers("f16"), (16, f16s[0], Some(f16s[1]), 65504.0, f16s[3]));
        assert_eq!(f16s[2], 65504.0);
        let bf16s =
            [bf16::MIN_POSITIVE, bf16::MIN_POSITIVE_SUBNORMAL, bf16::MAX, bf16::EPSILON].map(f64::from);
        assert_eq!(numbers("bf16"), (16, bf16s[0], Some(bf16s[1]), bf16s[2], 2f64.powi(-7)));
    }

    /// Tables 1 to 5 of the Microscaling Formats specification, and section 5.4 for the scale.
    #[test]
    fn narrow_formats_are_as_specified() {
        let two = |power| 2f64.powi(power);
        assert_eq!(numbers("fp8 e4m3"), (8, two(-6), Some(two(-9)), 448.0, 0.125));
        assert_eq!(numbers("fp8 e5m2"), (8, two(-14), Some(two(-16)), 57344.0, 0.25));
        assert_eq!(numbers("fp8 e8m0"), (8, two(-127), None, two(127), 1.0));
        assert_eq!(numbers("fp6 e2m3"), (6, 1.0, Some(0.125), 7.5, 0.125));
        assert_eq!(numbers("fp6 e3m2"), (6, 0.25, Some(0.0625), 28.0, 0.25));
        assert_eq!(numbers("fp4 e2m1"), (4, 1.0, Some(0.5), 6.0, 0.5));
    }

    #[test]
    fn every_number_of_fp4_is_known() {
        let found: Vec<_> = (0..8).map(|code| value(2, 1, code)).collect();
        assert_eq!(found, [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
    }
}
