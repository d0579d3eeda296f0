//! Rows of scores on a device: their softmax with bounds, bias and dropout, and its gradient. One cube computes one row.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its row or element.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::drops::WORDS;
use crate::cube::{
    Spec, contiguous, element, empty, grid, most_of_cube, run_many, sum_of_cube, units, written,
};
use crate::dropout::cube::{enter, hash, spread};

/// How the rows of scores lie: `length` queries of a head, those of all heads of a row of the batch, and how many come
/// before the first.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub length: usize,
    pub rows_of_batch: usize,
    pub first: usize,
    pub scale: f32,
    pub bounded: bool,
    /// The threshold of the words below which a weight is dropped, the factor of the others, and where the keys of the
    /// dropout have the columns of the queries, and of the keys; 0 if they are numbered from 0.
    pub drops: Option<(u32, f32, [usize; 2])>,
    /// The rows of the bias; 0 if there is none.
    pub biases: usize,
}

/// What the kernel of the weights writes.
pub(super) struct Weighed {
    /// The weights, or those that are left where only these are wanted.
    pub weights: CubeTensor,
    /// Those that are left, where all are wanted.
    pub dropped: Option<CubeTensor>,
    pub logs: CubeTensor,
}

/// Returns the weights of rows of scores, or computes them `again` from their logarithms.
pub(super) fn weigh(inputs: Vec<CubeTensor>, again: bool, how: Rows) -> Weighed {
    let mut inputs = inputs.into_iter().map(contiguous);
    let mut next = || inputs.next().expect("as many inputs as the form has");
    let scores = next();
    let weights = written(&scores);
    let read = scores.meta.shape()[3];
    let rows = scores.meta.num_elements() / read;
    let logs = match again {
        true => next(),
        false => {
            let mut of_rows = scores.meta.shape().clone();
            of_rows[3] = 1;
            empty(&scores, of_rows, DType::F32)
        }
    };
    // A tensor that the form lacks is bound to another one, and not read.
    let bounds = if how.bounded { next() } else { logs.clone() };
    let masks = if how.bounded { bounds.meta.num_elements() / 2 / how.length } else { 1 };
    let keys = if how.drops.is_some() { next() } else { logs.clone() };
    let bias = if how.biases > 0 { next() } else { logs.clone() };
    let dropped =
        (again && how.drops.is_some()).then(|| empty(&scores, scores.meta.shape().clone(), scores.dtype));
    let (threshold, factor, [columns_at, key_columns_at]) = how.drops.unwrap_or((0, 1.0, [0; 2]));
    let units = units(&scores, read);
    // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
    unsafe {
        weights_kernel::launch_unchecked(
            &scores.client,
            grid(&scores, rows),
            CubeDim::new_1d(units),
            scores.required_address_type(),
            scores.clone().into_buffer_arg(),
            bounds.clone().into_buffer_arg(),
            keys.into_buffer_arg(),
            bias.into_buffer_arg(),
            weights.clone().into_buffer_arg(),
            dropped.as_ref().unwrap_or(&weights).clone().into_buffer_arg(),
            logs.clone().into_buffer_arg(),
            rows,
            read,
            how.length,
            how.rows_of_batch,
            how.first,
            masks,
            how.biases,
            how.scale,
            threshold,
            factor,
            columns_at,
            key_columns_at,
            !how.bounded,
            again,
            how.drops.is_some(),
            how.biases > 0,
            units,
            [element(&scores), element(&bounds)],
        );
    }
    Weighed { weights, dropped, logs }
}

