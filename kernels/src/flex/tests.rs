use burn::tensor::{bf16, f16};
use rayon::prelude::*;

use super::*;

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan()
}

/// Every 16-bit number, and f32 numbers around every rounding boundary.
#[test]
fn lanes_convert_as_the_crate_half_does() {
    let near = [0, 1, 0x7FF, 0x800, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001];
    for bits in 0..=u16::MAX {
        let (short, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        assert!(same(short.wide(), short.to_f32()), "{bits:x}");
        assert!(same(brain.wide(), brain.to_f32()), "{bits:x}");
        for low in near {
            let x = f32::from_bits(u32::from(bits) << 16 | low);
            assert!(same(<f16 as Lane>::narrow(x).to_f32(), f16::from_f32(x).to_f32()), "{x}");
            assert!(same(<bf16 as Lane>::narrow(x).to_f32(), bf16::from_f32(x).to_f32()), "{x}");
        }
    }
}

#[test]
fn sums_cover_each_element_once() {
    for length in [0, 1, 31, 32, 33, 64, 95, 1000] {
        let x: Vec<f32> = (0..length).map(|at| at as f32).collect();
        assert_eq!(sum(&x), (length * length.max(1) - length) as f32 / 2.0, "{length}");
        assert_eq!(dot(&x, &vec![2.0; length]), 2.0 * sum(&x));
    }
}

#[test]
fn a_buffer_holds_what_was_written() {
    for (length, size) in [(0, 4), (7, 3), (9, 3), (5, 0)] {
        let mut buffer = Buffer::<f32>::new(length);
        buffer.parts(size).enumerate().for_each(|(at, mut part)| {
            let first = at * size.max(1);
            part.pieces(1).enumerate().for_each(|(at, fresh)| {
                fresh.write(1, |_| (first + at) as f32);
            });
        });
        let expected: Vec<f32> = (0..length).map(|at| at as f32).collect();
        assert_eq!(buffer.finish(), expected);
    }
}

#[test]
#[should_panic(expected = "each element of a buffer must be written")]
fn a_gap_in_a_buffer_is_found() {
    let mut buffer = Buffer::<f32>::new(4);
    // The first half is written twice, in two rounds.
    for _ in 0..2 {
        buffer.parts(2).take(1).for_each(|mut part| {
            for _ in 0..2 {
                part.pieces(2).for_each(|fresh| {
                    fresh.write(2, |_| 1.0);
                });
            }
        });
    }
    buffer.finish();
}
