//! Compares two implementations, timed in turns.

use std::time::Instant;

use burn::tensor::Tensor;
use serde_json::{Value, json};

/// Measurements of each.
const ROUNDS: usize = 31;

/// Prints a line of JSON with what was timed, the median seconds of each side, and their ratio.
pub fn beside(about: Value, ours: impl Fn(), burns: impl Fn()) {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        seconds[0].push(timed(&ours));
        seconds[1].push(timed(&burns));
    }
    let [ours, burns] = seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    });
    let mut timed = about;
    timed["seconds"] = json!(ours);
    timed["seconds_burn"] = json!(burns);
    timed["ratio_to_burn"] = json!(ours / burns);
    println!("{timed}");
}

/// Waits until the device has computed a tensor, and its gradients if `backward`.
pub fn finish<const D: usize>(y: Tensor<D>, backward: bool) {
    let device = y.device();
    if backward {
        let _ = y.backward();
    }
    let _ = device.sync();
}

fn timed(run: impl Fn()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}
