//! Checks of functions of rows: norms, losses of logits, rows of a table, rotations.

use burn::tensor::{Int, Tensor, TensorData};

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::{NormKind, cross_entropy, embedding, embedding_sum, norm, norm_and_input, norm_of_sum, rotary};

const LAYER: NormKind = NormKind::Layer { epsilon: 1e-5 };
const RMS: NormKind = NormKind::Rms { epsilon: 1e-5 };

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, kernel, small: fn(&mut Run)| {
        Check::new(name, covers, Tolerance::ROUNDED, small).of(kernel)
    };
    vec![
        check("layer norm of a sum", &["norm_of_sum"], Kernel::Norms, |run| of_sum(run, [7, 97]))
            .real(|run| of_sum(run, [4096, 768])),
        check("RMS norm", &["norm"], Kernel::Norms, |run| rms(run, [7, 97]))
            .real(|run| rms(run, [4096, 768])),
        check("layer norm beside its input", &["norm_and_input"], Kernel::Norms, beside),
        check("cross-entropy", &["cross_entropy"], Kernel::Losses, |run| entropy(run, [13, 51]))
            .real(|run| entropy(run, [256, 50_257])),
        check("rows of a table", &["embedding"], Kernel::Embedding, |run| table(run, [9, 41], [2, 17]))
            .real(|run| table(run, [8192, 768], [4, 1024])),
        check("rows of two tables", &["embedding_sum"], Kernel::Embedding, |run| {
            tables(run, [9, 13, 41], [2, 7])
        })
        .real(|run| tables(run, [8192, 1024, 768], [4, 1024])),
        check("rotary positions", &["rotary"], Kernel::Rotary, |run| rotated(run, [2, 3, 5, 10]))
            .real(|run| rotated(run, [4, 12, 1024, 64])),
    ]
}

fn of_sum(run: &mut Run, [rows, width]: [usize; 2]) {
    let (x, y) = (run.leaf("x", [rows, width]), run.leaf("y", [rows, width]));
    let (scale, bias) = (run.leaf("the scale", [width]), run.leaf("the bias", [width]));
    let (sum, normed) = norm_of_sum(x, y, scale, Some(bias), LAYER);
    // Two tensors are read and two written; back, two are read and one is written.
    run.moves(7 * rows * width, 0);
    run.result("the sum", sum);
    run.result("the norm", normed);
}

fn rms(run: &mut Run, [rows, width]: [usize; 2]) {
    let (x, scale) = (run.leaf("x", [rows, width]), run.leaf("the scale", [width]));
    run.moves(5 * rows * width, 0);
    run.result("the norm", norm(x, scale, None, RMS));
}

/// A norm of a view whose rows are apart, which goes around the norm too.
fn beside(run: &mut Run) {
    let (x, scale) = (run.leaf("x", [33, 3, 5]), run.leaf("the scale", [33]));
    let (x, normed) = norm_and_input(x.swap_dims(0, 2), scale, None, LAYER);
    run.result("the input", x);
    run.result("the norm", normed);
}

fn entropy(run: &mut Run, [rows, classes]: [usize; 2]) {
    let logits = run.leaf_within("the logits", [rows, classes], 4.0);
    let labels = run.labels(rows, classes);
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [rows]), &run.device());
    run.moves(3 * rows * classes, 0);
    run.result("the loss", cross_entropy(logits, Tensor::from_inner(labels), 0.1));
}

fn table(run: &mut Run, [rows, width]: [usize; 2], [batch, length]: [usize; 2]) {
    let (table, ids) = (run.leaf("the table", [rows, width]), run.ids([batch, length], rows));
    run.moves(3 * batch * length * width + rows * width, 0);
    run.result("the rows", embedding(table, ids));
}

fn tables(run: &mut Run, [rows, others, width]: [usize; 3], [batch, length]: [usize; 2]) {
    let (table, ids) = (run.leaf("the table", [rows, width]), run.ids([batch, length], rows));
    let (other, places) = (run.leaf("the other table", [others, width]), run.ids([1, length], others));
    run.moves(5 * batch * length * width + (rows + others) * width, 0);
    run.result("the sums", embedding_sum([(table, ids), (other, places)]));
}

fn rotated(run: &mut Run, shape @ [_, _, length, size]: [usize; 4]) {
    let x = run.leaf("x", shape);
    let (cos, sin) = (run.constant([1, 1, length, size / 2]), run.constant([1, 1, length, size / 2]));
    run.moves(4 * shape.iter().product::<usize>(), 0);
    run.result("the rotation", rotary(x, cos, sin));
}
