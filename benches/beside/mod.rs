//! Two ways to the same, timed in turns.

use std::time::Instant;

use burn::tensor::Tensor;

/// Measurements of each.
const ROUNDS: usize = 31;

/// The median seconds of each.
pub fn beside(ours: impl Fn(), burns: impl Fn()) -> [f64; 2] {
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        seconds[0].push(timed(&ours));
        seconds[1].push(timed(&burns));
    }
    seconds.map(|mut seconds| {
        seconds.sort_by(f64::total_cmp);
        seconds[seconds.len() / 2]
    })
}

/// Computes a tensor to its end, with the gradients of it where wanted.
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
