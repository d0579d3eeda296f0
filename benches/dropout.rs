//! Compares dropout with Burn's, forward and with backward, and prints a line of JSON for each.

#[path = "beside/mod.rs"]
mod beside;

use beside::{beside, finish};
use burn::nn::DropoutConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::strategies::{Dropout, Pass};
use serde_json::json;

const PROB: f64 = 0.1;

fn compare<const D: usize>(shape: [usize; D], positions: &[usize], dtype: FloatDType, backward: bool) {
    let device = Device::flex().autodiff();
    let x = Tensor::<D>::ones(shape, &device).cast(dtype).require_grad();
    let pass = Pass::train(&device);
    let (dropout, of_burn) = (Dropout::new(PROB), DropoutConfig::new(PROB).init());
    beside(
        json!({ "shape": shape.to_vec(), "dtype": format!("{dtype:?}"), "backward": backward }),
        || finish(dropout.forward_along(x.clone(), positions, &pass), backward),
        || finish(of_burn.forward(x.clone()), backward),
    );
}

fn main() {
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        for backward in [false, true] {
            compare([8, 256, 256], &[1], dtype, backward);
            compare([8, 4, 256, 256], &[2, 3], dtype, backward);
        }
    }
}
