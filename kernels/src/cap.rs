//! Scores and logits that are bounded by a hyperbolic tangent, without branches or calls, so that the compiler vectorizes
//! a loop over them. They use no fused multiply-add, so each result is the same on all processors.

/// Returns `cap · tanh(x / cap)`, to 6e-7 of its value.
#[inline(always)]
pub(crate) fn capped(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

/// Returns the slope of [`capped`], given its value.
#[inline(always)]
pub(crate) fn slope_of_capped(value: f32, cap: f32) -> f32 {
    let tanh = value / cap;
    1.0 - tanh * tanh
}

/// Returns the hyperbolic tangent: a rational approximation, from XLA and Eigen. NaN stays NaN.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    // Beyond this, it is 1 in f32.
    const MOST: f32 = 7.905_311;
    let x = if x > MOST { MOST } else { x };
    let x = if x < -MOST { -MOST } else { x };
    let square = x * x;
    let mut above = -2.760_768_4e-16;
    for next in
        [2.000_188e-13, -8.604_672e-11, 5.122_297_3e-8, 1.485_722_35e-5, 6.372_619_5e-4, 4.893_524_6e-3]
    {
        above = above * square + next;
    }
    let mut below = 1.198_258_4e-6;
    for next in [1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3] {
        below = below * square + next;
    }
    x * above / below
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_slopes_are_those_of_the_equation() {
        for at in -4000..=4000 {
            let x = at as f32 / 50.0;
            let tanh = f64::from(x / 3.0).tanh();
            let (value, expected) = (capped(x, 3.0), 3.0 * tanh);
            assert!((f64::from(value) - expected).abs() <= 6e-7 * expected.abs(), "{x}: {value} {expected}");
            let (slope, expected) = (slope_of_capped(value, 3.0), 1.0 - tanh * tanh);
            assert!((f64::from(slope) - expected).abs() < 1e-6, "{x}: {slope} {expected}");
        }
        assert_eq!(capped(1e-20, 3.0), 1e-20);
        assert_eq!([f32::INFINITY, -1e30].map(|x| capped(x, 3.0)), [3.0, -3.0]);
        assert!(capped(f32::NAN, 3.0).is_nan());
    }
}
