//! Products of operands that stand in any way, on the device of the tests, beside the CPU's in f32. On a GPU they are a
//! library's or Burn's.

use super::*;
use crate::testing;

/// Returns the dtypes, and how near elements are to the CPU's, as a share of the largest.
fn dtypes() -> Vec<(FloatDType, f64)> {
    let f32 = testing::rounding_of_f32_products();
    testing::computed([(FloatDType::F32, f32), (FloatDType::F16, 4e-3), (FloatDType::BF16, 1e-2)])
}

/// Asserts that `found` is near `expected`, and that no element is left out.
fn assert_near(found: Vec<f32>, expected: Vec<f32>, near: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let most = expected.iter().fold(1.0, |most: f32, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let distance = f64::from((found - expected).abs() / most);
        assert!(distance <= near, "{what}: {found}, not {expected}, at {at}");
    }
}

/// Returns the product, or the map with a bias, and the gradients of what it reads, computed in the second dtype from numbers
/// that the first one can hold.
fn results(
    shapes: [[usize; 4]; 2],
    views: [View; 2],
    bias: bool,
    [coarse, dtype]: [FloatDType; 2],
    device: &Device,
) -> Vec<Vec<f32>> {
    let device = device.clone().autodiff();
    let lhs = waves(shapes[0], 1, coarse, &device).cast(dtype).require_grad();
    let rhs = waves(shapes[1], 2, coarse, &device).cast(dtype).require_grad();
    let (left, right) = (views[0](lhs.clone()), views[1](rhs.clone()));
    let [_, _, inner, columns] = right.dims();
    // A part of a longer vector, which is not aligned to 16 bytes.
    let added = waves([columns + 1], 3, coarse, &device).cast(dtype).require_grad();
    let y = match bias {
        true => linear(left, right.reshape([inner, columns]), Some(added.clone().narrow(0, 1, columns))),
        false => matmul(left, right),
    };
    let weights = waves(y.dims(), 5, coarse, &device).cast(FloatDType::F32);
    let grads = (y.clone().cast(FloatDType::F32) * weights).sum().backward();
    let mut found = vec![values(y), values(lhs.grad(&grads).unwrap()), values(rhs.grad(&grads).unwrap())];
    found.extend(added.grad(&grads).map(values));
    found
}

#[test]
fn products_maps_and_gradients_of_views_equal_the_cpu_s() {
    let heads: View = |x| x.narrow(3, 16, 16).swap_dims(1, 2);
    let same: View = |x| x.expand([2, 3, 5, 7]);
    let columns: View = |x| x.narrow(3, 1, 5);
    let cases: [([[usize; 4]; 2], [View; 2]); 18] = [
        ([[1, 1, 1, 1], [1, 1, 1, 1]], [plain, plain]),
        ([[1, 1, 7, 1], [1, 1, 1, 9]], [plain, plain]),
        ([[1, 1, 1, 5], [1, 1, 5, 3]], [plain, plain]),
        ([[2, 3, 5, 7], [2, 3, 7, 11]], [plain, plain]),
        ([[2, 3, 5, 7], [1, 1, 7, 11]], [plain, plain]),
        ([[2, 3, 5, 7], [1, 1, 11, 7]], [plain, transposed]),
        // Not one stride between matrices: neither operand can be read where it stands.
        ([[1, 3, 5, 7], [2, 1, 7, 11]], [plain, plain]),
        ([[2, 3, 7, 5], [2, 3, 11, 7]], [transposed, transposed]),
        ([[2, 3, 9, 20], [2, 3, 19, 14]], [inner, inner]),
        ([[2, 3, 9, 20], [1, 3, 12, 20]], [inner, |x| transposed(inner(x))]),
        ([[2, 3, 5, 7], [2, 3, 7, 11]], [backwards, backwards]),
        ([[2, 1, 5, 7], [1, 3, 7, 11]], [same, plain]),
        // Their shapes do not tell whether they are transposed.
        ([[1, 1, 8, 8], [1, 1, 8, 8]], [transposed, plain]),
        ([[1, 1, 8, 8], [1, 1, 8, 8]], [plain, transposed]),
        ([[1, 1, 8, 8], [1, 1, 8, 8]], [transposed, transposed]),
        // Places that are not aligned to 16 bytes.
        ([[1, 1, 4, 9], [1, 1, 5, 9]], [columns, columns]),
        ([[2, 12, 3, 48], [2, 12, 3, 48]], [heads, heads_transposed]),
        ([[1, 2, 130, 67], [1, 1, 67, 190]], [plain, plain]),
    ];
    for (dtype, near) in dtypes() {
        for (at, (shapes, views)) in cases.into_iter().enumerate() {
            for bias in [false, true] {
                if bias && shapes[1][..2] != [1, 1] {
                    continue;
                }
                let found = results(shapes, views, bias, [dtype; 2], &testing::device());
                let expected = results(shapes, views, bias, [dtype, FloatDType::F32], &Device::flex());
                assert_eq!(found.len(), expected.len());
                for (part, (found, expected)) in found.into_iter().zip(expected).enumerate() {
                    let what = format!("case {at} in {dtype:?}, bias: {bias}, part {part}");
                    assert_near(found, expected, near, &what);
                }
            }
        }
    }
}

