//! Host and device agree, and the mask looks like independent draws.

use proptest::prelude::*;

use super::{DropMask, *};
use crate::Ragged;

fn on_host(places: &Places, threshold: u32) -> Vec<bool> {
    DropMask::new(places, threshold, 1.0).dropped()
}

const HALF: u32 = 1 << 31;

fn axis(length: usize) -> Axis<'static> {
    Axis { length, from: 0, samples: None }
}

/// Returns the mask of the rows starting at `first`, `[rows, positions, features]`.
fn mask(draws: Draws, site: u64, shape: [usize; 3], threshold: u32) -> Vec<bool> {
    let [rows, positions, features] = shape;
    on_host(&Places::new(&draws, site, rows, vec![axis(positions), axis(features)]), threshold)
}

/// Returns the deviation of two masks' agreement from one half, in standard deviations.
fn deviations(a: &[bool], b: &[bool]) -> f64 {
    assert_eq!(a.len(), b.len());
    let agreed = a.iter().zip(b).filter(|(a, b)| a == b).count() as f64;
    let n = a.len() as f64;
    (agreed - n / 2.0) / (n.sqrt() / 2.0)
}

#[test]
fn the_dropped_share_is_p() {
    for (p, seed) in [0.001_f64, 0.1, 0.25, 0.5, 0.9].into_iter().zip(1..) {
        let threshold = (p * 4_294_967_296.0) as u32;
        let draws = Draws { seed, ..Draws::default() };
        for shape in [[10, 100, 1000], [1000, 100, 10], [10, 1000, 100], [1, 1, 1_000_000]] {
            let mask = mask(draws, 5, shape, threshold);
            let dropped = mask.iter().filter(|&&dropped| dropped).count() as f64;
            let (expected, sigma) = (1e6 * p, (1e6 * p * (1.0 - p)).sqrt());
            assert!((dropped - expected).abs() < 3.0 * sigma, "{p} {shape:?}: {dropped}");
        }
    }
}

/// Neighbours along each axis, and masks with similar counters, agree as often as coin tosses.
#[test]
fn neighbours_are_independent() {
    let draws = Draws { seed: 1337, epoch: 0, first: 0 };
    let shape @ [rows, positions, features] = [16, 256, 256];
    let whole = mask(draws, 0, shape, HALF);
    for step in [1, 2, 3, 7, 8, 16, 64, 128, 255] {
        // Along each axis: elements that are `step` apart, without those that wrap around.
        let apart = |stride: usize, length: usize| {
            let first = |at: &usize| at / stride % length + step < length;
            let (a, b): (Vec<_>, Vec<_>) = (0..rows * positions * features)
                .filter(first)
                .map(|at| (whole[at], whole[at + step * stride]))
                .unzip();
            (!a.is_empty()).then(|| deviations(&a, &b))
        };
        for (stride, length) in [(1, features), (features, positions), (features * positions, rows)] {
            let found = apart(stride, length).unwrap_or(0.0);
            assert!(found.abs() < 4.5, "{step} along {length}: {found}");
        }
        let step = step as u64;
        for other in [
            mask(draws, step, shape, HALF),
            mask(Draws { epoch: step, ..draws }, 0, shape, HALF),
            mask(Draws { seed: draws.seed + step, ..draws }, 0, shape, HALF),
            mask(Draws { first: 16 * step, ..draws }, 0, shape, HALF),
        ] {
            let found = deviations(&whole, &other);
            assert!(found.abs() < 4.5, "counters {step} apart: {found}");
        }
    }
}

/// Pairs of neighbours, as two bits, are uniform: χ² over blocks of 8 elements as bytes.
#[test]
fn runs_of_eight_are_uniform() {
    let draws = Draws { seed: 9, epoch: 1, first: 4 };
    let mask = mask(draws, 3, [16, 512, 512], HALF);
    let mut counts = [0_u32; 256];
    for eight in mask.chunks_exact(8) {
        counts[eight.iter().fold(0, |byte, &bit| byte << 1 | usize::from(bit))] += 1;
    }
    let expected = mask.len() as f64 / 8.0 / 256.0;
    let chi_squared: f64 = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    // 255 degrees of freedom: mean 255, deviation 22.6.
    assert!((chi_squared - 255.0).abs() < 4.5 * 22.6, "{chi_squared}");
}

/// Two equal lines among 300,000 lines of 64 coins have a probability of 1 in 400 million. With a single 32-bit word
/// per line, about eight pairs of rows would share one.
#[test]
fn no_two_positions_are_dropped_alike() {
    let mask = mask(Draws::default(), 0, [150_000, 2, 64], HALF);
    let mut lines: Vec<&[bool]> = mask.chunks_exact(64).collect();
    lines.sort_unstable();
    assert!(lines.windows(2).all(|pair| pair[0] != pair[1]));
}

fn on_device<const D: usize>(places: &Places, threshold: u32) -> Vec<bool> {
    places.on_device::<D>(threshold, &Device::flex()).into_data().iter::<bool>().collect()
}

