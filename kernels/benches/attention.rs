//! Compares attention in tiles with the one composed of Burn's operations, causal, forward and with backward, and
//! prints a line of JSON for each.
//!
//! With `BURN_DEVICE=cuda`, in a build with the feature `cuda`, it measures attentions of GPT-2 and of longer rows there:
//! `cargo bench -p firebrick-kernels --features cuda --bench attention`.

#[path = "../../benches/beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::tensor::{Device, Distribution, FloatDType, Tensor, activation};
use firebrick_kernels::{Attending, Reads, attention, cast, matmul};
use serde_json::json;

/// `[batch, heads, length, size]` of a small GPT, of longer rows, and of a GPT-2.
const SHAPES: [[usize; 4]; 4] = [[8, 8, 256, 32], [2, 8, 1024, 32], [1, 8, 2048, 32], [4, 12, 512, 64]];

/// The same for a GPU: a GPT-2, longer rows, and rows that no tile divides.
const OF_GPU: [[usize; 4]; 3] = [[8, 12, 1024, 64], [1, 16, 4096, 128], [3, 12, 1000, 64]];

fn composed(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, reads: &Reads, scale: f64) -> Tensor<4> {
    let (dtype, masked) = (FloatDType::from(query.dtype()), reads.masked(&query.device()));
    let scores = cast(matmul(query * scale, key.transpose()), FloatDType::F32);
    let scores = scores.mask_fill(masked, f32::NEG_INFINITY);
    matmul(cast(activation::softmax(scores, 3), dtype), value)
}

/// Operations of the products: two forward, and five backward, of the half of the scores that is read.
fn flops([batch, heads, length, size]: [usize; 4], backward: bool) -> f64 {
    let product = (batch * heads * length * (length + 1) * size) as f64;
    product * if backward { 7.0 } else { 2.0 }
}

/// Compares `repeated` of them, so many that a host's wait for a device does not count.
fn compare(device: &Device, repeated: usize, shape: [usize; 4], dtype: FloatDType, backward: bool) {
    let [batch, heads, length, size] = shape;
    let device = if backward { device.clone().autodiff() } else { device.clone() };
    // As a linear layer stores them.
    let x = || {
        let x = Tensor::<4>::random([batch, length, heads, size], Distribution::Normal(0.0, 1.0), &device);
        let x = x.cast(dtype);
        if backward { x.require_grad() } else { x }
    };
    let leaves = [x(), x(), x()];
    let (reads, scale) = (Reads::causal(length), (size as f64).powf(-0.5));
    let how = Attending { reads: &reads, scale, cap: None, dropout: None };
    let timed = |attend: &dyn Fn([Tensor<4>; 3]) -> Tensor<4>| {
        let attended = || attend(leaves.clone().map(|leaf| leaf.swap_dims(1, 2)));
        for _ in 1..repeated {
            match backward {
                true => drop(attended().backward()),
                false => drop(attended()),
            }
        }
        finish(attended(), backward);
    };
    let gigaflops = flops(shape, backward) * repeated as f64 / 1e9;
    beside(
        json!({
            "shape": shape,
            "dtype": format!("{dtype:?}"),
            "backward": backward,
            "repeated": repeated,
            "gflop": gigaflops,
        }),
        || timed(&|[query, key, value]| attention(query, key, value, None, how)),
        || timed(&|[query, key, value]| composed(query, key, value, &reads, scale)),
    );
}

fn main() {
    let device = Device::default();
    let (shapes, dtypes, repeated) = match device == Device::flex() {
        true => (&SHAPES[..], [FloatDType::F32, FloatDType::BF16], 1),
        false => (&OF_GPU[..], [FloatDType::BF16, FloatDType::F16], 10),
    };
    for shape in shapes {
        for dtype in dtypes.into_iter().filter(|dtype| device.supports_dtype(*dtype)) {
            compare(&device, repeated, *shape, dtype, false);
            compare(&device, repeated, *shape, dtype, true);
        }
    }
}
