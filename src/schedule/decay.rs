//! Decay shapes that fall from 1 at `progress` 0 to 0 at `progress` 1.

use std::f64::consts::PI;

/// Returns the progress `done` updates after the warmup, of `rest`: 1 at the end and after it.
pub(super) fn progress(done: u64, rest: u64) -> f64 {
    (done as f64 / rest as f64).min(1.0)
}

/// Returns the rate at a share of the way from the lowest to the highest.
pub(super) fn between(min_lr: f64, lr: f64, share: f64) -> f64 {
    min_lr + (lr - min_lr) * share
}

/// `1 - p`.
pub(super) fn linear(progress: f64) -> f64 {
    1.0 - progress
}

/// `(1 + cos πp) / 2`.
pub(super) fn cosine(progress: f64) -> f64 {
    (1.0 + (PI * progress).cos()) / 2.0
}

/// `1 - √p`.
pub(super) fn one_minus_sqrt(progress: f64) -> f64 {
    1.0 - progress.sqrt()
}

/// Returns the progress within the current one of `cycles` equal cycles in `rest` updates; 1 at the end of the last.
/// Integer arithmetic finds the first update of a cycle, which `cycles · p mod 1` in floats may miss.
pub(super) fn in_cycle(done: u64, rest: u64, cycles: u64) -> f64 {
    if done >= rest {
        return 1.0;
    }
    let within = u128::from(done) * u128::from(cycles) % u128::from(rest);
    within as f64 / rest as f64
}

/// `√(τ / (t + τ))`, `t` updates after the warmup. It approaches 0 but never reaches it. `τ` defaults to the length of
/// the warmup, or to 10000 without one.
pub(super) fn inverse_sqrt(done: u64, timescale: Option<u64>, warmup: u64) -> f64 {
    let timescale = timescale.unwrap_or(if warmup == 0 { 10_000 } else { warmup }) as f64;
    (timescale / (done as f64 + timescale)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_fall_from_one_to_zero() {
        for shape in [linear, cosine, one_minus_sqrt] {
            assert_eq!([shape(0.0), shape(1.0)], [1.0, 0.0]);
            let half = shape(0.5);
            assert!(0.2 < half && half < 0.6, "{half}");
        }
    }

    #[test]
    fn each_cycle_starts_at_the_first_update_of_it() {
        // 49 times the float nearest to 1/49 is less than 1.
        for cycles in 1..=100 {
            let starts = (0..cycles * 7).filter(|done| in_cycle(*done, cycles * 7, cycles) == 0.0);
            assert!(starts.eq((0..cycles).map(|cycle| cycle * 7)), "{cycles}");
        }
        assert_eq!(in_cycle(10, 10, 3), 1.0);
        assert_eq!(in_cycle(u64::MAX - 1, u64::MAX, u64::MAX), 0.0);
    }

    #[test]
    fn an_inverse_root_halves_at_three_times_its_scale() {
        assert_eq!(inverse_sqrt(30, Some(10), 99), 0.5);
        assert_eq!(inverse_sqrt(60, None, 20), 0.5);
        assert_eq!(inverse_sqrt(30_000, None, 0), 0.5);
    }
}
