//! Products of every shape, view and processor beside f64, and on any number of threads.

use super::*;

const FLOATS: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

/// A matrix as one of several views of a tensor: as it is, transposed, cut out of a larger one, backwards, or one row or
/// column repeated.
fn viewed(
    rows: usize,
    cols: usize,
    kind: usize,
    seed: usize,
    dtype: FloatDType,
    device: &Device,
) -> Tensor<2> {
    match kind {
        // Burn has no such views of an empty tensor.
        _ if rows * cols == 0 => waves([rows, cols], seed, dtype, device),
        0 => waves([rows, cols], seed, dtype, device),
        1 => waves([cols, rows], seed, dtype, device).transpose(),
        2 => waves([rows + 3, cols + 5], seed, dtype, device).narrow(0, 2, rows).narrow(1, 4, cols),
        3 => {
            waves([cols + 1, rows + 2], seed, dtype, device).narrow(0, 1, cols).narrow(1, 1, rows).transpose()
        }
        4 => waves([rows, cols], seed, dtype, device).flip([1]),
        5 => waves([1, cols], seed, dtype, device).expand([rows, cols]),
        _ => waves([rows, 1], seed, dtype, device).expand([rows, cols]),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every element is within the rounding of an f32 sum from its value in f64, for shapes of every route of the
    /// library: vectors, short and long inner axes, blocks with ends.
    #[test]
    fn products_of_any_view_equal_those_in_f64(
        [rows, cols] in prop::array::uniform2(prop_oneof![0usize..4, 4usize..70, 250usize..270]),
        inner in prop_oneof![0usize..4, 4usize..70, 600usize..700],
        kinds in prop::array::uniform2(0usize..7),
        dtype in 0usize..3,
        bias: bool,
    ) {
        let (device, dtype) = (Device::flex(), FLOATS[dtype]);
        let lhs = viewed(rows, inner, kinds[0], 1, dtype, &device);
        let rhs = viewed(inner, cols, kinds[1], 2, dtype, &device);
        let bias = bias.then(|| waves([cols], 3, dtype, &device));
        let wide = |x: Tensor<2>| x.cast(FloatDType::F64);
        let expected = match inner {
            // Burn's product of no columns is not all zeros.
            0 => Tensor::<2>::zeros([rows, cols], &device).cast(FloatDType::F64),
            _ => wide(lhs.clone()).matmul(wide(rhs.clone())),
        };
        let added: Vec<f64> = bias.clone().map_or(vec![0.0; cols], |bias| bias.into_data().iter().collect());
        let y = linear(lhs, rhs, bias);
        prop_assert_eq!(y.dims(), [rows, cols]);
        let expected: Vec<f64> = expected.into_data().iter().collect();
        for (at, (found, expected)) in values(y).into_iter().zip(expected).enumerate() {
            let expected = expected + added[at % cols];
            // Terms of one sign, added one after another, are the worst case.
            let near = 0.51 * epsilon(dtype) * expected.abs() + 6e-8 * (inner * inner) as f64 + 1e-6;
            let distance = (f64::from(found) - expected).abs();
            prop_assert!(distance <= near, "{} {} [{}, {}, {}]", found, expected, rows, inner, cols);
        }
    }
}

/// Products of more rows or columns than one call computes.
#[test]
fn large_products_are_put_together() {
    let device = Device::flex();
    for dtype in FLOATS {
        for (rows, cols) in [(4100, 9), (9, 8300), (4099, 4097)] {
            let (lhs, rhs) = (waves([rows, 3], 1, dtype, &device), waves([3, cols], 2, dtype, &device));
            let bias = waves([cols], 3, dtype, &device);
            let [left, right] = [lhs.clone(), rhs.clone()].map(values);
            let added = values(bias.clone());
            for (at, found) in values(linear(lhs, rhs, Some(bias))).into_iter().enumerate().step_by(7) {
                let (row, col) = (at / cols, at % cols);
                let sum: f32 = (0..3).map(|inner| left[row * 3 + inner] * right[inner * cols + col]).sum();
                let expected = f64::from(sum + added[col]);
                let near = 0.51 * epsilon(dtype) * expected.abs() + 1e-6;
                assert!((f64::from(found) - expected).abs() <= near, "{found} {expected} [{row}, {col}]");
            }
        }
    }
}

/// On processors whose instructions are slow in half precision.
#[test]
fn products_by_way_of_f32_are_rounded_once() {
    let device = Device::flex();
    for dtype in HALF {
        let lhs = viewed(30, 50, 1, 1, dtype, &device);
        let rhs = viewed(50, 20, 2, 2, dtype, &device);
        let bias = waves([20], 3, dtype, &device);
        let [wide_lhs, wide_rhs] = [lhs.clone(), rhs.clone()].map(|x| x.cast(FloatDType::F32));
        let expected = wide_lhs.matmul(wide_rhs) + bias.clone().cast(FloatDType::F32).unsqueeze();
        let [lhs, rhs] = [lhs, rhs].map(|x| x.try_into_primitive::<Flex>().unwrap());
        let bias = bias.try_into_primitive::<Flex>().unwrap();
        let found = crate::product::flex::multiplied_in_f32(lhs, rhs, Some(bias));
        let found = Tensor::<2>::from_primitive::<Flex>(found);
        assert_eq!(FloatDType::from(found.dtype()), dtype);
        assert_rounded(values(found), values(expected), dtype);
    }
}

/// An inner axis that is summed in parts, in f32.
#[test]
fn a_long_inner_axis_is_rounded_once() {
    let device = Device::flex();
    for (dtype, inner) in HALF.into_iter().flat_map(|dtype| [4096, 4097, 9000].map(|inner| (dtype, inner))) {
        let lhs = viewed(20, inner, 1, 1, dtype, &device);
        let rhs = viewed(inner, 40, 0, 2, dtype, &device);
        let bias = waves([40], 3, dtype, &device);
        let [wide_lhs, wide_rhs] = [lhs.clone(), rhs.clone()].map(|x| x.cast(FloatDType::F32));
        for bias in [None, Some(bias)] {
            let expected = wide_lhs.clone().matmul(wide_rhs.clone());
            let expected = match bias.clone() {
                Some(bias) => expected + bias.cast(FloatDType::F32).unsqueeze(),
                None => expected,
            };
            assert_rounded(values(linear(lhs.clone(), rhs.clone(), bias)), values(expected), dtype);
        }
    }
}

/// The same bits with any number of threads: products of large, long, flat and single rows, of batches, and gradients.
#[test]
fn the_number_of_threads_changes_no_bit() {
    let results = || {
        let device = Device::flex().autodiff();
        let mut all = Vec::new();
        for dtype in FLOATS {
            for (rows, inner, cols) in
                [(300, 130, 500), (65, 1500, 70), (9, 5000, 9), (700, 3, 700), (1, 900, 2100), (2100, 900, 1)]
            {
                let x = waves([rows, inner], 1, dtype, &device).require_grad();
                let weight = waves([inner, cols], 2, dtype, &device).require_grad();
                let bias = waves([cols], 3, dtype, &device).require_grad();
                let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
                let grads = weighed(y.clone()).backward();
                all.push(values(y));
                all.extend([x, weight].map(|leaf| values(leaf.grad(&grads).unwrap())));
                all.push(values(bias.grad(&grads).unwrap()));
            }
            let [lhs, rhs] = [[6, 60, 90], [1, 90, 80]].map(|shape| waves::<3>(shape, 4, dtype, &device));
            all.push(values(matmul(lhs.clone(), rhs)));
            all.push(values(matmul(lhs.clone(), lhs.transpose())));
        }
        all
    };
    let bits =
        |results: Vec<Vec<f32>>| -> Vec<u32> { results.into_iter().flatten().map(f32::to_bits).collect() };
    let in_pool = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        bits(pool.install(results))
    };
    let one = in_pool(1);
    for threads in [2, 3, 8] {
        assert!(in_pool(threads) == one, "{threads} threads");
    }
    assert!(bits(results()) == one, "outside a pool");
}

/// Runs the other tests of this module with the instructions of older processors.
#[cfg(target_arch = "x86_64")]
#[test]
fn processors_without_some_instructions_compute_the_same() {
    const SWITCH: &str = "GEMMKIT_REQUIRE_ISA";
    if std::env::var_os(SWITCH).is_some() {
        return;
    }
    let has = [
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("fma", is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
        ("scalar", true),
    ];
    for (instructions, _) in has.into_iter().filter(|(_, has)| *has) {
        let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
        let output = tests.arg("product::tests").env(SWITCH, instructions).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !text.contains(" 0 passed"), "{instructions}: {text}");
    }
}