proptest! {
    /// The tensor operations compute the host's mask bit for bit.
    #[test]
    fn the_device_agrees_with_the_host(
        lengths in prop::collection::vec(1_usize..12, 1..5),
        rows in 1_usize..5,
        starts in prop::collection::vec(0_usize..9, 5),
        counted in prop::collection::vec(any::<bool>(), 4),
        (seed, epoch, first, site) in any::<(u64, u64, u64, u64)>(),
        threshold in prop_oneof![any::<u32>(), Just(u32::MAX), Just(1)],
    ) {
        let samples = Samples::Starting(starts.into());
        let axes = lengths.iter().zip(&counted).map(|(&length, &counted)| {
            Axis { length, from: 0, samples: counted.then_some(&samples) }
        });
        let places = Places::new(&Draws { seed, epoch, first }, site, rows, axes.collect());
        let found = match lengths.len() {
            1 => on_device::<2>(&places, threshold),
            2 => on_device::<3>(&places, threshold),
            3 => on_device::<4>(&places, threshold),
            _ => on_device::<5>(&places, threshold),
        };
        prop_assert_eq!(found, on_host(&places, threshold));
    }

    /// Rows that stand one after the other are dropped as in rows of their own, on the host and on the device.
    #[test]
    fn ragged_rows_are_dropped_as_alone(
        lengths in prop::collection::vec(0_usize..6, 1..6),
        further in prop::collection::vec(1_usize..6, 1..3),
        (seed, first) in any::<(u64, u64)>(),
    ) {
        let draws = Draws { seed, epoch: 1, first };
        let axes = |length, samples| -> Vec<Axis> {
            let further = further.iter().map(|&length| axis(length));
            std::iter::once(Axis { length, from: 0, samples }).chain(further).collect()
        };
        let rows = Ragged::new(lengths.iter().copied());
        let samples = Samples::Ragged(rows.clone());
        prop_assume!(rows.total() > 0);
        let places = Places::new(&draws, 4, rows.len(), axes(rows.total(), Some(&samples)));
        let alone = lengths.iter().enumerate().flat_map(|(row, &length)| {
            let draws = Draws { first: first.wrapping_add(row as u64), ..draws };
            on_host(&Places::new(&draws, 4, 1, axes(length, None)), HALF)
        });
        let found = on_host(&places, HALF);
        prop_assert_eq!(&found, &alone.collect::<Vec<_>>());
        let on_device = match further.len() {
            1 => on_device::<3>(&places, HALF),
            _ => on_device::<4>(&places, HALF),
        };
        prop_assert_eq!(found, on_device);
    }

    /// Shares of positions are dropped as in all rows, on the host and on the device.
    #[test]
    fn shares_are_dropped_as_in_all_rows(
        shape in prop::array::uniform2(1_usize..6),
        each in 1_usize..9,
        width in 1_usize..6,
        starts in prop::collection::vec(0_usize..4, 5),
        kind in 0_usize..4,
        (seed, first) in any::<(u64, u64)>(),
    ) {
        let (draws, [rows, columns]) = (Draws { seed, epoch: 1, first }, shape);
        let of = match kind {
            0 => Samples::Columns,
            1 => Samples::Starting(starts.into()),
            2 => Samples::Ragged(Ragged::new([columns / 2, columns - columns / 2])),
            _ => {
                let columns = (0..columns).map(|at| 2 * at + 1).collect();
                Samples::Selected { columns, starts: starts.into() }
            }
        };
        let rows = if kind == 2 { 1 } else { rows };
        let samples_of_rows = if kind == 2 { 2 } else { rows };
        fn places<'a>(draws: &Draws, of: usize, length: usize, width: usize, samples: &'a Samples) -> Places<'a> {
            let axes = vec![Axis { length, from: 0, samples: Some(samples) }, axis(width)];
            Places::new(draws, 4, of, axes)
        }
        let whole = on_host(&places(&draws, samples_of_rows, columns, width, &of), HALF);
        let positions = rows * columns;
        let mut found = Vec::new();
        for first in (0..positions).step_by(each) {
            let (of, own) = (of.clone().into(), first..first + each);
            let share = Samples::Share { of, shape: [rows, columns], own };
            let places = places(&draws, samples_of_rows, each, width, &share);
            let own = on_host(&places, HALF);
            prop_assert_eq!(own.len(), each * width);
            prop_assert_eq!(&own, &on_device::<3>(&places, HALF));
            found.extend(own);
        }
        // The last share has positions that no row has.
        found.truncate(positions * width);
        prop_assert_eq!(found, whole);
    }
}

/// With enough elements that the host uses several tasks.
#[test]
fn the_device_agrees_with_the_host_on_many_elements() {
    let samples = Samples::Starting([0, 200, 17].into());
    let counted = |length| Axis { length, from: 0, samples: Some(&samples) };
    let draws = Draws { seed: u64::MAX, epoch: 3, first: 1 << 40 };
    let places = Places::new(&draws, 1, 3, vec![axis(2), counted(128), counted(300)]);
    assert_eq!(on_device::<4>(&places, HALF / 5), on_host(&places, HALF / 5));
}
