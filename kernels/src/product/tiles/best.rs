//! The tiles that are fastest on this processor.

use burn::tensor::{bf16, f16};

use super::Product;
use super::instructions::Instructions;
#[cfg(target_arch = "x86_64")]
use super::{dots, fma};
use crate::flex::Lane;

/// The tiles of an element.
pub struct Tiles<T> {
    /// The rows and columns of one.
    pub size: [usize; 2],
    /// Writes a product by rows, on all cores or on this thread.
    pub compute: fn(&Product<'_, T>, bool),
}

impl<T: Lane> Tiles<T> {
    fn by<I: Instructions<T>>() -> Self {
        Self { size: [I::ROWS, I::COLUMNS], compute: |product, on_all| product.compute::<I>(on_all) }
    }
}

/// An element of half precision.
pub trait Half: Lane {
    /// Returns the tiles of these elements, if the processor has instructions with which they are faster than gemmkit.
    fn tiles() -> Option<Tiles<Self>>;
}

impl Half for bf16 {
    fn tiles() -> Option<Tiles<Self>> {
        #[cfg(target_arch = "x86_64")]
        return match x86::BEST.as_ref()? {
            x86::Set::Dots => Some(Tiles::by::<dots::Dots>()),
            x86::Set::Fma => Some(Tiles::by::<fma::Fma>()),
        };
        #[cfg(not(target_arch = "x86_64"))]
        None
    }
}

impl Half for f16 {
    fn tiles() -> Option<Tiles<Self>> {
        #[cfg(target_arch = "x86_64")]
        if let Some(x86::Set::Fma) = *x86::BEST {
            return Some(Tiles::by::<fma::Fma>());
        }
        None
    }
}

/// What the processor has.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::sync::LazyLock;

    /// Sets of instructions.
    pub enum Set {
        /// AVX512-BF16.
        Dots,
        /// AVX2 and FMA, without AVX-512, with which gemmkit is as fast in half precision as in f32.
        Fma,
    }

    /// The set of the fastest tiles. If the user names an instruction set for gemmkit, it is the set of that name.
    pub static BEST: LazyLock<Option<Set>> = LazyLock::new(|| match named().as_str() {
        "" if has_dots() => Some(Set::Dots),
        "" => (has_fma() && !is_x86_feature_detected!("avx512f")).then_some(Set::Fma),
        named => (named == "fma" && has_fma()).then_some(Set::Fma),
    });

    /// Whether the processor has AVX2 and FMA, and the user names no instruction set other than these.
    pub static FMA: LazyLock<bool> = LazyLock::new(|| has_fma() && matches!(named().as_str(), "" | "fma"));

    /// Returns the instruction set that the user names for gemmkit, if any.
    fn named() -> String {
        let named = std::env::var("GEMMKIT_REQUIRE_ISA").unwrap_or_default().trim().to_ascii_lowercase();
        if named == "auto" { String::new() } else { named }
    }

    fn has_fma() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    fn has_dots() -> bool {
        is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
    }
}

/// Returns whether the processor has AVX2 and FMA, and no AVX-512; or the user names FMA for gemmkit.
pub fn is_avx2_alone() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(*x86::BEST, Some(x86::Set::Fma));
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns whether the processor has AVX2 and FMA, with AVX-512 or without, and the user names no other instruction set for
/// gemmkit.
pub fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return *x86::FMA;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns whether the processor multiplies bf16 faster than f32.
pub fn has_dots() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(*x86::BEST, Some(x86::Set::Dots));
    #[cfg(not(target_arch = "x86_64"))]
    false
}
