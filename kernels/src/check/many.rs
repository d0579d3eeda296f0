//! Checks of passes over many tensors.

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{DType, Tensor};

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::{add_all, cast_all, clip_all, l2_norm, scale_all, sum_of_squares};

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, small: fn(&mut Run), real: fn(&mut Run)| {
        Check::new(name, covers, Tolerance::ROUNDED, small).of(Kernel::Many).real(real)
    };
    vec![
        check("sum of squares", &SQUARES, |run| squares(run, &SMALL), |run| squares(run, &REAL)),
        check("scaled tensors", &["scale_all"], |run| scaled(run, &SMALL), |run| scaled(run, &REAL)),
        check("clipped tensors", &["clip_all"], |run| clipped(run, &SMALL), |run| clipped(run, &REAL)),
        check("sums of tensors", &["add_all"], |run| sums(run, &SMALL), |run| sums(run, &REAL)),
        check("casts of tensors", &["cast_all"], |run| casts(run, &SMALL), |run| casts(run, &REAL)),
    ]
}

const SQUARES: [&str; 2] = ["sum_of_squares", "l2_norm"];

/// Elements of tensors: a single one, those of a bias, and a little more than a part of a kernel.
const SMALL: [usize; 4] = [1, 96, 4100, 33];
const REAL: [usize; 4] = [768, 768 * 3072, 3072, 768 * 2304];

fn given(run: &mut Run, counts: &[usize]) -> Vec<DispatchTensor> {
    counts.iter().map(|count| run.plain([*count]).into_dispatch()).collect()
}

fn results(run: &mut Run, name: &'static str, found: Vec<DispatchTensor>) {
    for tensor in found {
        run.result(name, Tensor::<1>::from_dispatch(tensor));
    }
}

fn total(counts: &[usize]) -> usize {
    counts.iter().sum()
}

fn squares(run: &mut Run, counts: &[usize]) {
    let tensors = given(run, counts);
    run.moves(2 * total(counts), 0);
    let (sum, norm) = match run.is_reference() {
        // The functions return f32.
        true => {
            let sums = tensors.into_iter().map(|x| Tensor::<1>::from_dispatch(x).square().sum());
            let sum = sums.reduce(|sum, other| sum + other).expect("there are tensors");
            (sum.clone(), sum.sqrt())
        }
        false => (sum_of_squares(tensors.clone()), l2_norm(tensors)),
    };
    run.result("the sum", sum);
    run.result("the norm", norm);
}

/// Bounded to a hundredth of a norm, so that half precision need not hold more digits of it than it has.
fn clipped(run: &mut Run, counts: &[usize]) {
    let tensors = given(run, counts);
    let norm = Tensor::<1>::full([1], 100.0, (&run.device(), DType::from(run.wide())));
    run.moves(2 * total(counts), 0);
    let tensors = tensors.into_iter().map(|x| {
        let dtype = x.dtype().into();
        (x, dtype)
    });
    let found = clip_all(tensors.collect(), norm, 1.0);
    results(run, "a product", found);
}

fn scaled(run: &mut Run, counts: &[usize]) {
    let tensors = given(run, counts);
    // A power of two, so that half precision holds it.
    let factor = Tensor::<1>::full([1], 0.125, (&run.device(), DType::from(run.wide())));
    run.moves(2 * total(counts), 0);
    let found = scale_all(tensors, factor);
    results(run, "a product", found);
}

fn sums(run: &mut Run, counts: &[usize]) {
    let (tensors, others) = (given(run, counts), given(run, counts));
    run.moves(2 * total(counts), total(counts));
    let found = add_all(tensors, others, run.wide());
    results(run, "a sum", found);
}

/// Into f32, divided, and back.
fn casts(run: &mut Run, counts: &[usize]) {
    let tensors = given(run, counts);
    run.moves(2 * total(counts), 2 * total(counts));
    let quotients = cast_all(tensors, run.wide(), 3.0);
    results(run, "a quotient", quotients.clone());
    let found = cast_all(quotients, run.dtype(), 1.0);
    results(run, "a cast", found);
}
