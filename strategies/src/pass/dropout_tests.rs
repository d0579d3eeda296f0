//! Dropout depends only on the counters.

use burn::tensor::{DType, Device, FloatDType};
use proptest::prelude::*;

use super::*;
use firebrick_kernels::Draws;

fn device() -> Device {
    Device::flex()
}

fn pass(draws: Draws) -> Pass {
    Pass::train(&device()).drawing(draws)
}

/// Applies dropout to ones, which shows the kept elements.
fn kept<const D: usize>(shape: [usize; D], positions: &[usize], pass: &Pass) -> Tensor<D> {
    Dropout::new(0.4).forward_along(Tensor::ones(shape, &device()), positions, pass)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

#[test]
fn kept_elements_are_scaled_and_the_mean_stays() {
    let y = values(kept([20, 50, 100], &[1], &pass(Draws::default())));
    assert!(y.iter().all(|&y| y == 0.0 || (y - 1.0 / 0.6).abs() < 1e-6));
    let mean = y.iter().sum::<f32>() / 1e5;
    assert!((mean - 1.0).abs() < 0.01, "{mean}"); // 4 sigma
}

#[test]
fn what_is_dropped_is_zero_whatever_it_was() {
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
        let x = Tensor::<3>::full([2, 5, 40], f32::NAN, &device()).cast(dtype);
        let y = Dropout::new(0.5).forward(x, &pass(Draws::default()));
        assert_eq!(y.dtype(), DType::from(dtype));
        let y = values(y);
        assert!(y.iter().any(|y| y.is_nan()) && y.contains(&0.0), "{dtype:?}");
    }
}

#[test]
fn the_mask_is_that_of_f32_in_every_dtype() {
    let zeros = |dtype| {
        let x = Tensor::<3>::ones([2, 5, 40], &device()).cast(dtype);
        let y = values(Dropout::new(0.5).forward(x, &pass(Draws::default())));
        y.iter().map(|&y| y == 0.0).collect::<Vec<_>>()
    };
    assert_eq!(zeros(FloatDType::F32), zeros(FloatDType::BF16));
    assert_eq!(zeros(FloatDType::F32), zeros(FloatDType::F16));
}

/// A residual branch that ends in one pass drops what it would drop in two, and takes the same site.
#[test]
fn a_branch_drops_the_same_in_one_pass() {
    let dropout = Dropout::new(0.5);
    for pass in [pass(Draws { seed: 4, epoch: 1, first: 2 }), Pass::evaluate(&device())] {
        let [x, y] = [1.0, 2.0].map(|x| Tensor::<3>::full([3, 4, 50], x, &device()));
        let apart = pass.apart();
        let sum = dropout.forward_onto(x.clone(), y.clone(), &pass);
        let next = dropout.forward(y.clone(), &pass);
        assert_eq!(values(sum), values(x + dropout.forward(y.clone(), &apart)));
        assert_eq!(values(next), values(dropout.forward(y, &apart)));
    }
}

#[test]
fn gradients_pass_where_elements_did() {
    let x = Tensor::<3>::ones([3, 4, 50], &device().autodiff()).require_grad();
    let y = Dropout::new(0.3).forward(x.clone(), &Pass::train(&device().autodiff()));
    let grads = y.clone().sum().backward();
    assert_eq!(values(x.grad(&grads).unwrap()), values(y.inner()));
}

#[test]
fn the_mask_is_the_same_inside_and_outside_autodiff() {
    let outside = kept([3, 4, 50], &[1], &Pass::train(&device()));
    let inside = Tensor::<3>::ones([3, 4, 50], &device().autodiff());
    let inside = Dropout::new(0.4).forward(inside, &Pass::train(&device().autodiff()));
    assert_eq!(values(outside), values(inside));
}

#[test]
fn an_evaluation_and_a_probability_of_zero_change_nothing_but_take_a_site() {
    let x = Tensor::<2>::full([3, 200], f32::INFINITY, &device());
    let y = Dropout::new(0.5).forward(x.clone(), &Pass::evaluate(&device()));
    assert_eq!(values(y), values(x.clone()));
    let second = |first: Dropout| {
        let pass = pass(Draws::default());
        let y = first.forward(x.clone(), &pass);
        (values(y), values(kept([3, 200], &[], &pass)))
    };
    let (unchanged, after_none) = second(Dropout::new(0.0));
    assert_eq!(unchanged, values(x.clone()));
    assert_eq!(after_none, second(Dropout::new(0.9)).1);
}

