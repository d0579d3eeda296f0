//! Layer-wise decay of the learning rate: it is smaller for parameters closer to the input.

use std::collections::HashMap;

use burn::module::ParamId;

use crate::Paths;

/// Returns the factor of each parameter's learning rate, as in BEiT: of `n` blocks, the one with index `i` has
/// `decay^(n - i)`, parameters before the blocks have `decay^(n + 1)`, and those after them, the head, have 1.
///
/// Blocks are the elements of the model's lists, in the order of its fields. An `Embedding` counts as before the blocks
/// wherever it is, and parameters between two lists belong to the block before them. A tied parameter counts at its
/// first place. `None` if the model has no blocks.
pub(super) fn scales(paths: &Paths, decay: f64) -> Option<HashMap<ParamId, f64>> {
    let blocks: HashMap<&str, usize> = paths.blocks().zip(0..).collect();
    let count = blocks.len();
    if count == 0 {
        return None;
    }
    let (mut scales, mut met) = (HashMap::new(), 0);
    for place in paths.places() {
        let power = match place.block().and_then(|block| blocks.get(block)) {
            Some(&index) => {
                met = met.max(index + 1);
                count - index
            }
            None if met == 0 || place.holder.contains("Embedding") => count + 1,
            None if met < count => count + 1 - met,
            None => 0,
        };
        scales.entry(place.id).or_insert(decay.powi(power as i32));
    }
    Some(scales)
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;

    #[derive(Module, Debug)]
    struct Model {
        tokens: Embedding,
        project: Linear,
        encoder: Vec<Linear>,
        bridge: Linear,
        decoder: Vec<Linear>,
        positions: Embedding,
        norm: Linear,
        tied: Embedding,
    }

    #[test]
    fn the_rate_falls_from_the_head_to_the_embeddings() {
        let device = Device::flex();
        let linear = || LinearConfig::new(2, 2).with_bias(false).init(&device);
        let tokens = EmbeddingConfig::new(3, 2).init(&device);
        let model = Model {
            tied: tokens.clone(),
            tokens,
            project: linear(),
            encoder: vec![linear(), linear()],
            bridge: linear(),
            decoder: vec![linear()],
            positions: EmbeddingConfig::new(3, 2).init(&device),
            norm: linear(),
        };
        let paths = Paths::of(&model);
        let scales = scales(&paths, 0.5).unwrap();
        let of = |path: &str| scales[&paths.params_matching(path).unwrap()[0]];
        for (path, power) in [
            ("tokens", 4),
            ("project", 4),
            ("positions", 4),
            ("tied", 4),
            ("encoder.0", 3),
            ("encoder.1", 2),
            ("bridge", 2),
            ("decoder.0", 1),
            ("norm", 0),
        ] {
            assert_eq!(of(path), 0.5f64.powi(power), "{path}");
        }
        assert_eq!(super::scales(&Paths::of(&linear()), 0.5), None);
    }
}