/// A product whose result has rows that CUDA pads, and which another product reads.
#[test]
fn a_product_of_products_equals_the_cpu_s() {
    for (dtype, near) in dtypes() {
        let coarse = dtype;
        let chain = |dtype: FloatDType, device: &Device| {
            let x = |shape, seed| waves::<2>(shape, seed, coarse, device).cast(dtype);
            let y = matmul(x([37, 65], 1), x([65, 33], 2)) * 0.1;
            values(matmul(matmul(y.clone(), x([33, 35], 3)) * 0.1, y.narrow(0, 0, 35)))
        };
        let expected = chain(FloatDType::F32, &Device::flex());
        assert_near(chain(dtype, &testing::device()), expected, near, &format!("{dtype:?}"));
    }
}

/// What a product is added to keeps its value where something else holds it.
#[cfg(feature = "cube")]
#[test]
fn a_product_is_added_to_what_is_there() {
    use burn::backend::Cube;

    use crate::device::is_cube;
    use crate::product::{cube_add_product, cube_wide_product};

    let device = testing::device();
    if !is_cube(&device) {
        return;
    }
    for (dtype, near) in dtypes() {
        let coarse = dtype;
        let x = |shape, seed, dtype: FloatDType, device: &Device| {
            waves::<2>(shape, seed, coarse, device).cast(dtype)
        };
        let of_cube = |x: Tensor<2>| x.try_into_primitive::<Cube>().expect("it is the device's");
        let operands = || [of_cube(x([9, 13], 1, dtype, &device)), of_cube(x([13, 11], 2, dtype, &device))];
        let total = x([9, 11], 3, FloatDType::F32, &device);
        let [lhs, rhs] = operands();
        let sum = Tensor::<2>::from_primitive::<Cube>(cube_add_product(of_cube(total.clone()), lhs, rhs));
        let cpu = Device::flex();
        let product = x([9, 13], 1, FloatDType::F32, &cpu).matmul(x([13, 11], 2, FloatDType::F32, &cpu));
        let before = x([9, 11], 3, FloatDType::F32, &cpu);
        assert_near(values(sum.clone()), values(before.clone() + product.clone()), near, "the sum");
        assert_near(values(total), values(before.clone()), 1e-7, "the total that is held");
        let [lhs, rhs] = operands();
        let twice = Tensor::<2>::from_primitive::<Cube>(cube_add_product(of_cube(sum), lhs, rhs));
        assert_near(values(twice), values(before + product.clone() * 2.0), near, "in the place of the sum");
        let [lhs, rhs] = operands();
        let wide = Tensor::<2>::from_primitive::<Cube>(cube_wide_product(lhs, rhs));
        assert_eq!(wide.dtype(), DType::F32);
        assert_near(values(wide), values(product), near, "the product in f32");
    }
}

#[test]
fn the_same_products_have_the_same_bits() {
    let device = testing::device();
    for (dtype, _) in dtypes() {
        let found = || results([[2, 3, 33, 47], [1, 1, 47, 29]], [plain, plain], true, [dtype; 2], &device);
        assert_eq!(found(), found(), "{dtype:?}");
    }
}
