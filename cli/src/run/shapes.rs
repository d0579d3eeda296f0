//! The parameters of a model that is not created: their shapes and blocks, and which of them are trained.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::tensor::Device;
use firebrick::{AnyModel, TrainError};
use firebrick_kernels::fits_fp8;
use firebrick_kernels::packed::Packing;
use firebrick_models::{AnyConfig, drawn_now};
use firebrick_strategies::{Adaptation, Composition, LowRank, ParamPlace, Paths, each_param};

use super::{RunStrategy, recipes};
use crate::RunError;

/// A parameter of the future model. Tied parameters appear once.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shape {
    /// The parameter's first path in the model.
    pub path: String,
    /// The shape of the whole parameter.
    pub shape: Vec<usize>,
    /// The axis that the ranks of a tensor axis divide, if they divide it.
    pub divided: Option<usize>,
    /// Whether the parameter belongs to a single block, which segments treat by itself.
    pub in_block: bool,
    /// Whether this block is the last one of the model, which a forward pass runs last.
    pub in_last_block: bool,
    /// Whether it computes the logits behind the last block.
    pub computes_logits: bool,
    /// Whether it is outside blocks and each rank of a tensor axis reads it at its own positions.
    pub at_own_positions: bool,
    /// Whether it is a LoRA factor, or the magnitudes of DoRA.
    pub is_factor: bool,
    /// Whether the parameter is trained.
    pub is_trained: bool,
    /// Whether the product by the parameter, or by the matrix of a factor, has a gradient of it: a dropout on the input of factors
    /// makes another product of these.
    pub learns_in_product: bool,
    /// How the parameter is packed, if a strategy packs it.
    pub packing: Option<Packing>,
}

impl Shape {
    /// Returns whether the parameter is a weight that its block multiplies by in 8 bits under `Amp(fp8)`. The trial of a run says
    /// which these are; here it is what stands in a block and has two axes that fit.
    pub fn is_linear_in_fp8(&self) -> bool {
        self.in_block && <[usize; 2]>::try_from(&self.shape[..]).is_ok_and(fits_fp8)
    }

    /// Returns the shape that each of so many ranks of a tensor axis holds.
    pub fn of_share(&self, ranks: usize) -> Self {
        let mut share = self.clone();
        if let Some(axis) = self.divided {
            // Of a vocabulary, the first rank has a token more than others.
            share.shape[axis] = share.shape[axis].div_ceil(ranks);
        }
        share
    }

    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }
}

