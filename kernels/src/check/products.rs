//! Checks of products and of a head's loss.

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::{Fp8, Head, HeadWeight, head_loss, head_losses, linear, linear_in_fp8, matmul, round_to_fp8};

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, small: fn(&mut Run)| Check::new(name, covers, Tolerance::PRODUCTS, small);
    vec![
        check("product", &["matmul"], batched).of(Kernel::Products),
        check("affine map", &["linear"], |run| affine(run, [35, 17, 23]))
            .of(Kernel::Products)
            .real(|run| affine(run, [2048, 768, 3072])),
        Check::new("rounding to 8 bits", &["round_to_fp8"], Tolerance::EXACT, |run| rounds(run, [5, 61]))
            .of(Kernel::Products)
            .real(|run| rounds(run, [2048, 3072])),
        check("affine map in 8 bits", &["linear_in_fp8", "fits_fp8"], |run| in_fp8(run, [35, 16, 48]))
            .of(Kernel::Products)
            .real(|run| in_fp8(run, [2048, 768, 3072])),
        check("loss of a head", &["head_loss"], |run| of_head(run, [13, 16, 50]))
            .of(Kernel::Losses)
            .real(|run| of_head(run, [256, 768, 16_384])),
        check("losses of a head's rows", &["head_losses"], of_rows).of(Kernel::Losses),
    ]
}

/// Products of several matrices, of which one is transposed.
fn batched(run: &mut Run) {
    let (lhs, rhs) = (run.leaf("the left matrix", [2, 3, 9, 7]), run.leaf("the right matrix", [1, 3, 5, 9]));
    run.result("the product", matmul(lhs.transpose(), rhs.transpose()));
}

fn affine(run: &mut Run, [rows, from, to]: [usize; 3]) {
    let (x, weight) = (run.leaf("x", [rows, from]), run.leaf("the weight", [from, to]));
    let bias = run.leaf("the bias", [to]);
    // Forward, and the gradients of both operands.
    run.operations(3 * 2 * rows * from * to);
    run.result("the map", linear(x, weight, Some(bias)));
}

fn rounds(run: &mut Run, shape @ [rows, width]: [usize; 2]) {
    let x = run.plain(shape);
    run.moves(3 * 2 * rows * width, 0);
    run.result("in E4M3", round_to_fp8(x.clone(), Fp8::E4m3));
    run.result("in E5M2", round_to_fp8(x, Fp8::E5m2));
}

fn in_fp8(run: &mut Run, [rows, from, to]: [usize; 3]) {
    let (x, weight) = (run.leaf("x", [rows, from]), run.leaf("the weight", [from, to]));
    let bias = run.leaf("the bias", [to]);
    run.operations(3 * 2 * rows * from * to);
    run.result("the map", linear_in_fp8(x, weight, Some(bias)));
}

fn of_head(run: &mut Run, [rows, width, classes]: [usize; 3]) {
    let hidden = run.leaf_within("the hidden state", [rows, width], 0.25);
    let weight = run.leaf("the weight", [width, classes]);
    let bias = run.leaf("the bias", [classes]);
    let head = Head { weight: HeadWeight::Linear(weight), bias: Some(bias), cap: None };
    let labels = run.labels(rows, classes);
    run.operations(3 * 2 * rows * width * classes);
    run.result("the loss", head_loss(hidden, &head, &labels, 0.1));
}

/// The loss of each row, of capped logits of an embedding.
fn of_rows(run: &mut Run) {
    let [rows, width, classes] = [11, 16, 37];
    let hidden = run.leaf("the hidden state", [rows, width]);
    let weight = HeadWeight::Embedding(run.leaf("the weight", [classes, width]));
    let head = Head { weight, bias: None, cap: Some(3.0) };
    let labels = run.labels(rows, classes);
    run.result("the losses", head_losses(hidden, &head, &labels));
}
