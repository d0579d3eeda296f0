//! What only a DeBERTa computes: the part of attention's scores that depends on the distance between two tokens, and the
//! convolution beside its first block.

use burn::module::{Initializer, Module, Param};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use firebrick_kernels::{cast, embedding, linear};
use firebrick_strategies::{Bundle, Dropout, Pass, TensorMap};

use super::BertConfig;
use super::deberta::{Convolved, Relative};
use crate::attention::split_heads;
use crate::ragged::Tokens;
use crate::vocabulary::embedded;
use crate::{Activation, Linear, Norm};

/// The embeddings of the distances between tokens, which all blocks read.
#[derive(Module, Debug)]
pub(super) struct Distances {
    /// `[2 * span, hidden_size]`.
    table: Embedding,
    norm: Option<Norm>,
    #[module(skip)]
    relative: Relative,
}

/// The distances between the tokens of a batch, whose longest row has `L` tokens. The distance of a query from a key is its
/// position minus the key's.
#[derive(Clone)]
pub(super) struct Apart {
    /// Embeddings of the groups of distances that occur, `[groups, hidden_size]`.
    embeddings: Tensor<2>,
    /// The group of each distance, `[1, 2L]`, from the largest to the smallest, which occurs twice. This is the order of the
    /// keys that a query reads.
    falling: Tensor<2, Int>,
    /// The same from the smallest to the largest, which occurs twice. This is the order of the queries that read a key.
    rising: Tensor<2, Int>,
    /// The place of each token of the padded rows among the computed tokens, `[rows, L]`, if padding is dropped.
    places: Option<Tensor<2, Int>>,
}

impl Bundle for Apart {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        Self {
            embeddings: self.embeddings.map_tensors(map),
            falling: self.falling.map_tensors(map),
            rising: self.rising.map_tensors(map),
            places: self.places.map_tensors(map),
        }
    }
}

impl Distances {
    pub fn new(config: &BertConfig, relative: Relative, device: &Device) -> Self {
        let table = EmbeddingConfig::new(2 * relative.span(), config.hidden_size);
        Self {
            table: table.with_initializer(config.normal()).init(device),
            norm: relative.is_normed.then(|| config.norm(config.hidden_size, device)),
            relative,
        }
    }

    /// The distances within the rows of these tokens, the longest of which has `length`.
    pub fn of(&self, tokens: &Tokens, length: usize, pass: &Pass) -> Apart {
        let (most, device) = (length as i64 - 1, pass.device());
        let row = |distance: i64| self.relative.row(distance.clamp(-most, most)) as i64;
        let (first, last) = (row(-most), row(most));
        let groups = |distances: Vec<i64>| {
            let groups: Vec<i64> = distances.into_iter().map(|distance| row(distance) - first).collect();
            Tensor::<2, Int>::from_data(TensorData::new(groups, [1, 2 * length]), device)
        };
        let found = Tensor::<1, Int>::arange(first..last + 1, device).unsqueeze::<2>();
        let found = embedded(&self.table, found).squeeze_dim::<2>(0);
        let found = match &self.norm {
            Some(norm) => norm.forward(found),
            None => found,
        };
        Apart {
            embeddings: cast(found, pass.dtype()),
            falling: groups((-most - 1..=most).rev().collect()),
            rising: groups((-most..=most + 1).collect()),
            places: tokens.padded_places(device),
        }
    }
}

/// Computes the scores of contents with distances (He et al., 2021, arXiv:2006.03654, section 3.1).
#[derive(Module, Debug)]
pub(super) struct Disentangled {
    /// From distances to keys, unless it is that of contents.
    key: Option<Linear>,
    /// From distances to queries, unless it is that of contents.
    query: Option<Linear>,
    heads: usize,
    #[module(skip)]
    relative: Relative,
}

impl Disentangled {
    pub fn new(config: &BertConfig, relative: Relative, device: &Device) -> Self {
        let own = |is_read: bool| {
            let width = config.hidden_size;
            (is_read && !relative.is_shared).then(|| config.linear(width, width, device))
        };
        Self {
            key: own(relative.with_keys),
            query: own(relative.with_queries),
            heads: config.num_attention_heads,
            relative,
        }
    }

