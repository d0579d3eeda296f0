//! The bias of attention scores by the distance of two positions.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::T5Config;
use crate::embedded::embedded;

/// A learned bias for each head and group of distances, added to attention scores (Raffel et al., 2020,
/// arXiv:1910.10683, section 2.1). Each small distance has its own group; in the other half of the groups, a group
/// holds distances of about the same logarithm.
#[derive(Module, Debug)]
pub(super) struct RelativeBias {
    /// `[buckets, heads]`.
    table: Embedding,
    max_distance: usize,
    both_ways: bool,
}

impl RelativeBias {
    /// In an encoder, positions attend both ways, and half of the groups are for later positions.
    pub fn new(config: &T5Config, both_ways: bool, device: &Device) -> Self {
        let table = EmbeddingConfig::new(config.relative_attention_num_buckets, config.num_heads);
        Self {
            table: table.with_initializer(config.normal(config.d_model)).init(device),
            max_distance: config.relative_attention_max_distance,
            both_ways,
        }
    }

    /// The bias `[1, heads, length, length]`, in the dtype of the table.
    pub fn forward(&self, length: usize, device: &Device) -> Tensor<4> {
        let buckets = self.table.weight.dims()[0];
        let all = (0..length * length).map(|at| (at / length, at % length));
        let groups: Vec<i64> = all
            .map(|(reads, read)| {
                bucket(read as i64 - reads as i64, self.both_ways, buckets, self.max_distance) as i64
            })
            .collect();
        let groups = Tensor::<2, Int>::from_data(TensorData::new(groups, [length, length]), device);
        embedded(&self.table, groups).permute([2, 0, 1]).unsqueeze()
    }
}

/// The group of a distance, which is the key's position minus the query's.
///
/// Computed in f32 like transformers, so that distances at the edge of a group fall into the same group.
fn bucket(distance: i64, both_ways: bool, buckets: usize, max_distance: usize) -> usize {
    let (buckets, first) = match both_ways {
        true => (buckets / 2, if distance > 0 { buckets / 2 } else { 0 }),
        false => (buckets, 0),
    };
    let distance = if both_ways { distance.unsigned_abs() } else { distance.min(0).unsigned_abs() } as usize;
    let exact = buckets / 2;
    if distance < exact {
        return first + distance;
    }
    let share = (distance as f32 / exact as f32).ln() / (max_distance as f64 / exact as f64).ln() as f32;
    let beyond = (share * (buckets - exact) as f32) as usize;
    first + (exact + beyond).min(buckets - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_match_transformers() {
        // `T5Attention._relative_position_bucket` of transformers 5.23 for these distances.
        let distances = [-200, -128, -127, -64, -32, -16, -15, -9, -8, -7, -1, 0, 1, 7, 8, 16, 64, 128, 200];
        let of = |both_ways| distances.map(|distance| bucket(distance, both_ways, 32, 128));
        assert_eq!(of(true), BOTH);
        assert_eq!(of(false), BEFORE);
    }

    const BOTH: [usize; 19] = [15, 15, 15, 14, 12, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31];
    const BEFORE: [usize; 19] = [31, 31, 31, 26, 21, 16, 15, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0];
}
