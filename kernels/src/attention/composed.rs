//! Attention of Burn's operations, for backends without a kernel of their own and for other dtypes.

use burn::tensor::{DType, FloatDType, Tensor, activation};

use super::Attending;
use crate::{cast, dropout, matmul};

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
    let masked = how.reads.masked(&scores.device());
    let weights = activation::softmax(scores.mask_fill(masked.clone(), f32::NEG_INFINITY), 3);
    // Softmax is undefined for a query that reads nothing.
    let weights = if how.reads.has_empty() { weights.mask_fill(masked, 0.0) } else { weights };
    let weights = cast(weights, dtype);
    let weights = match how.dropout {
        Some((prob, site)) => dropout(weights, prob, &[2, 3], site),
        None => weights,
    };
    matmul(weights, value)
}

/// Returns whether tiles compute in this dtype.
pub fn is_tiled(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
}
