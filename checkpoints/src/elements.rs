//! The dtypes that a checkpoint holds, and the numbers in a tensor's bytes.

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;

/// Bytes per thread, a multiple of every element size.
const CHUNK: usize = 1 << 20;

/// Calls `each` with every element as f64, which is exact, and returns true. Returns false for non-float dtypes.
pub(crate) fn floats(dtype: Dtype, bytes: &[u8], mut each: impl FnMut(f64)) -> bool {
    match dtype {
        Dtype::F64 => bytes.as_chunks().0.iter().for_each(|&b| each(f64::from_le_bytes(b))),
        Dtype::F32 => bytes.as_chunks().0.iter().for_each(|&b| each(f64::from(f32::from_le_bytes(b)))),
        Dtype::BF16 => bytes.as_chunks().0.iter().for_each(|&b| each(f64::from(bf16::from_le_bytes(b)))),
        Dtype::F16 => bytes.as_chunks().0.iter().for_each(|&b| each(f64::from(f16::from_le_bytes(b)))),
        _ => return false,
    }
    true
}

/// Returns whether the elements are floats.
pub(crate) fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::BF16 | Dtype::F16)
}

/// Returns whether all floats are finite; always true for other dtypes.
pub(crate) fn is_finite(dtype: Dtype, bytes: &[u8]) -> bool {
    // Infinities and NaNs have all exponent bits set. Without an early exit this runs at memory speed.
    macro_rules! finite {
        ($bits:ty, $exponent:expr) => {
            bytes.par_chunks(CHUNK).all(|chunk| {
                let bits = chunk.as_chunks().0.iter().map(|&b| <$bits>::from_le_bytes(b));
                !bits.fold(false, |found, bits| found | (bits & $exponent == $exponent))
            })
        };
    }
    match dtype {
        Dtype::F64 => finite!(u64, 0x7ff0_0000_0000_0000),
        Dtype::F32 => finite!(u32, 0x7f80_0000),
        Dtype::BF16 => finite!(u16, 0x7f80),
        Dtype::F16 => finite!(u16, 0x7c00),
        _ => true,
    }
}

/// The number of elements that differ in their bits, and the largest difference of values: NaN if a value is NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Difference {
    pub(crate) elements: u64,
    pub(crate) largest: f64,
}

impl Difference {
    fn add(&mut self, difference: f64) {
        self.elements += 1;
        // `max` would drop a NaN.
        if difference.is_nan() || difference > self.largest {
            self.largest = if self.largest.is_nan() { self.largest } else { difference };
        }
    }

    /// Compares elements of one dtype and adds their differences.
    pub(crate) fn compare(&mut self, dtype: Dtype, a: &[u8], b: &[u8]) {
        macro_rules! pairs {
            ($element:ty, $difference:expr) => {
                for (&a, &b) in a.as_chunks().0.iter().zip(b.as_chunks().0) {
                    if a != b {
                        let (a, b) = (<$element>::from_le_bytes(a), <$element>::from_le_bytes(b));
                        self.add($difference(a, b));
                    }
                }
            };
        }
        fn of_floats<F: Into<f64>>(a: F, b: F) -> f64 {
            (a.into() - b.into()).abs()
        }
        fn of_integers<I: Into<i128>>(a: I, b: I) -> f64 {
            (a.into() - b.into()).unsigned_abs() as f64
        }
        match dtype {
            Dtype::F64 => pairs!(f64, of_floats),
            Dtype::F32 => pairs!(f32, of_floats),
            Dtype::BF16 => pairs!(bf16, of_floats),
            Dtype::F16 => pairs!(f16, of_floats),
            Dtype::I64 => pairs!(i64, of_integers),
            Dtype::I32 => pairs!(i32, of_integers),
            Dtype::I16 => pairs!(i16, of_integers),
            Dtype::I8 => pairs!(i8, of_integers),
            Dtype::U64 => pairs!(u64, of_integers),
            Dtype::U32 => pairs!(u32, of_integers),
            Dtype::U16 => pairs!(u16, of_integers),
            _ => pairs!(u8, of_integers),
        }
    }
}

