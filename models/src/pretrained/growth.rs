//! Tensors with more rows than a folder has, for a tokenizer with more tokens.

use burn::tensor::DType;
use burn_pack::{Bytes, Tensor as StoredTensor};

/// A vocabulary that is larger than that of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Growth {
    /// Number of tokens in the folder.
    pub from: usize,
    /// Number of tokens of the model.
    pub to: usize,
}

impl Growth {
    /// Whether a tensor of the first shape has a row for each token, and misses only those of new tokens to have the
    /// second shape.
    pub fn lacks(self, found: &[usize], expected: &[usize]) -> bool {
        let Self { from, to } = self;
        match (found, expected) {
            ([1, found], [1, expected]) => (*found, *expected) == (from, to),
            ([found, of_found @ ..], [expected, of_expected @ ..]) => {
                (*found, *expected) == (from, to) && of_found == of_expected
            }
            _ => false,
        }
    }

    /// Returns an f32 tensor with the rows of new tokens.
    ///
    /// As in the `resize_token_embeddings` of transformers, each is the mean of the given rows, so that a new token is
    /// about as likely as the others (Hewitt, 2021, <https://nlp.stanford.edu/~johnhew/vocab-expansion.html>).
    /// transformers draws them around the mean with a billionth of the covariance of the given rows, which is not
    /// repeated here. BART's bias of logits, which has one row for all tokens, is 0 for new ones, as there.
    pub fn grow(self, tensor: StoredTensor) -> StoredTensor {
        let Self { from, to } = self;
        let (name, param) = (tensor.name.clone(), tensor.param_id);
        let mut shape = tensor.shape.to_vec();
        let is_one_row = matches!(shape[..], [1, _]);
        let width: usize = if is_one_row { 1 } else { shape[1..].iter().product() };
        shape[usize::from(is_one_row)] = to;
        StoredTensor::deferred(name, DType::F32, shape, param, to * width * size_of::<f32>(), move || {
            let bytes = tensor.to_bytes()?;
            let row = if is_one_row { vec![0.0] } else { mean_row(&bytes, width) };
            let row: Vec<u8> = row.iter().flat_map(|number| number.to_le_bytes()).collect();
            let mut all = Vec::with_capacity(bytes.len() + (to - from) * row.len());
            all.extend_from_slice(&bytes);
            (from..to).for_each(|_| all.extend_from_slice(&row));
            Ok(Bytes::from_bytes_vec(all))
        })
    }
}

/// The mean of the rows of f32 numbers.
fn mean_row(bytes: &[u8], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for (at, number) in bytes.chunks_exact(size_of::<f32>()).enumerate() {
        sums[at % width] += f64::from(f32::from_le_bytes([number[0], number[1], number[2], number[3]]));
    }
    let rows = (bytes.len() / (width * size_of::<f32>())).max(1) as f64;
    sums.into_iter().map(|sum| (sum / rows) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROWTH: Growth = Growth { from: 3, to: 5 };

    fn grown(numbers: &[f32], shape: &[usize]) -> (Vec<usize>, Vec<f32>) {
        let bytes = Bytes::from_bytes_vec(numbers.iter().flat_map(|number| number.to_le_bytes()).collect());
        let tensor = GROWTH.grow(StoredTensor::new("x".into(), DType::F32, shape.to_vec(), None, bytes));
        let shape = tensor.shape.to_vec();
        let bytes = tensor.into_bytes().unwrap();
        (shape, bytes.chunks(4).map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect())
    }

    #[test]
    fn new_rows_are_the_mean_of_the_others() {
        let (shape, numbers) = grown(&[1.0, -2.0, 2.0, 0.0, 6.0, 5.0], &[3, 2]);
        assert_eq!((shape, numbers), (vec![5, 2], vec![1.0, -2.0, 2.0, 0.0, 6.0, 5.0, 3.0, 1.0, 3.0, 1.0]));
        assert_eq!(grown(&[1.0, 2.0, 6.0], &[3]), (vec![5], vec![1.0, 2.0, 6.0, 3.0, 3.0]));
        assert_eq!(grown(&[1.0, 2.0, 6.0], &[1, 3]), (vec![1, 5], vec![1.0, 2.0, 6.0, 0.0, 0.0]));
    }

    #[test]
    fn only_rows_of_tokens_are_added() {
        for (found, expected) in [(&[3, 2][..], &[5, 2][..]), (&[3], &[5]), (&[1, 3], &[1, 5])] {
            assert!(GROWTH.lacks(found, expected), "{found:?}");
        }
        for (found, expected) in
            [(&[3, 2][..], &[5, 3][..]), (&[2, 3], &[2, 5]), (&[4], &[5]), (&[3], &[6]), (&[], &[])]
        {
            assert!(!GROWTH.lacks(found, expected), "{found:?}");
        }
    }
}
