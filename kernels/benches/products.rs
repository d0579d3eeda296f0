//! Compares products and affine maps with Burn's, in turns, and prints a line of JSON for each: the layers of a GPT of
//! width 256 (or of the width given as an argument), forward, and their two gradients. The lines `packed once` compare one
//! product of twice the rows, which packs its weight once, with two products.
//!
//! `cargo bench -p firebrick-kernels --bench products -- 768`; `RAYON_NUM_THREADS=1` measures one core.
//!
//! With `BURN_DEVICE=cuda`, in a build with the feature `cuda`, it measures the products of GPT-2 (or of that width) on 8,192
//! tokens there: `cargo bench -p firebrick-kernels --features cuda --bench products`.

#[path = "../../benches/beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::tensor::{Device, FloatDType, Tensor, TensorData, module};
use firebrick_kernels::{linear, matmul};
use serde_json::json;

/// Rows of activations.
const ROWS: usize = 2048;

fn waves(shape: [usize; 2], dtype: FloatDType, device: &Device) -> Tensor<2> {
    let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::<2>::from_data(TensorData::new(values, shape), device).cast(dtype)
}

fn products(from: usize, to: usize, dtype: FloatDType) {
    let device = Device::flex();
    let [x, weight, grad] = [[ROWS, from], [from, to], [ROWS, to]].map(|shape| waves(shape, dtype, &device));
    for (name, lhs, rhs) in [
        ("x . w", x.clone(), weight.clone()),
        ("g . wT", grad.clone(), weight.clone().transpose()),
        ("xT . g", x.clone().transpose(), grad.clone()),
    ] {
        let gigaflops = 2e-9 * (ROWS * from * to) as f64;
        beside(
            json!({ "product": name, "in": from, "out": to, "dtype": format!("{dtype:?}"), "gflop": gigaflops }),
            || finish(matmul(lhs.clone(), rhs.clone()), false),
            || finish(lhs.clone().matmul(rhs.clone()), false),
        );
    }
}

fn layers(from: usize, to: usize, dtype: FloatDType) {
    let device = Device::flex().autodiff();
    let [x, weight] = [[ROWS, from], [from, to]].map(|shape| waves(shape, dtype, &device).require_grad());
    let bias = waves([1, to], dtype, &device).reshape([to]).require_grad();
    beside(
        json!({ "layer": "with backward", "in": from, "out": to, "dtype": format!("{dtype:?}") }),
        || finish(linear(x.clone(), weight.clone(), Some(bias.clone())), true),
        || finish(module::linear(x.clone(), weight.clone(), Some(bias.clone())), true),
    );
}

/// What a weight would save if it stayed packed from one product to the next.
fn packed_once(from: usize, to: usize, dtype: FloatDType) {
    let device = Device::flex();
    let [twice, x, weight] =
        [[2 * ROWS, from], [ROWS, from], [from, to]].map(|shape| waves(shape, dtype, &device));
    beside(
        json!({ "product": "packed once", "in": from, "out": to, "dtype": format!("{dtype:?}") }),
        || finish(matmul(twice.clone(), weight.clone()), false),
        || (0..2).for_each(|_| finish(matmul(x.clone(), weight.clone()), false)),
    );
}

/// Products of a layer and of the head on a GPU, forward and the two of its gradients.
fn on_device(device: &Device, width: usize) {
    /// So many that the host's wait for them does not count.
    const REPEATED: usize = 20;
    const TOKENS: usize = 8192;

    match firebrick_kernels::product_library(device) {
        Some(Ok(library)) => eprintln!("ours are computed by {library}"),
        Some(Err(why)) => eprintln!("both are CubeCL's: {why}"),
        None => eprintln!("both are CubeCL's"),
    }
    for dtype in [FloatDType::BF16, FloatDType::F16, FloatDType::F32] {
        if !device.supports_dtype(dtype) {
            continue;
        }
        // A chunk of the head's logits has fewer rows.
        let layers = [(3 * width, TOKENS), (width, TOKENS), (4 * width, TOKENS), (50_304, TOKENS / 4)];
        for (to, rows) in layers {
            let [x, weight, grad] =
                [[rows, width], [width, to], [rows, to]].map(|shape| waves(shape, dtype, device));
            for (name, lhs, rhs) in [
                ("x . w", x.clone(), weight.clone()),
                ("g . wT", grad.clone(), weight.clone().transpose()),
                ("xT . g", x.clone().transpose(), grad.clone()),
            ] {
                let repeated = |product: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
                    for _ in 1..REPEATED {
                        drop(product(lhs.clone(), rhs.clone()));
                    }
                    finish(product(lhs.clone(), rhs.clone()), false);
                };
                let gigaflops = 2e-9 * (REPEATED * rows * width * to) as f64;
                let dtype = format!("{dtype:?}");
                beside(
                    json!({ "product": name, "rows": rows, "in": width, "out": to, "dtype": dtype, "gflop": gigaflops }),
                    || repeated(matmul),
                    || repeated(Tensor::matmul),
                );
            }
        }
    }
}

fn main() {
    // Like the program: otherwise the system clears the pages of each product.
    firebrick_kernels::memory::keep_freed();
    let width = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let device = Device::default();
    if device != Device::flex() {
        return on_device(&device, width.unwrap_or(768));
    }
    let width = width.unwrap_or(256);
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        for (from, to) in [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] {
            products(from, to, dtype);
            layers(from, to, dtype);
            packed_once(from, to, dtype);
        }
    }
}
