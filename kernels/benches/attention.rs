//! Compares attention in tiles with the one composed of Burn's operations, causal, forward and with backward, and
//! prints a line of JSON for each.

#[path = "../../benches/beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::tensor::{Device, Distribution, FloatDType, Tensor, activation};
use firebrick_kernels::{Attending, Reads, attention, cast, matmul};
use serde_json::json;

/// `[batch, heads, length, size]` of a small GPT, of longer rows, and of a GPT-2.
const SHAPES: [[usize; 4]; 4] = [[8, 8, 256, 32], [2, 8, 1024, 32], [1, 8, 2048, 32], [4, 12, 512, 64]];

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

fn compare(shape: [usize; 4], dtype: FloatDType, backward: bool) {
    let [batch, heads, length, size] = shape;
    let device = if backward { Device::flex().autodiff() } else { Device::flex() };
    // As a linear layer stores them.
    let x = || {
        let x = Tensor::<4>::random([batch, length, heads, size], Distribution::Normal(0.0, 1.0), &device);
        let x = x.cast(dtype);
        if backward { x.require_grad() } else { x }
    };
    let leaves = [x(), x(), x()];
    let (reads, scale) = (Reads::causal(length), (size as f64).powf(-0.5));
    let how = Attending { reads: &reads, scale, cap: None, dropout: None };
    beside(
        json!({ "shape": shape, "dtype": format!("{dtype:?}"), "backward": backward, "gflop": flops(shape, backward) / 1e9 }),
        || {
            let [query, key, value] = leaves.clone().map(|leaf| leaf.swap_dims(1, 2));
            finish(attention(query, key, value, None, how), backward);
        },
        || {
            let [query, key, value] = leaves.clone().map(|leaf| leaf.swap_dims(1, 2));
            finish(composed(query, key, value, &reads, scale), backward);
        },
    );
}

fn main() {
    for shape in SHAPES {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            compare(shape, dtype, false);
            compare(shape, dtype, true);
        }
    }
}
