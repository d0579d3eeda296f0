//! The tensors of a checkpoint by name, and the part of each that this rank writes.

use std::collections::{BTreeMap, HashMap};

use burn::module::{Module, ParamId};
use firebrick_checkpoints::PackedMatrices;
use firebrick_strategies::{PackedBase, Paths, Shard, Stages, each_param};
use firebrick_world::Communicator;

/// The float parameters of a master, each once, with the names and parts that checkpoints use.
#[derive(Debug)]
pub(crate) struct Layout {
    parameters: HashMap<ParamId, Place>,
    /// The other paths of tied parameters, with the path that each is saved under.
    pub aliases: BTreeMap<String, String>,
    /// The factor that scales the product of an adapted matrix's low-rank factors, if there are any.
    pub lora_scale: Option<f64>,
    /// The values of packed matrices, which are saved in place of their placeholders.
    bases: HashMap<ParamId, PackedBase>,
}

/// The path of a parameter, and which rank writes it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The path; the first one for a tied parameter.
    pub path: String,
    /// The number of axes.
    pub axes: usize,
    /// This rank's shard, if the ranks shard the parameter.
    pub shard: Option<Shard>,
    /// Whether this rank writes a parameter that all ranks hold in full.
    pub writes_whole: bool,
}

impl Layout {
    /// Creates the layout of a run's master. Parameters that all ranks hold in full are distributed among the ranks,
    /// so that each rank writes about the same number of bytes.
    pub fn of<M: Module>(master: &M, stages: &mut Stages<M>, world: &Communicator) -> Self {
        let mut sizes = Vec::new();
        each_param(master, |param| sizes.push((param.id(), param.shape().len(), param.bytes())));
        let paths = Paths::of(master);
        let (mut parameters, mut aliases) = (HashMap::<ParamId, Place>::new(), BTreeMap::new());
        let mut written = vec![0usize; world.size()];
        for (place, (id, axes, bytes)) in paths.places().iter().zip(sizes) {
            if let Some(first) = parameters.get(&id) {
                aliases.insert(place.path.clone(), first.path.clone());
                continue;
            }
            let shard = stages.shard(id);
            let writer = match &shard {
                Some(_) => None,
                None => (0..written.len()).min_by_key(|rank| written[*rank]),
            };
            if let Some(rank) = writer {
                written[rank] += bytes.max(1);
            }
            let writes_whole = writer == Some(world.rank());
            parameters.insert(id, Place { path: place.path.clone(), axes, shard, writes_whole });
        }
        Self { parameters, aliases, lora_scale: None, bases: HashMap::new() }
    }

    /// Sets the scale of the low-rank factors' product.
    pub fn scaling(self, lora_scale: Option<f64>) -> Self {
        Self { lora_scale, ..self }
    }

    /// Sets the packed matrices.
    pub fn packing(self, bases: HashMap<ParamId, PackedBase>) -> Self {
        Self { bases, ..self }
    }

    /// Returns where the values of a parameter are, if it is packed.
    pub fn base(&self, id: ParamId) -> Option<&PackedBase> {
        self.bases.get(&id)
    }

    /// Returns what a manifest says about the packed matrices, if there are any.
    pub fn packed(&self) -> Option<PackedMatrices> {
        let matrices = self.bases.iter().filter_map(|(id, base)| Some((self.place(*id)?, base.get()?)));
        let matrices: Vec<_> = matrices.collect();
        let packing = matrices.first()?.1.packing();
        let shapes = matrices.iter().map(|(place, matrix)| (place.path.clone(), matrix.shape())).collect();
        Some(PackedMatrices {
            bits: packing.bits(),
            block: packing.block(),
            values: packing.values(),
            shapes,
        })
    }

    pub fn place(&self, id: ParamId) -> Option<&Place> {
        self.parameters.get(&id)
    }

    /// All places, in no particular order.
    pub fn places(&self) -> impl Iterator<Item = (ParamId, &Place)> {
        self.parameters.iter().map(|(id, place)| (*id, place))
    }
}

impl Place {
    /// Whether this rank writes any part of the parameter.
    pub fn is_written(&self) -> bool {
        match &self.shard {
            Some(shard) => shard.copy == 0 && !shard.rows.is_empty(),
            None => self.writes_whole,
        }
    }

    /// Whether this rank writes the scalars that belong to the whole parameter; exactly one rank does.
    pub fn writes_scalars(&self) -> bool {
        match &self.shard {
            Some(shard) => self.is_written() && shard.rows.start == 0,
            None => self.writes_whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use firebrick_strategies::{Composition, Setup, Zero};

    use super::*;
    use crate::testing::on_ranks;

    /// A model with two places for one layer, and one place for another.
    fn model() -> (Vec<Linear>, Linear) {
        let device = burn::tensor::Device::flex().autodiff();
        let tied = LinearConfig::new(64, 64).init(&device);
        (vec![tied.clone(), tied], LinearConfig::new(32, 8).init(&device))
    }

    #[test]
    fn a_tied_parameter_is_saved_once_under_its_first_path() {
        let model = model();
        let layout = Layout::of(&model, &mut Stages::none(), &Communicator::solo());
        let mut paths: Vec<_> = layout.places().map(|(_, place)| place.path.as_str()).collect();
        paths.sort();
        assert_eq!(paths, ["0.0.bias", "0.0.weight", "1.bias", "1.weight"]);
        let alias = |name: &str| layout.aliases[&format!("0.1.{name}")].clone();
        assert_eq!([alias("weight"), alias("bias")], ["0.0.weight", "0.0.bias"]);
        assert!(layout.places().all(|(_, place)| place.is_written() && place.writes_scalars()));
    }

    #[test]
    fn ranks_write_each_byte_once_and_about_as_many_each() {
        let written = on_ranks(3, |world| {
            let model = model();
            let device = model.1.devices()[0].clone();
            let mut setup = Setup::new(&model, &device).among(world.clone());
            let mut stages = Zero::stage(1).replicate_below(1000).start(&mut setup).unwrap();
            let layout = Layout::of(&model, &mut stages, &world);
            let mut rows: Vec<_> = layout
                .places()
                .filter(|(_, place)| place.is_written())
                .map(|(_, place)| (place.path.clone(), place.shard.clone().map(|shard| shard.rows)))
                .collect();
            rows.sort_by(|a, b| a.0.cmp(&b.0));
            rows
        });
        let whole: Vec<_> = written.iter().flatten().filter(|(_, rows)| rows.is_none()).collect();
        assert_eq!(whole.len(), 3, "each small one by one rank: {written:?}");
        let of_sharded = |rank: usize| written[rank].iter().find_map(|(_, rows)| rows.clone()).unwrap();
        assert_eq!([of_sharded(0), of_sharded(1), of_sharded(2)], [0..22, 22..44, 44..64]);
        assert!(written.iter().all(|rank| rank.len() == 2), "{written:?}");
    }
}