    /// The scores that are added to those of queries and keys, `[rows, heads, L, L]`, or `None` if there are none.
    ///
    /// `query` and `key` are `[batch, length, width]`, and `layers` projected them; `scale` is the factor of all scores.
    pub fn bias(
        &self,
        [query, key]: [Tensor<3>; 2],
        layers: [&Linear; 2],
        apart: Apart,
        scale: f64,
    ) -> Option<Tensor<4>> {
        let contents = |x: Tensor<3>| {
            let rows = match &apart.places {
                Some(places) => embedding(x.squeeze_dim::<2>(0), places.clone()),
                None => x,
            };
            split_heads(rows, self.heads)
        };
        // [groups, width] -> [1, heads, size, 2L]
        let distances = |own: &Option<Linear>, shared: &Linear, groups: Tensor<2, Int>| {
            let found = own.as_ref().unwrap_or(shared).forward_undropped(apart.embeddings.clone()) * scale;
            split_heads(embedding(found, groups), self.heads).swap_dims(2, 3)
        };
        let [of_query, of_key] = layers;
        let with_keys = self.relative.with_keys.then(|| {
            let keys = distances(&self.key, of_key, apart.falling.clone());
            by_distance(contents(query).matmul(keys))
        });
        let with_queries = self.relative.with_queries.then(|| {
            let queries = distances(&self.query, of_query, apart.rising.clone());
            by_distance(contents(key).matmul(queries)).swap_dims(2, 3)
        });
        match (with_keys, with_queries) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        }
    }
}

/// Turns scores of `L` positions with `2L` distances, `[rows, heads, L, 2L]`, into scores with `L` positions: position `i`
/// keeps the `L` distances from `L - 1 - i` on. In rows that are one place shorter, these start at the same column, so
/// nothing has to be gathered.
fn by_distance(scores: Tensor<4>) -> Tensor<4> {
    let [rows, heads, length, twice] = scores.dims();
    let shifted = scores.reshape([rows, heads, length * twice]).narrow(2, length - 1, length * (twice - 1));
    shifted.reshape([rows, heads, length, twice - 1]).narrow(3, 0, length)
}

/// Mixes the embeddings of neighbouring tokens, and adds them to the hidden states of the first block: the nGram induced
/// encoding of DeBERTa v2 (He et al., 2021, arXiv:2006.03654), as transformers' `ConvLayer` computes it.
#[derive(Module, Debug)]
pub(super) struct Convolution {
    /// `[hidden_size, hidden_size, kernel]`, of outputs and inputs.
    weight: Param<Tensor<3>>,
    /// `[hidden_size]`.
    bias: Param<Tensor<1>>,
    norm: Norm,
    dropout: Dropout,
    #[module(skip)]
    activation: Activation,
}

impl Convolution {
    pub fn new(config: &BertConfig, convolved: &Convolved, device: &Device) -> Self {
        let width = config.hidden_size;
        Self {
            weight: config.normal().init([width, width, convolved.kernel], device),
            bias: Initializer::Zeros.init([width], device),
            norm: config.norm(width, device),
            dropout: Dropout::new(config.hidden_dropout_prob),
            activation: convolved.activation,
        }
    }

    /// `embeddings` and `states` are `[batch, length, hidden_size]`, of the shape of `tokens`; so is the result. Padding
    /// counts as 0.
    pub fn forward(
        &self,
        embeddings: Tensor<3>,
        states: Tensor<3>,
        tokens: &Tokens,
        pass: &Pass,
    ) -> Tensor<3> {
        let [batch, length, width] = embeddings.dims();
        let weight = self.weight.val();
        let kernel = weight.dims()[2];
        let places: Tensor<2, Int> = tokens.neighbours(kernel / 2, &embeddings.device());
        let flat = embeddings.flatten::<2>(0, 1);
        let nothing = flat.clone().narrow(0, 0, 1).zeros_like();
        let read = embedding(Tensor::cat(vec![flat, nothing], 0), places);
        let read = read.reshape([batch, length, kernel * width]);
        // [out, in, kernel] -> [kernel * in, out]
        let weight = weight.permute([2, 1, 0]).reshape([kernel * width, width]);
        // As other layers, it computes in the dtype of its weights.
        let (of_input, own) = (FloatDType::from(read.dtype()), FloatDType::from(weight.dtype()));
        let mixed = linear(cast(read, own), weight, Some(cast(self.bias.val(), own)));
        let mixed = self.activation.forward(self.dropout.forward(cast(mixed, of_input), pass));
        self.norm.of_sum(states, mixed).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// The scores are `10 · position + place`.
    #[test]
    fn each_position_keeps_the_scores_of_its_own_distances() {
        let scores: Vec<f32> =
            (0..3).flat_map(|row| (0..6).map(move |place| (10 * row + place) as f32)).collect();
        let scores = Tensor::<4>::from_data(TensorData::new(scores, [1, 1, 3, 6]), &testing::device());
        let found: Vec<f32> = by_distance(scores).into_data().iter().collect();
        assert_eq!(found, [2.0, 3.0, 4.0, 11.0, 12.0, 13.0, 20.0, 21.0, 22.0]);
    }
}