/// The supported dtypes. Safetensors has more, which no tensor of a training run uses.
pub(crate) const DTYPES: [Dtype; 13] = [
    Dtype::F64,
    Dtype::F32,
    Dtype::BF16,
    Dtype::F16,
    Dtype::I64,
    Dtype::I32,
    Dtype::I16,
    Dtype::I8,
    Dtype::U64,
    Dtype::U32,
    Dtype::U16,
    Dtype::U8,
    Dtype::BOOL,
];

/// Returns the bytes of one element, if a checkpoint can hold the dtype.
pub(crate) fn element_bytes(dtype: Dtype) -> Option<usize> {
    DTYPES.contains(&dtype).then(|| dtype.bitsize() / 8)
}

/// Returns the bytes of a tensor, unless the count overflows or the dtype is unsupported.
pub(crate) fn tensor_bytes(dtype: Dtype, shape: &[usize]) -> Option<usize> {
    let element = element_bytes(dtype)?;
    shape.iter().try_fold(element, |bytes, &length| bytes.checked_mul(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_finite_number_is_found_in_every_dtype() {
        let elements = 3 * CHUNK / 4;
        for at in [0, CHUNK / 4 - 1, CHUNK / 4, elements - 1] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
                let mut values = vec![f32::MAX; elements];
                values[at] = bad;
                let all =
                    |bytes: fn(f32) -> Vec<u8>| values.iter().flat_map(|x| bytes(*x)).collect::<Vec<_>>();
                assert!(!is_finite(Dtype::F32, &all(|x| x.to_le_bytes().into())));
                assert!(is_finite(Dtype::I32, &all(|x| x.to_le_bytes().into())));
            }
        }
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_finite(Dtype::F64, &[1.0, bad].map(f64::to_le_bytes).concat()));
            assert!(!is_finite(Dtype::BF16, &[1.0, bad].map(|x| bf16::from_f64(x).to_le_bytes()).concat()));
            assert!(!is_finite(Dtype::F16, &[1.0, bad].map(|x| f16::from_f64(x).to_le_bytes()).concat()));
        }
        assert!(is_finite(Dtype::F64, &[f64::MAX, -0.0].map(f64::to_le_bytes).concat()));
        assert!(is_finite(Dtype::BF16, &[bf16::MAX, bf16::MIN].map(bf16::to_le_bytes).concat()));
        assert!(is_finite(Dtype::F16, &[f16::MAX, f16::MIN].map(f16::to_le_bytes).concat()));
        assert!(is_finite(Dtype::F32, &[]));
    }

    fn compared(dtype: Dtype, a: &[u8], b: &[u8]) -> Difference {
        let mut difference = Difference::default();
        difference.compare(dtype, a, b);
        difference
    }

    #[test]
    fn the_largest_difference_is_that_of_the_values() {
        let f32s = |values: [f32; 3]| values.map(f32::to_le_bytes).concat();
        let found = compared(Dtype::F32, &f32s([1.0, 2.0, 0.0]), &f32s([1.0, -1.5, -0.0]));
        assert_eq!(found, Difference { elements: 2, largest: 3.5 });
        for (a, b) in [(f32::NAN, 5.0), (5.0, f32::NAN)] {
            let found = compared(Dtype::F32, &f32s([a, 0.0, 1.0]), &f32s([b, 9.0, 1.0]));
            assert!(found.elements == 2 && found.largest.is_nan());
        }
        assert_eq!(compared(Dtype::F32, &f32s([f32::NAN; 3]), &f32s([f32::NAN; 3])), Difference::default());
        let ends = compared(Dtype::I64, &i64::MIN.to_le_bytes(), &i64::MAX.to_le_bytes());
        assert_eq!(ends, Difference { elements: 1, largest: u64::MAX as f64 });
        assert_eq!(compared(Dtype::U8, &[0, 255], &[255, 255]), Difference { elements: 1, largest: 255.0 });
        assert_eq!(compared(Dtype::I8, &[0x80], &[0x7f]).largest, 255.0);
        assert_eq!(compared(Dtype::BOOL, &[0, 1], &[1, 1]), Difference { elements: 1, largest: 1.0 });
        let halves = (f16::from_f32(1.5).to_le_bytes(), f16::from_f32(-0.25).to_le_bytes());
        assert_eq!(compared(Dtype::F16, &halves.0, &halves.1).largest, 1.75);
    }
}
