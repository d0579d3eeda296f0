//! Assigns tensors to files, as Hugging Face shards a model.

use std::collections::BTreeMap;

use serde::Serialize;

/// Splits tensors, given by their bytes, into shards of at most `most` bytes each, in order. A larger tensor gets
/// its own shard, after the completed shards and before the one in progress, like
/// `huggingface_hub.split_torch_state_dict_into_shards`.
pub(super) fn cut(bytes: &[u64], most: Option<u64>) -> Vec<Vec<usize>> {
    let Some(most) = most else { return vec![(0..bytes.len()).collect()] };
    let (mut shards, mut current, mut held) = (Vec::new(), Vec::new(), 0u64);
    for (tensor, &bytes) in bytes.iter().enumerate() {
        if bytes > most {
            shards.push(vec![tensor]);
            continue;
        }
        if bytes > most - held {
            shards.push(std::mem::take(&mut current));
            held = 0;
        }
        current.push(tensor);
        held += bytes;
    }
    if !current.is_empty() || shards.is_empty() {
        shards.push(current);
    }
    shards
}

/// Returns the name of a shard of the model `STEM.safetensors`.
pub(super) fn shard_name(stem: &str, shard: usize, shards: usize) -> String {
    format!("{stem}-{:05}-of-{shards:05}.safetensors", shard + 1)
}

/// The index of shards, `STEM.safetensors.index.json`.
#[derive(Debug, Serialize)]
pub(super) struct Index<'a> {
    metadata: Metadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    total_size: u64,
}

impl<'a> Index<'a> {
    pub(super) fn new(total_size: u64, weight_map: BTreeMap<&'a str, &'a str>) -> Self {
        Self { metadata: Metadata { total_size }, weight_map }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_cut_as_hugging_face_does() {
        assert_eq!(cut(&[4, 4, 4], None), [vec![0, 1, 2]]);
        assert_eq!(cut(&[4, 4, 4], Some(8)), [vec![0, 1], vec![2]]);
        assert_eq!(cut(&[4, 4, 4], Some(12)), [vec![0, 1, 2]]);
        // Too large for any shard: alone, while the current shard continues.
        assert_eq!(cut(&[4, 9, 4, 1], Some(8)), [vec![1], vec![0, 2], vec![3]]);
        assert_eq!(cut(&[u64::MAX, 1], Some(u64::MAX)), [vec![0], vec![1]]);
        assert_eq!(cut(&[9, 9], Some(8)), [vec![0], vec![1]]);
        assert_eq!(cut(&[], Some(8)), [vec![0usize; 0]]);
        assert_eq!(shard_name("model", 0, 3), "model-00001-of-00003.safetensors");
    }
}
