//! Compares GELU with Burn's, forward and with backward, and prints a line of JSON for each.

#[path = "beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::tensor::{Device, FloatDType, Tensor, activation};
use firebrick::kernels::{Gelu, gelu};
use serde_json::json;

/// The shape in a feed-forward layer: 16 rows of 64 tokens, 4 times 384 wide.
const SHAPE: [usize; 3] = [16, 64, 1536];

fn compare(form: Gelu, dtype: FloatDType, backward: bool) {
    let device = Device::flex().autodiff();
    let x = Tensor::<3>::random(SHAPE, burn::tensor::Distribution::Normal(0.0, 1.0), &device);
    let x = x.cast(dtype).require_grad();
    let of_burn = match form {
        Gelu::Exact => activation::gelu,
        Gelu::Tanh => activation::gelu_approximate,
    };
    beside(
        json!({ "form": format!("{form:?}"), "dtype": format!("{dtype:?}"), "backward": backward }),
        || finish(gelu(x.clone(), form), backward),
        || finish(of_burn(x.clone()), backward),
    );
}

fn main() {
    for form in [Gelu::Exact, Gelu::Tanh] {
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            compare(form, dtype, false);
            compare(form, dtype, true);
        }
    }
}
