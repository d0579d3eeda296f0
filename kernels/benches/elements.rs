//! Compares element-wise operations with Burn's, in turns, forward and with backward, and prints a line of JSON for each:
//! GELU, residual sums, the same with dropout, and SwiGLU. The lines `epilogue` compare a GELU that reads its operand from
//! memory with one that reads it from the caches, where a product's epilogue would find it.
//!
//! `cargo bench -p firebrick-kernels --bench elements`

#[path = "../../benches/beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::nn::DropoutConfig;
use burn::tensor::{Device, Distribution, FloatDType, Tensor, activation};
use firebrick_kernels::{Draws, Gate, Gelu, Samples, Site, add, add_dropout, gated, gelu};
use serde_json::json;

/// A feed-forward layer's hidden state: 8 rows of 256 tokens, 4 times 256 wide.
const WIDE: [usize; 3] = [8, 256, 1024];
/// The state between the layers.
const NARROW: [usize; 3] = [8, 256, 256];

fn compare(dtype: FloatDType, backward: bool) {
    let device = Device::flex().autodiff();
    let about = |name| json!({ "operation": name, "dtype": format!("{dtype:?}"), "backward": backward });
    let draw = |shape| {
        let x = Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), &device);
        Tensor::<3>::cast(x, dtype).require_grad()
    };
    let [x, y] = [WIDE; 2].map(draw);
    beside(
        about("gelu"),
        || finish(gelu(x.clone(), Gelu::Exact), backward),
        || finish(activation::gelu(x.clone()), backward),
    );
    beside(
        about("gated"),
        || finish(gated(x.clone(), y.clone(), Gate::Silu), backward),
        || finish(activation::silu(x.clone()) * y.clone(), backward),
    );
    let [x, y] = [NARROW; 2].map(draw);
    beside(
        about("sum"),
        || finish(add(x.clone(), y.clone()), backward),
        || finish(x.clone() + y.clone(), backward),
    );
    let site =
        Site { draws: Draws { seed: 1, epoch: 0, first: 0 }, number: 0, samples: &Samples::Columns, from: 0 };
    let dropout = DropoutConfig::new(0.1).init();
    beside(
        about("sum with dropout"),
        || finish(add_dropout(x.clone(), y.clone(), 0.1, &[1], site), backward),
        || finish(x.clone() + dropout.forward(y.clone()), backward),
    );
}

/// What a GELU would save if a product computed it: reading its operand.
fn epilogue(dtype: FloatDType) {
    let device = Device::flex();
    let x = Tensor::<3>::random(WIDE, Distribution::Normal(0.0, 1.0), &device).cast(dtype);
    let parts = 32;
    let part = x.clone().narrow(1, 0, WIDE[1] / parts).mul_scalar(1.0);
    beside(
        json!({ "operation": "epilogue", "dtype": format!("{dtype:?}") }),
        || finish(gelu(x.clone(), Gelu::Exact), false),
        || (0..parts).for_each(|_| finish(gelu(part.clone(), Gelu::Exact), false)),
    );
}

fn main() {
    // Like the program: otherwise the system clears the pages of each result.
    firebrick_kernels::memory::keep_freed();
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        for backward in [false, true] {
            compare(dtype, backward);
        }
        epilogue(dtype);
    }
}