#[test]
fn nothing_in_nothing_out() {
    for shape in [[0, 3, 4], [2, 0, 4], [2, 3, 0]] {
        // Burn cannot create an empty tensor of ones.
        let x = Tensor::<3>::empty(shape, &device());
        assert_eq!(Dropout::new(0.5).forward(x, &pass(Draws::default())).dims(), shape);
    }
}

#[test]
fn one_axis() {
    let y = values(kept([1000], &[], &pass(Draws::default())));
    let dropped = y.iter().filter(|&&y| y == 0.0).count();
    assert!((300..500).contains(&dropped), "{dropped}");
}

#[test]
fn probabilities_out_of_range_are_refused() {
    for prob in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
        assert!(std::panic::catch_unwind(|| Dropout::new(prob)).is_err(), "{prob}");
    }
}

#[test]
fn each_counter_gives_another_mask() {
    let draws = Draws { seed: 1, epoch: 1, first: 8 };
    let of = |draws| values(kept([2, 5, 20], &[1], &pass(draws)));
    let one = of(draws);
    assert_eq!(one, of(draws));
    assert_ne!(one, of(Draws { seed: 2, ..draws }));
    assert_ne!(one, of(Draws { epoch: 2, ..draws }));
    assert_ne!(one, of(Draws { first: 9, ..draws }));
    let pass = pass(draws);
    let sites: Vec<_> = (0..3).map(|_| values(kept([2, 5, 20], &[1], &pass))).collect();
    assert_eq!(one, sites[0]);
    assert!(sites[0] != sites[1] && sites[1] != sites[2] && sites[0] != sites[2]);
}

/// The recomputation of a segment draws again and must not change later masks.
#[test]
fn a_segment_draws_from_counters_of_its_own() {
    let x = || Tensor::<3>::ones([2, 5, 60], &device());
    let second_segment = |draws_of_first: usize| {
        let (pass, dropout) = (pass(Draws::default()), Dropout::new(0.5));
        let run = move |dropout: &Dropout, x: Tensor<3>, inner: &Pass| {
            (0..draws_of_first).fold(x, |x, _| dropout.forward(x, inner))
        };
        let first = pass.segment(&dropout, x(), run);
        let second = pass.segment(&dropout, x(), |dropout, x, inner| dropout.forward(x, inner));
        (values(first), values(second), values(dropout.forward(x(), &pass)))
    };
    let (first, second, outside) = second_segment(1);
    let (_, second_again, outside_again) = second_segment(3);
    assert_eq!((&second, &outside), (&second_again, &outside_again));
    assert!(first != second && second != outside && first != outside);
}

proptest! {
    /// For rows of any length, cut into micro-batches, padded to any width on either side: each element of a sample has
    /// the same mask as in a batch of its own.
    #[test]
    fn a_sample_is_dropped_alike_however_it_is_batched(
        lengths in prop::collection::vec(1_usize..7, 1..7),
        micro_batch in 1_usize..7,
        wider in 0_usize..4,
        left in any::<bool>(),
        first in 0_u64..1000,
    ) {
        let draws = Draws { seed: 5, epoch: 2, first };
        let activations = |row: usize| {
            let draws = Draws { first: first + row as u64, ..draws };
            let pass = pass(draws);
            let length = lengths[row];
            let x = kept([1, length, 6], &[1], &pass);
            (values(x), values(kept([1, 3, length, length], &[2, 3], &pass)))
        };
        for start in (0..lengths.len()).step_by(micro_batch) {
            let rows = &lengths[start..lengths.len().min(start + micro_batch)];
            let width = rows.iter().max().unwrap() + wider;
            let begin = |length: usize| if left { width - length } else { 0 };
            let pass = pass(Draws { first: first + start as u64, ..draws });
            let pass = pass.starting_at(rows.iter().map(|&length| begin(length)).collect());
            let x = kept([rows.len(), width, 6], &[1], &pass);
            let weights = kept([rows.len(), 3, width, width], &[2, 3], &pass);
            for (row, &length) in rows.iter().enumerate() {
                let (alone, weights_alone) = activations(start + row);
                let real = begin(length)..begin(length) + length;
                let found = x.clone().slice([row..row + 1, real.clone(), 0..6]);
                prop_assert_eq!(values(found), alone);
                let found = weights.clone().slice([row..row + 1, 0..3, real.clone(), real]);
                prop_assert_eq!(values(found), weights_alone);
            }
        }
    }
}
