//! Two ways to the same, timed in turns.

use std::time::Instant;

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

fn timed(run: impl Fn()) -> f64 {
    let started = Instant::now();
    run();
    started.elapsed().as_secs_f64()
}
