use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use half::{bf16, f16};
use proptest::prelude::*;

use super::cast;

const HALF: [FloatDType; 2] = [FloatDType::BF16, FloatDType::F16];

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Converts each element of any view once, also in views larger than one task.
    #[test]
    fn a_cast_of_any_view_equals_burns(
        [a, b, c, d] in prop::array::uniform4(1usize..24),
        order in Just([0, 1, 2, 3]).prop_shuffle(),
        cuts in prop::array::uniform4(0usize..3),
        steps in prop::array::uniform4(1isize..3),
        long: bool,
        half: bool,
    ) {
        let device = Device::flex();
        let shape = if long { [a, b, c, 40 * d] } else { [a, b, c, d] };
        let values = (0..shape.iter().product()).map(|i: usize| (i as f32 * 0.37).sin()).collect::<Vec<_>>();
        let x = Tensor::<4>::from_data(TensorData::new(values, shape), &device).permute(order.map(|axis| axis as isize));
        let dims = x.dims();
        let cut = |at: usize| {
            let from = cuts[at].min(dims[at] - 1) as isize;
            burn::tensor::Slice::new(from, None, if long { 1 } else { steps[at] })
        };
        let x = x.slice([cut(0), cut(1), cut(2), cut(3)]);
        let dtype = HALF[usize::from(half)];
        let narrow = cast(x.clone(), dtype);
        prop_assert_eq!(narrow.clone().into_data(), x.clone().cast(dtype).into_data());
        let stretched = narrow.clone().unsqueeze_dim::<5>(2).repeat_dim(2, 1);
        let [p, q, _, r, s] = stretched.dims();
        let stretched = stretched.expand([p, q, 3, r, s]);
        let wide = cast(stretched.clone(), FloatDType::F32);
        prop_assert_eq!(wide.into_data(), stretched.cast(FloatDType::F32).into_data());
    }
}

/// Every 16-bit number, and f32 numbers around every rounding boundary.
#[test]
fn conversion_equals_its_definition() {
    let device = Device::flex();
    let same = |found: f32, expected: f32| {
        found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
    };
    let patterns: Vec<u16> = (0..=u16::MAX).collect();
    let bf16s: Vec<bf16> = patterns.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let f16s: Vec<f16> = patterns.iter().map(|&bits| f16::from_bits(bits)).collect();
    let count = patterns.len();
    let of_bf16 = Tensor::<1>::from_data(TensorData::new(bf16s.clone(), [count]), (&device, DType::BF16));
    let of_f16 = Tensor::<1>::from_data(TensorData::new(f16s.clone(), [count]), (&device, DType::F16));
    for (found, expected) in values(cast(of_bf16, FloatDType::F32)).into_iter().zip(bf16s) {
        assert!(same(found, expected.to_f32()), "{found} {expected}");
    }
    for (found, expected) in values(cast(of_f16, FloatDType::F32)).into_iter().zip(f16s) {
        assert!(same(found, expected.to_f32()), "{found} {expected}");
    }

    let near = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x0FFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x3001];
    let floats: Vec<f32> = patterns
        .iter()
        .flat_map(|&upper| near.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)))
        .collect();
    let x = Tensor::<1>::from_data(TensorData::new(floats.clone(), [floats.len()]), &device);
    let found = [values(cast(x.clone(), FloatDType::BF16)), values(cast(x, FloatDType::F16))];
    for (at, float) in floats.into_iter().enumerate() {
        let expected = [bf16::from_f32(float).to_f32(), f16::from_f32(float).to_f32()];
        assert!(same(found[0][at], expected[0]), "{float}: {} {}", found[0][at], expected[0]);
        assert!(same(found[1][at], expected[1]), "{float}: {} {}", found[1][at], expected[1]);
    }
}
