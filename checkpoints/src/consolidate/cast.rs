//! Converts floats to another dtype.

use half::{bf16, f16};
use safetensors::Dtype;

use crate::elements::floats;

/// Converts floats from one dtype to another. Rounds each once to the nearest, ties to even. Counts finite numbers that
/// become infinite.
pub(super) fn cast(from: Dtype, to: Dtype, bytes: &[u8], infinite: &mut u64) -> Vec<u8> {
    let mut result = Vec::with_capacity(bytes.len() * to.bitsize() / from.bitsize());
    floats(from, bytes, |float| {
        let finite = match to {
            Dtype::BF16 => {
                let half = bf16::from_f32(odd(float));
                result.extend(half.to_le_bytes());
                half.is_finite()
            }
            Dtype::F16 => {
                let half = f16::from_f32(odd(float));
                result.extend(half.to_le_bytes());
                half.is_finite()
            }
            _ => {
                let single = float as f32;
                result.extend(single.to_le_bytes());
                single.is_finite()
            }
        };
        *infinite += u64::from(float.is_finite() && !finite);
    });
    result
}

/// Rounds a number to f32 with round-to-odd: an inexact result gets an odd last bit. Rounding the result to half
/// precision then equals rounding the number itself (Boldo and Melquiond, "When double rounding is odd", 2005).
fn odd(float: f64) -> f32 {
    let single = float as f32;
    if f64::from(single) == float || single.is_nan() {
        return single;
    }
    let towards_zero = f64::from(single).abs() > float.abs();
    f32::from_bits((single.to_bits() - u32::from(towards_zero)) | 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(from: &[u8], dtype: Dtype, to: Dtype) -> (Vec<u8>, u64) {
        let mut infinite = 0;
        let cast = cast(dtype, to, from, &mut infinite);
        (cast, infinite)
    }

    #[test]
    fn ties_round_to_even() {
        let bf16s = [
            (1.0 + 1.0 / 256.0, 1.0),
            (1.0 + 3.0 / 256.0, 1.0 + 1.0 / 64.0),
            (1.0 + 1.0 / 256.0 + f32::EPSILON, 1.0 + 1.0 / 128.0),
        ];
        for (float, expected) in bf16s {
            let (cast, _) = one(&f32::to_le_bytes(float), Dtype::F32, Dtype::BF16);
            assert_eq!(cast, bf16::from_f32(expected).to_le_bytes(), "{float}");
        }
        // Rounding to f32 first would make this a tie.
        let float = 1.0 + 1.0 / 2048.0 + 1e-12;
        let (cast, _) = one(&f64::to_le_bytes(float), Dtype::F64, Dtype::F16);
        assert_eq!(cast, f16::from_f32(1.0 + 1.0 / 1024.0).to_le_bytes());
    }

    #[test]
    fn overflows_are_counted() {
        let floats = [65519.9f32, 65520.0, -1e9, f32::INFINITY, f32::NAN].map(f32::to_le_bytes).concat();
        let (halves, infinite) = one(&floats, Dtype::F32, Dtype::F16);
        assert_eq!(infinite, 2);
        let expected = [f16::MAX, f16::INFINITY, f16::NEG_INFINITY, f16::INFINITY, f16::NAN];
        assert_eq!(halves, expected.map(f16::to_le_bytes).concat());
        assert_eq!(one(&f32::MAX.to_le_bytes(), Dtype::F32, Dtype::BF16).1, 1);
        assert_eq!(
            one(&1e300f64.to_le_bytes(), Dtype::F64, Dtype::F32),
            (f32::INFINITY.to_le_bytes().into(), 1)
        );
    }

    #[test]
    fn halves_round_trip_through_f32() {
        for bits in 0..=u16::MAX {
            for dtype in [Dtype::BF16, Dtype::F16] {
                let (wide, _) = one(&bits.to_le_bytes(), dtype, Dtype::F32);
                let (again, infinite) = one(&wide, Dtype::F32, dtype);
                let nan = f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]).is_nan();
                assert!(nan || again == bits.to_le_bytes(), "{bits:#x}");
                assert_eq!(infinite, 0);
            }
        }
    }

    proptest! {
        #[test]
        fn f64_rounds_to_the_nearest_half(float in -70000f64..70000.0, small in -1e-6f64..1e-6) {
            for float in [float, small] {
                let (cast, _) = one(&float.to_le_bytes(), Dtype::F64, Dtype::F16);
                let cast = f16::from_le_bytes([cast[0], cast[1]]);
                let error = (f64::from(cast) - float).abs();
                for other in [cast.to_bits().wrapping_add(1), cast.to_bits().wrapping_sub(1)] {
                    let other = f64::from(f16::from_bits(other));
                    prop_assert!(!other.is_finite() || !cast.is_finite() || error <= (other - float).abs());
                }
            }
        }
    }
}
