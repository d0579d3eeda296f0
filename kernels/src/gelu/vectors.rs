//! Functions of one f32 without branches or calls, so that the compiler vectorizes a loop over them for the processor's
//! vector width. They use no fused multiply-add, so each result is the same on all processors.

use super::{CUBE, DENSITY, TANH_SCALE};

/// Clamps x to a bound beyond which Φ is 0 or 1 in f32. NaN stays NaN; `f32::clamp` also does this, but with a call.
#[inline(always)]
fn within(x: f32, most: f32) -> f32 {
    let x = if x > most { most } else { x };
    if x < -most { -most } else { x }
}

/// Returns the error function, to 1e-6 of its value: a rational approximation in x², from XLA and Eigen.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let x = within(x, 3.832_507);
    let y = x * x;
    let mut above = -2.726_142_3e-10;
    for next in
        [2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_598e-3, -1.609_603_3e-2]
    {
        above = above * y + next;
    }
    let mut below = -1.456_607_2e-5;
    for next in [-2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2] {
        below = below * y + next;
    }
    x * above / below
}

/// Returns e to the power of x, for x from -87 to 88, to 2e-7 of its value: 2ⁿ times Cephes' polynomial of the
/// remainder.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding this removes the fraction of a number: its whole part is then in the lowest bits.
    const ROUNDS: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUNDS;
    let whole = rounded - ROUNDS;
    // ln 2 in two parts; the first has so few digits that the product is exact.
    let rest = x - whole * (355.0 / 512.0) + whole * 2.121_944_4e-4;
    let mut series = 1.987_569_1e-4;
    for next in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        series = series * rest + next;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUNDS.to_bits()).wrapping_add(127) << 23;
    (series * rest * rest + rest + 1.0) * f32::from_bits(exponent)
}

/// Returns the hyperbolic tangent.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * within(x, 10.0)) + 1.0)
}

/// Returns the exact function.
#[inline(always)]
pub fn exact(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Returns the derivative of the exact function.
#[inline(always)]
pub fn exact_slope(x: f32) -> f32 {
    let near = within(x, 12.0);
    let density = DENSITY as f32 * exp(-0.5 * near * near);
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)) + near * density
}

/// Returns the approximation.
#[inline(always)]
pub fn approximate(x: f32) -> f32 {
    0.5 * x * (1.0 + tanh(inner(x)))
}

/// Returns the derivative of the approximation.
#[inline(always)]
pub fn approximate_slope(x: f32) -> f32 {
    // Beyond this, the hyperbolic tangent is 1 in f32, and its slope 0.
    let x = within(x, 12.0);
    let tanh = tanh(inner(x));
    let density = (1.0 - tanh * tanh) * (0.5 * TANH_SCALE as f32) * (1.0 + 3.0 * CUBE as f32 * x * x);
    0.5 * (1.0 + tanh) + x * density
}

#[inline(always)]
fn inner(x: f32) -> f32 {
    TANH_SCALE as f32 * x * (1.0 + CUBE as f32 * x * x)
}

/// Returns x · σ(x) and its derivative.
#[inline(always)]
pub fn silu(x: f32) -> [f32; 2] {
    let share = 1.0 / (1.0 + exp(-within(x, 87.0)));
    [x * share, share + x * share * (1.0 - share)]
}
