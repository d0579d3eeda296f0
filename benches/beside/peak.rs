//! The multiply-adds in f32 that this processor's cores compute at most, in a loop that reads no memory: what products of
//! matrices are measured against. `benches/beside_torch.py` compiles it by itself; the argument is the number of threads.
//!
//! It prints a line of JSON: the widest vector instructions, and their GFLOP/s on all threads; 0 if it has no loop for them.

/// Computes for so many rounds, and returns the number of multiply-adds.
type Loop = fn(usize) -> usize;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::Loop;

    /// Sums that do not wait for each other: more than a core has multiply-adds in flight.
    const SUMS: usize = 12;

    macro_rules! looped {
        ($name:ident, $features:literal, $lanes:literal, $all:ident, $add:ident, $vector:ty) => {
            #[target_feature(enable = $features)]
            fn $name(rounds: usize) -> usize {
                let mut sums = [$all(1.0); SUMS];
                let (by, plus) = (black_box($all(0.999)), black_box($all(0.001)));
                for _ in 0..rounds {
                    sums.iter_mut().for_each(|sum| *sum = $add(*sum, by, plus));
                }
                black_box::<[$vector; SUMS]>(sums);
                rounds * SUMS * $lanes
            }
        };
    }

    looped!(avx512, "avx512f", 16, _mm512_set1_ps, _mm512_fmadd_ps, __m512);
    looped!(avx2, "avx2,fma", 8, _mm256_set1_ps, _mm256_fmadd_ps, __m256);

    /// The name of the widest instructions, and the loop by them.
    pub fn widest() -> (&'static str, Option<Loop>) {
        if is_x86_feature_detected!("avx512f") {
            let name = if is_x86_feature_detected!("avx512bf16") { "AVX512-BF16" } else { "AVX-512" };
            // SAFETY: the processor has the instructions.
            return (name, Some(|rounds| unsafe { avx512(rounds) }));
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instructions.
            return ("AVX2", Some(|rounds| unsafe { avx2(rounds) }));
        }
        ("SSE2", None)
    }
}

/// The most operations a second of some tries: two for each multiply-add.
fn speed(computed: Loop) -> f64 {
    computed(1 << 20);
    let tries = (0..5).map(|_| {
        let began = std::time::Instant::now();
        2.0 * computed(1 << 23) as f64 / began.elapsed().as_secs_f64()
    });
    tries.fold(0.0, f64::max)
}

fn main() {
    let threads = std::env::args().nth(1).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    #[cfg(target_arch = "x86_64")]
    let (name, computed) = x86::widest();
    #[cfg(not(target_arch = "x86_64"))]
    let (name, computed) = (std::env::consts::ARCH, None);
    let on_all = |computed: Loop| -> f64 {
        let threads: Vec<_> = (0..threads).map(|_| std::thread::spawn(move || speed(computed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    };
    println!("{{\"instructions\": \"{name}\", \"gflops\": {:.1}}}", 1e-9 * computed.map_or(0.0, on_all));
}
