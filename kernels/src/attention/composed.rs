//! Attention of Burn's operations, for backends without a kernel of their own and for other dtypes.

use burn::tensor::{FloatDType, Int, Tensor, activation};

use super::{Attending, attention};
use crate::dropout::dropout_along;
use crate::{Ragged, Samples, Site, cast, matmul};

/// Computes scores and weights as tensors `[batch, heads, length, read]`.
pub fn composed(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    bias: Option<Tensor<4>>,
    how: Attending,
) -> Tensor<4> {
    let ([batch, heads, _, size], [_, key_heads, read, _]) = (query.dims(), key.dims());
    if query.dims().contains(&0) || read == 0 {
        return query * 0.0;
    }
    if let Some([queries, keys]) = how.reads.ragged_rows() {
        return of_ragged([query, key, value], bias, how, [queries, keys]);
    }
    let dtype = FloatDType::from(query.dtype());
    // Softmax is computed in f32, since its sum runs over the whole row.
    let wide = if dtype == FloatDType::F64 { dtype } else { FloatDType::F32 };
    let [key, value] = [key, value].map(|x| match heads / key_heads {
        1 => x,
        group => {
            let shared = x.unsqueeze_dim::<5>(2).expand([batch, key_heads, group, read, size]);
            shared.reshape([batch, heads, read, size])
        }
    });
    let query = if how.scale == 1.0 { query } else { query * how.scale };
    let scores = cast(matmul(query, key.transpose()), wide);
    let scores = match bias {
        Some(bias) => scores + cast(bias, wide),
        None => scores,
    };
    let scores = match how.cap {
        Some(cap) => (scores / cap).tanh() * cap,
        None => scores,
    };
    let masked = how.reads.masked(&scores.device());
    let weights = activation::softmax(scores.mask_fill(masked.clone(), f32::NEG_INFINITY), 3);
    // Softmax is undefined for a query that reads nothing.
    let weights = if how.reads.has_empty() { weights.mask_fill(masked, 0.0) } else { weights };
    let weights = cast(weights, dtype);
    let weights = match how.dropout {
        Some((prob, site)) => {
            let starts = how.reads.key_starts(batch).map(|starts| Samples::Starting(starts.into()));
            dropout_along(
                weights,
                prob,
                &[(2, site.samples), (3, starts.as_ref().unwrap_or(site.samples))],
                site,
            )
        }
        None => weights,
    };
    matmul(weights, value)
}

/// Pads ragged rows to the longest, computes their attention where a kernel can, and selects the outputs of what isn't
/// padding.
fn of_ragged(
    [query, key, value]: [Tensor<4>; 3],
    bias: Option<Tensor<4>>,
    how: Attending,
    [queries, keys]: [&Ragged; 2],
) -> Tensor<4> {
    let device = query.device();
    let select = |x: Tensor<4>, places: Vec<i64>, [rows, positions]: [usize; 2]| -> Tensor<4> {
        let [_, heads, _, size] = x.dims();
        let places = Tensor::<1, Int>::from_data(places.as_slice(), &device);
        let x = x.swap_dims(0, 1).select(2, places); // [heads, 1, rows * positions, size]
        x.reshape([heads, rows, positions, size]).swap_dims(0, 1)
    };
    let padded = |x: Tensor<4>, rows: &Ragged| {
        // Padding repeats any position, since nothing reads it.
        let places = |row| (0..rows.longest()).map(move |at| if at < rows.row(row).len() { at } else { 0 });
        let places = |row| places(row).map(move |at| (rows.row(row).start + at).min(rows.total() - 1) as i64);
        select(x, (0..rows.len()).flat_map(places).collect(), [rows.len(), rows.longest()])
    };
    let reads = how.reads.padded();
    let dropout = how.dropout.map(|(prob, site)| (prob, Site { samples: &Samples::Columns, ..site }));
    let how = Attending { reads: &reads, dropout, ..how };
    let y = attention(padded(query, queries), padded(key, keys), padded(value, keys), bias, how);
    let [rows, heads, longest, size] = y.dims();
    let y = y.swap_dims(0, 1).reshape([1, heads, rows * longest, size]);
    let real = |row| queries.row(row).enumerate().map(move |(at, _)| (row * longest + at) as i64);
    select(y, (0..rows).flat_map(real).collect(), [1, queries.total()])
}