/// Returns a scaled score with its bias.
#[cube]
fn score<F: Float>(
    scores: &[F],
    bias: &[f32],
    place: usize,
    of_bias: usize,
    scale: f32,
    #[comptime] biased: bool,
) -> f32 {
    let mut score = f32::cast_from(scores[place]) * scale;
    if biased {
        score += bias[of_bias];
    }
    score
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn weights_kernel<F: Float, I: Numeric>(
    scores: &[F],
    bounds: &[I],
    keys: &[u32],
    bias: &[f32],
    weights: &mut [F],
    dropped: &mut [F],
    logs: &mut [f32],
    rows: usize,
    read: usize,
    length: usize,
    rows_of_batch: usize,
    before: usize,
    masks: usize,
    biases: usize,
    scale: f32,
    threshold: u32,
    factor: f32,
    columns_at: usize,
    key_columns_at: usize,
    #[comptime] causal: bool,
    #[comptime] again: bool,
    #[comptime] drops: bool,
    #[comptime] biased: bool,
    #[comptime] units: u32,
    #[define(F, I)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = Shared::<[f32]>::new_slice(units as usize);
    let query = row % length;
    let sample = (row + before) / rows_of_batch;
    let of_sample = (row + before) % rows_of_batch;
    let mut of_bias = 0usize;
    if biased {
        of_bias = (sample % biases * rows_of_batch + of_sample) * read;
    }
    let mut first = 0usize;
    let mut end = query + 1 + read - length;
    if !causal {
        let place = (sample % masks * length + query) * 2;
        first = usize::cast_from(bounds[place]);
        end = usize::cast_from(bounds[place + 1]);
    }
    let start = row * read;
    let unit = UNIT_POS as usize;
    let step = units as usize;

    let mut log = 0.0f32;
    if again {
        log = logs[row];
    } else {
        let mut most = f32::new(-3.0e38);
        let mut at = first + unit;
        while at < end {
            most = max(most, score::<F>(scores, bias, start + at, of_bias + at, scale, biased));
            at += step;
        }
        let most = most_of_cube::<f32>(&mut shared, most, units);
        let mut sum = 0.0f32;
        let mut at = first + unit;
        while at < end {
            sum += (score::<F>(scores, bias, start + at, of_bias + at, scale, biased) - most).exp();
            at += step;
        }
        let sum = sum_of_cube(&mut shared, sum, units);
        if first < end {
            log = most + sum.ln();
        }
        if UNIT_POS == 0 {
            logs[row] = log;
        }
    }
    let drop_state = dropped_row(keys, sample, of_sample / length, query, columns_at, drops);
    let mut at = unit;
    while at < read {
        let mut weight = 0.0f32;
        if at >= first && at < end {
            weight = (score::<F>(scores, bias, start + at, of_bias + at, scale, biased) - log).exp();
        }
        let mut left = weight;
        if drops {
            left = weight * factor;
            let mut column = at as u32;
            if key_columns_at > 0 {
                column = keys[key_columns_at + at];
            }
            if is_dropped(&drop_state, column, threshold) {
                left = 0.0f32;
            }
        }
        if again {
            weights[start + at] = F::cast_from(weight);
            if drops {
                dropped[start + at] = F::cast_from(left);
            }
        } else {
            weights[start + at] = F::cast_from(left);
        }
        at += step;
    }
}

/// Returns the gradient of the scores, before they are scaled, given the weights w, those that are left of them, d, and
/// the gradients g of the latter: `(d · g - w · Σ d · g) · scale` for each row. The sums may be given, in f32, as those of more
/// keys. If it is wanted, also the same without the scale, in f32.
pub(super) fn slopes(
    weights: FloatTensor<Cube>,
    dropped: Option<FloatTensor<Cube>>,
    grads: FloatTensor<Cube>,
    inner: Option<FloatTensor<Cube>>,
    scale: f32,
    biased: bool,
) -> (FloatTensor<Cube>, Option<FloatTensor<Cube>>) {
    let mut outputs = vec![Spec::new(grads.shape(), grads.dtype())];
    outputs.extend(biased.then(|| Spec::new(grads.shape(), DType::F32)));
    let [drops, sums] = [dropped.is_none(), inner.is_none()].map(|is_none| !is_none);
    let inputs = [grads, weights].into_iter().chain(dropped).chain(inner).collect();
    let found = run_many(inputs, outputs, move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = || inputs.next().expect("as many inputs as the form has");
        let (grads, weights) = (next(), next());
        let dropped = if drops { next() } else { weights.clone() };
        let inner = if sums { next() } else { weights.clone() };
        let slopes = written(&grads);
        let of_scores = biased.then(|| empty(&grads, grads.meta.shape().clone(), DType::F32));
        let read = grads.meta.shape()[3];
        let rows = grads.meta.num_elements() / read;
        let units = units(&grads, read);
        // SAFETY: each cube checks that its row exists, and reads and writes the columns of that row.
        unsafe {
            slopes_kernel::launch_unchecked(
                &grads.client,
                grid(&grads, rows),
                CubeDim::new_1d(units),
                grads.required_address_type(),
                weights.into_buffer_arg(),
                dropped.into_buffer_arg(),
                grads.clone().into_buffer_arg(),
                inner.clone().into_buffer_arg(),
                slopes.clone().into_buffer_arg(),
                of_scores.as_ref().unwrap_or(&slopes).clone().into_buffer_arg(),
                rows,
                read,
                scale,
                drops,
                sums,
                biased,
                units,
                [element(&grads), element(&inner)],
            );
        }
        std::iter::once(slopes).chain(of_scores).collect()
    });
    let mut found = found.into_iter();
    (found.next().expect("the slopes come first"), found.next())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn slopes_kernel<F: Float, S: Float>(
    weights: &[F],
    dropped: &[F],
    grads: &[F],
    inners: &[S],
    slopes: &mut [F],
    of_scores: &mut [f32],
    rows: usize,
    read: usize,
    scale: f32,
    #[comptime] drops: bool,
    #[comptime] sums: bool,
    #[comptime] biased: bool,
    #[comptime] units: u32,
    #[define(F, S)] _dtypes: [ElemType; 2],
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let start = row * read;
    let step = units as usize;
    let mut inner = 0.0f32;
    if sums {
        inner += f32::cast_from(inners[row]);
    } else {
        let mut shared = Shared::<[f32]>::new_slice(units as usize);
        let mut sum = 0.0f32;
        let mut at = UNIT_POS as usize;
        while at < read {
            sum += f32::cast_from(dropped[start + at]) * f32::cast_from(grads[start + at]);
            at += step;
        }
        inner += sum_of_cube(&mut shared, sum, units);
    }
    let mut at = UNIT_POS as usize;
    while at < read {
        let weight = f32::cast_from(weights[start + at]);
        let grad = f32::cast_from(grads[start + at]);
        let mut slope = (grad - inner) * weight;
        if drops {
            slope = f32::cast_from(dropped[start + at]) * grad - weight * inner;
        }
        slopes[start + at] = F::cast_from(slope * scale);
        if biased {
            of_scores[start + at] = slope;
        }
        at += step;
    }
}

/// The state of the hash for one query: see [`Key`](crate::dropout::mask::Key).
#[derive(CubeType, Clone, Copy)]
pub struct DroppedRow {
    first: u32,
    second: u32,
    /// The column where the row's sample of keys starts.
    start: u32,
}

/// Returns the state of a query, or any state if nothing `drops`. `keys` holds [`WORDS`] of each row of the batch and, from
/// `columns_at` on if that isn't 0, the columns of the queries.
#[cube]
fn dropped_row(
    keys: &[u32],
    row: usize,
    head: usize,
    query: usize,
    columns_at: usize,
    #[comptime] drops: bool,
) -> DroppedRow {
    let mut state = DroppedRow { first: 0u32, second: 0u32, start: 0u32 };
    if drops {
        let at = row * WORDS;
        let (a, b) = enter(keys[at], keys[at + 1], spread(keys[at + 4] + head as u32));
        let mut column = query as u32;
        if columns_at > 0 {
            column = keys[columns_at + query];
        }
        let (first, second) = enter(a, b, spread(column - keys[at + 2]));
        state.first = first;
        state.second = second;
        state.start = keys[at + 3];
    }
    state
}

/// Returns whether the weight of a key in this column is dropped: whether its word is below the threshold.
#[cube]
pub fn is_dropped(row: &DroppedRow, column: u32, threshold: u32) -> bool {
    hash(spread(column - row.start) + row.first, row.second) < threshold
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Tensor, TensorData};

    use super::*;
    use crate::cube::run;
    use crate::device::is_cube;
    use crate::longer::longer;
    use crate::testing;

    /// Returns numbers of rows of 6 columns, in a longer buffer if `in_longer`.
    fn rows(seed: usize, in_longer: bool) -> FloatTensor<Cube> {
        let values = (0..72).map(|at| (((at + 1) * (seed + 3)) as f32 * 0.618).sin().abs());
        let data = TensorData::new(values.collect::<Vec<_>>(), [1, 2, 6, 6]);
        let x = Tensor::<4>::from_data(data, &testing::device());
        let x = if in_longer { longer(x) } else { x };
        x.try_into_primitive::<Cube>().expect("it is the device's")
    }

    fn values(x: FloatTensor<Cube>) -> Vec<f32> {
        Tensor::<4>::from_primitive::<Cube>(x).into_data().iter().collect()
    }

    #[test]
    fn rows_may_lie_in_longer_buffers() {
        if !is_cube(&testing::device()) {
            return;
        }
        let how = Rows {
            length: 6,
            rows_of_batch: 12,
            first: 0,
            scale: 0.5,
            bounded: false,
            drops: None,
            biases: 1,
        };
        let of = |in_longer| {
            let outputs = [Spec::new([1, 2, 6, 6], DType::F32), Spec::new([1, 2, 6, 1], DType::F32)];
            let weighed = run(vec![rows(1, in_longer), rows(2, in_longer)], outputs, move |inputs| {
                let Weighed { weights, logs, .. } = weigh(inputs, false, how);
                [weights, logs]
            });
            let [grads, weights, dropped] = [3, 4, 5].map(|seed| rows(seed, in_longer));
            let (of_scores, unscaled) = slopes(weights, Some(dropped), grads, None, 0.5, true);
            let [weights, logs] = weighed.map(values);
            [weights, logs, values(of_scores), values(unscaled.expect("it is wanted"))]
        };
        assert_eq!(of(true), of(false));
    }
}
