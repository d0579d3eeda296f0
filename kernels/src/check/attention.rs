//! Checks of attention.

use super::{Check, Run, Tolerance};
use crate::off::Kernel;
use crate::{Attending, Draws, Reads, Samples, Site, attention, attention_of_joint};

pub(super) fn checks() -> Vec<Check> {
    let check = |name, covers, small: fn(&mut Run)| {
        Check::new(name, covers, Tolerance::PRODUCTS, small).of(Kernel::Attention)
    };
    vec![
        check("attention, grouped heads", &["attention"], |run| grouped(run, [2, 4, 17, 8], 2))
            .real(|run| grouped(run, [1, 16, 512, 64], 4)),
        check("attention, joint projection", &["attention_of_joint"], |run| joint(run, [2, 3, 19, 8]))
            .real(|run| joint(run, [1, 12, 1024, 64])),
        check("attention, ranges, bias, dropout", &["attention"], dropped),
        check("attention in tiles", &["attention"], tiled).of(Kernel::Flash),
    ]
}

/// Returns the factor of the scores: twice the usual one, so that softmax has large and small weights.
fn scale(size: usize) -> f64 {
    2.0 / (size as f64).sqrt()
}

/// Returns the operations of a causal attention: two products forward and five back, each over half of the scores.
fn operations([batch, heads, length, size]: [usize; 4]) -> usize {
    7 * batch * heads * length * length * size
}

/// A causal attention of heads that are views of a projection.
fn grouped(run: &mut Run, shape @ [batch, heads, length, size]: [usize; 4], key_heads: usize) {
    let mut split = |name, heads| run.leaf(name, [batch, length, heads, size]).swap_dims(1, 2);
    let (query, key, value) = (split("query", heads), split("key", key_heads), split("value", key_heads));
    let reads = Reads::causal(length);
    let how = Attending { reads: &reads, scale: scale(size), cap: None, dropout: None };
    run.operations(operations(shape));
    run.result("attention", attention(query, key, value, None, how));
}

fn joint(run: &mut Run, shape @ [batch, heads, length, size]: [usize; 4]) {
    let projected = run.leaf("the projection", [batch, length, 3 * heads * size]);
    let reads = Reads::causal(length);
    let how = Attending { reads: &reads, scale: scale(size), cap: None, dropout: None };
    run.operations(operations(shape));
    run.result("attention", attention_of_joint(projected, heads, how));
}

/// Rows of more than one tile that read a window, some of which nothing, of heads that are views of a projection.
fn tiled(run: &mut Run) {
    let [batch, heads, length, size] = [2, 4, 70, 64];
    let reads = Reads::new([batch, length, length], |row, query| match query < 5 * row {
        true => 0..0,
        false => query.saturating_sub(40)..query + 1,
    });
    let mut split = |name, heads| run.leaf(name, [batch, length, heads, size]).swap_dims(1, 2);
    let (query, key, value) = (split("query", heads), split("key", 2), split("value", 2));
    let how = Attending { reads: &reads, scale: scale(size), cap: None, dropout: None };
    run.result("attention", attention(query, key, value, None, how));
}

/// Rows that are padded on the left and read a window, with a bias and a dropout.
fn dropped(run: &mut Run) {
    let [batch, heads, length, size] = [2, 3, 13, 8];
    let starts = [0, 4];
    let reads = Reads::new([batch, length, length], |row, query| match query < starts[row] {
        true => query..query + 1,
        false => starts[row].max(query.saturating_sub(6))..query + 1,
    });
    let samples = Samples::Starting(starts.into());
    let site = Site { draws: Draws { seed: 5, epoch: 1, first: 3 }, number: 2, samples: &samples, from: 0 };
    let how = Attending { reads: &reads, scale: scale(size), cap: None, dropout: Some((0.3, site)) };
    let mut leaf = |name| run.leaf(name, [batch, heads, length, size]);
    let (query, key, value) = (leaf("query"), leaf("key"), leaf("value"));
    let bias = run.leaf("the bias", [1, heads, length, length]);
    run.result("attention", attention(query, key, value, Some(bias), how));
}
