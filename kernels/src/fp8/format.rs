//! The two formats, and the rounding of a number.

/// A format of 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// 4 bits of exponent, 3 of mantissa; the largest number is 448. Without infinities: OCP's E4M3, `float8_e4m3fn`.
    E4m3,
    /// 5 bits of exponent, 2 of mantissa; the largest number is 57,344: `float8_e5m2`.
    E5m2,
}

/// The largest exponent of a scale: the smallest step is then far above the smallest normal f32, which devices may flush.
pub(super) const MOST_SCALE: u32 = 100;

/// Bits of an f32 that is not finite are at least these.
pub(super) const INFINITE: u32 = 0x7F80_0000;

/// The mantissa of 1.75, by which both formats' largest number is above a power of two.
pub(super) const TOP: u32 = 0x60_0000;

impl Fp8 {
    /// Bits of the mantissa that are written.
    pub(super) fn mantissa(self) -> u32 {
        match self {
            Self::E4m3 => 3,
            Self::E5m2 => 2,
        }
    }

    /// The exponent of the largest number, 1.75 times its power of two.
    pub(super) fn largest(self) -> u32 {
        match self {
            Self::E4m3 => 8,
            Self::E5m2 => 15,
        }
    }

    /// Minus the exponent of the smallest normal number, which is the bias less one.
    pub(super) fn smallest(self) -> u32 {
        match self {
            Self::E4m3 => 6,
            Self::E5m2 => 14,
        }
    }
}

/// Rounds the numbers of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounding {
    mantissa: u32,
    /// The exponent of the smallest number that is normal under the tensor's scale, with f32's bias.
    least: u32,
    /// 1, or NaN if an element is not finite.
    sound: f32,
}

impl Rounding {
    /// `most` is the largest of the bits of the tensor's magnitudes in f32.
    pub fn of(most: u32, format: Fp8) -> Self {
        let sound = if most < INFINITE { 1.0 } else { f32::NAN };
        // The exponent of the scale is `largest + 127 - exponent`, where the exponent has f32's bias.
        let exponent = (most.min(INFINITE - 1) >> 23) + u32::from(most & 0x7F_FFFF > TOP);
        let bounded = exponent.max(format.largest() + 127 - MOST_SCALE);
        Self { mantissa: format.mantissa(), least: bounded - format.largest() - format.smallest(), sound }
    }

    /// Rounds to the nearest, ties to even.
    #[inline(always)]
    pub fn round(self, x: f32) -> f32 {
        let bits = x.to_bits() & 0x7FFF_FFFF;
        let step = (bits >> 23).max(self.least) - self.mantissa;
        let steps = f32::from_bits(bits) * f32::from_bits((254 - step) << 23);
        // A sum with 2²³ has no bits below 1.
        const WHOLE: f32 = 8_388_608.0;
        let rounded = ((steps + WHOLE) - WHOLE) * f32::from_bits(step << 23);
        rounded.copysign(x) * self.sound
    }
}
