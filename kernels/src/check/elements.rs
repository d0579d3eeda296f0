//! Checks of functions of single elements: activations, sums, dropout, casts.

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::{Draws, Gate, Gelu, Samples, Site, add, add_dropout, cast, dropout, gated, gelu};

const SMALL: [usize; 2] = [5, 61];
const REAL: [usize; 2] = [2048, 3072];

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, kernel, small: fn(&mut Run), real: fn(&mut Run)| {
        Check::new(name, covers, Tolerance::ROUNDED, small).of(kernel).real(real)
    };
    let of = Kernel::Activations;
    vec![
        check(
            "GELU",
            &["gelu"],
            of,
            |run| curve(run, SMALL, Gelu::Exact),
            |run| curve(run, REAL, Gelu::Exact),
        ),
        check(
            "GELU by tanh",
            &["gelu"],
            of,
            |run| curve(run, SMALL, Gelu::Tanh),
            |run| curve(run, REAL, Gelu::Tanh),
        ),
        check(
            "SwiGLU",
            &["gated"],
            of,
            |run| gate(run, SMALL, Gate::Silu),
            |run| gate(run, REAL, Gate::Silu),
        ),
        check(
            "GEGLU",
            &["gated"],
            of,
            |run| gate(run, SMALL, Gate::Gelu(Gelu::Tanh)),
            |run| gate(run, REAL, Gate::Gelu(Gelu::Tanh)),
        ),
        check(
            "dropout",
            &["dropout"],
            Kernel::Dropout,
            |run| dropped(run, [3, 5, 7]),
            |run| {
                dropped(run, [4, 1024, 768]);
            },
        ),
        check("residual sum", &["add"], Kernel::Residual, |run| sum(run, SMALL), |run| sum(run, REAL)),
        check(
            "residual sum with dropout",
            &["add_dropout"],
            Kernel::Residual,
            |run| sum_with_dropped(run, [3, 5, 7]),
            |run| sum_with_dropped(run, [4, 1024, 768]),
        ),
        check("cast", &["cast"], Kernel::Casts, |run| casts(run, SMALL), |run| casts(run, REAL)),
    ]
}

fn curve(run: &mut Run, shape @ [rows, width]: [usize; 2], form: Gelu) {
    let x = run.leaf_within("x", shape, 4.0);
    run.moves(5 * rows * width, 0);
    run.result("the activation", gelu(x, form));
}

fn gate(run: &mut Run, shape @ [rows, width]: [usize; 2], form: Gate) {
    let (gate, up) = (run.leaf_within("the gate", shape, 4.0), run.leaf("the other factor", shape));
    run.moves(8 * rows * width, 0);
    run.result("the product", gated(gate, up, form));
}

const SITE: Site =
    Site { draws: Draws { seed: 7, epoch: 1, first: 3 }, number: 1, samples: &Samples::Columns, from: 0 };

fn dropped(run: &mut Run, shape: [usize; 3]) {
    let x = run.leaf("x", shape);
    run.moves(4 * shape.iter().product::<usize>(), 0);
    run.result("what is kept", dropout(x, 0.25, &[1], SITE));
}

fn sum(run: &mut Run, shape @ [rows, width]: [usize; 2]) {
    let (x, y) = (run.leaf("x", shape), run.leaf("y", shape));
    run.moves(3 * rows * width, 0);
    run.result("the sum", add(x, y));
}

fn sum_with_dropped(run: &mut Run, shape: [usize; 3]) {
    let (x, y) = (run.leaf("x", shape), run.leaf("y", shape));
    run.moves(5 * shape.iter().product::<usize>(), 0);
    run.result("the sum", add_dropout(x, y, 0.25, &[1], SITE));
}

/// From f32, of a view, and back.
fn casts(run: &mut Run, shape @ [rows, width]: [usize; 2]) {
    let x = run.wide_leaf("x", shape);
    let (wide, narrow) = (run.wide(), run.dtype());
    run.moves(2 * rows * width, 2 * rows * width);
    run.result("the cast", cast(cast(x.transpose(), narrow), wide));
}
