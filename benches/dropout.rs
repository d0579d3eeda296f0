//! Times dropout beside Burn's, forward and with backward, and prints a line of JSON for each.

use std::time::Instant;

use burn::nn::DropoutConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::strategies::{Dropout, Pass};
use serde_json::json;

/// Measurements of each; both take turns.
const ROUNDS: usize = 31;

const PROB: f64 = 0.1;

fn seconds(run: impl FnOnce()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn compare<const D: usize>(shape: [usize; D], positions: &[usize], dtype: FloatDType, backward: bool) {
    let device = Device::flex().autodiff();
    let x = Tensor::<D>::ones(shape, &device).cast(dtype).require_grad();
    let pass = Pass::train(&device);
    let (dropout, of_burn) = (Dropout::new(PROB), DropoutConfig::new(PROB).init());
    let finish = |y: Tensor<D>| {
        if backward {
            let _ = y.backward();
        }
        let _ = device.sync();
    };
    let (mut ours, mut burns) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(seconds(|| finish(dropout.forward_along(x.clone(), positions, &pass))));
        burns.push(seconds(|| finish(of_burn.forward(x.clone()))));
    }
    let (ours, burns) = (median(ours), median(burns));
    let timed = json!({
        "shape": shape.to_vec(),
        "dtype": format!("{dtype:?}"),
        "backward": backward,
        "seconds": ours,
        "seconds_burn": burns,
        "ratio_to_burn": ours / burns,
    });
    println!("{timed}");
}

fn main() {
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        for backward in [false, true] {
            compare([8, 256, 256], &[1], dtype, backward);
            compare([8, 4, 256, 256], &[2, 3], dtype, backward);
        }
    }
}