/// Returns the parameters of the whole model, and the factors that these strategies attach to them, without drawing any
/// parameter of the whole model.
///
/// # Errors
///
/// The strategies do not fit the model.
pub(crate) fn shapes(
    config: &AnyConfig,
    strategies: &[RunStrategy],
    fresh: &[String],
) -> Result<Vec<Shape>, RunError> {
    let whole = config.init(&Device::flex());
    let mut shapes = HashMap::new();
    each_param(&whole, |param| {
        shapes.insert(param.id(), param.shape());
    });
    let plan = whole.tensor_plan();
    let axes = plan.axes(&whole).map_err(TrainError::from)?;
    let logits = plan.of_logits(&Paths::of(&whole)).map_err(TrainError::from)?;
    let own = plan.read_at_own_positions(&Paths::of(&whole)).map_err(TrainError::from)?;
    let [mut of_logits, mut at_own] = [HashSet::new(), HashSet::new()];
    let mut divided = HashMap::new();
    let whole: HashMap<String, Vec<usize>> = Paths::of(&whole)
        .places()
        .iter()
        .inspect(|place| divided.extend(axes.get(&place.id).map(|axis| (place.path.clone(), *axis))))
        .inspect(|place| of_logits.extend(logits.contains(&place.id).then(|| place.path.clone())))
        .inspect(|place| at_own.extend(own.contains(&place.id).then(|| place.path.clone())))
        .map(|place| (place.path.clone(), shapes[&place.id].clone()))
        .collect();
    let mut adaptation = Adaptation::default().with_fresh(fresh);
    let skeleton = skeleton(config, &Device::flex().autodiff());
    let adapted = recipes(strategies).adapt(skeleton, &mut adaptation)?;
    let paths = Paths::of(&adapted);
    let trained: HashSet<ParamId> =
        firebrick_strategies::trained(&adapted).into_iter().map(|one| one.id).collect();
    let shape_of = |place: &ParamPlace| match (&place.reparameterizes, adaptation.low_rank()) {
        (Some(matrix), Some(LowRank { rank, .. })) => {
            let shape = &whole[matrix];
            let to = shape[shape.len() - 1];
            match place.path.rsplit_once('.') {
                Some((_, "a")) => vec![shape[0], rank],
                Some((_, "b")) => vec![rank, to],
                _ => vec![to],
            }
        }
        _ => whole[&place.path].clone(),
    };
    let divided_axis = |place: &ParamPlace| match (&place.reparameterizes, adaptation.shared_axis(place.id)) {
        (Some(matrix), Some(shared)) => {
            divided.get(matrix).filter(|axis| **axis == shared.of_matrix).map(|_| shared.axis)
        }
        _ => divided.get(&place.path).copied(),
    };
    let blocks: Vec<&str> = paths.blocks().collect();
    let block_of = |path: &str| {
        blocks.iter().position(|block| path.strip_prefix(*block).is_some_and(|rest| rest.starts_with('.')))
    };
    let packed: HashMap<ParamId, Packing> =
        adaptation.quantized().map(|(id, matrix)| (id, matrix.packing())).collect();
    // A parameter that is tied across places belongs to no block.
    let mut homes: HashMap<ParamId, HashSet<Option<usize>>> = HashMap::new();
    for place in paths.places() {
        homes.entry(place.id).or_default().insert(block_of(&place.path));
    }
    let mut seen = HashSet::new();
    let home_of = |id: ParamId| {
        let homes = homes.get(&id).filter(|homes| homes.len() == 1)?;
        homes.iter().next().copied().flatten()
    };
    let places = paths.places().iter().filter(|place| seen.insert(place.id));
    let shapes = places.map(|place| {
        let block = home_of(place.id);
        Shape {
            path: place.path.clone(),
            shape: shape_of(place),
            divided: divided_axis(place),
            in_block: block.is_some(),
            in_last_block: block.is_some_and(|block| block + 1 == blocks.len()),
            computes_logits: of_logits.contains(&place.path),
            at_own_positions: block.is_none() && at_own.contains(&place.path),
            is_factor: place.reparameterizes.is_some(),
            is_trained: trained.contains(&place.id),
            learns_in_product: trained.contains(&place.id)
                && (place.reparameterizes.is_none() || adaptation.dropout() == 0.0),
            packing: packed.get(&place.id).copied(),
        }
    });
    Ok(shapes.collect())
}

/// The most blocks a run may have before it is rejected for its size.
pub(super) const MOST_LAYERS: usize = 2000;

/// Creates a model with the same parts under the same names, but the smallest parameters.
pub(crate) fn skeleton(config: &AnyConfig, device: &Device) -> AnyModel {
    let layers = config.layers().min(MOST_LAYERS);
    drawn_now(config.smallest().with_layers(layers).init(device))
}

/// Returns the number of parameters of a model without drawing any, as a float because the shape may be impossible.
pub(crate) fn parameters(config: &AnyConfig) -> f64 {
    let [one, two] = of_layers(config);
    one + (config.layers() as f64 - 1.0) * (two - one)
}

/// Returns how many of these belong to no block: embeddings, the final norm and the head.
pub(super) fn outside_blocks(config: &AnyConfig) -> f64 {
    let [one, two] = of_layers(config);
    one - (two - one)
}

/// Returns the number of parameters of a model with one layer, and with two.
fn of_layers(config: &AnyConfig) -> [f64; 2] {
    [1, 2].map(|layers| config.with_layers(layers).init(&Device::flex()).num_params() as f64)
}
