//! Attaches the factors and freezes other parameters.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Param, ParamId, Reparameterizer};
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::factors::{InputDropout, LoraFactors, dense, norms};
use super::start::Start;
use crate::{Adaptation, FactorValues, LowRank, PackedBase, SharedAxis};
use firebrick_kernels::{Draws, cast};

/// Separates the factors' random numbers from others with the run's seed.
const SITE: u64 = 0x4c6f_5241;

/// Attaches factors to matrices, and freezes the parameters that are not trained.
pub(super) struct Attach<'a> {
    low_rank: LowRank,
    targets: HashSet<ParamId>,
    also: HashSet<ParamId>,
    /// Those of the targets whose factors have no input to drop.
    undropped: HashSet<ParamId>,
    adaptation: &'a mut Adaptation,
    /// A tied matrix has one pair of factors.
    done: HashMap<ParamId, LoraFactors>,
    start: Start,
    /// The parameters that have taken values of the start: a tied one is the same at all of its places.
    started: HashMap<ParamId, Box<dyn Any>>,
}

impl<'a> Attach<'a> {
    pub fn new(
        low_rank: LowRank,
        (targets, also, undropped): (HashSet<ParamId>, HashSet<ParamId>, HashSet<ParamId>),
        adaptation: &'a mut Adaptation,
    ) -> Self {
        let (done, start, started) = (HashMap::new(), Start::default(), HashMap::new());
        Self { low_rank, targets, also, undropped, adaptation, done, start, started }
    }

    /// Takes these values, where there are any, instead of new ones.
    pub fn starting_from(self, start: Start) -> Self {
        Self { start, ..self }
    }

    /// Gives a parameter its value of the start, if there is one.
    fn started<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if let Some(started) =
            self.started.get(&id).and_then(|param| param.downcast_ref::<Param<Tensor<D>>>())
        {
            return started.clone();
        }
        let Some(data) = self.start.values.remove(&id) else { return param };
        let param = param.map(|old| {
            let new = Tensor::from_data(data, (&old.device(), old.dtype()));
            new.set_require_grad(old.is_require_grad())
        });
        // The places of a tied parameter share one leaf.
        let param = if self.also.contains(&id) { self.adaptation.train(param) } else { param };
        self.started.insert(id, Box::new(param.clone()));
        param
    }

    /// Creates the factors of a matrix `[in, out]`, in its dtype.
    fn factors<const D: usize>(&mut self, path: &str, matrix: &Param<Tensor<D>>) -> LoraFactors {
        let LowRank { rank, dora, .. } = self.low_rank;
        let shape = matrix.lazy_shape();
        let [from, to] = [shape[0], shape[D - 1]];
        let device = matrix.lazy_device();
        let values = match self.start.factors.get(&matrix.id) {
            Some(values) => values.clone(),
            None => {
                let key = Draws::mix(self.adaptation.seed(), SITE);
                let key = path.bytes().fold(key, |key, byte| Draws::mix(key, byte.into()));
                let a = uniform(key, from * rank, 1.0 / (from as f32).sqrt());
                let (a, b) = (TensorData::new(a, [from, rank]), vec![0.0f32; rank * to]);
                FactorValues { a, b: TensorData::new(b, [rank, to]), magnitude: None }
            }
        };
        // The factors live as long as the model does.
        let (a, b, magnitude) =
            device.memory_persistent_allocations(values, |FactorValues { a, b, magnitude }| {
                // Without a start, B is 0: the norms of the matrix are those of the sum.
                let given = magnitude.map(|values| param(values, matrix));
                let magnitude = given.or_else(|| dora.then(|| magnitude_of(matrix)));
                (param(a, matrix), param(b, matrix), magnitude)
            });
        let mut shares = |factor: ParamId, axis, of_matrix| {
            let matrix = matrix.id;
            self.adaptation.attach_factor(factor, SharedAxis { matrix, of_matrix, axis });
        };
        shares(a.id, 0, 0);
        shares(b.id, 1, D - 1);
        magnitude.iter().for_each(|magnitude| shares(magnitude.id, 0, D - 1));
        let prob = self.adaptation.dropout();
        let drops = prob > 0.0 && !self.undropped.contains(&matrix.id);
        let dropout = drops.then(|| InputDropout::new(prob, path, self.adaptation.read_whole().clone()));
        LoraFactors { a, b, scale: self.low_rank.scale(), magnitude, base: PackedBase::default(), dropout }
    }
}

/// Creates a parameter of the norms of a matrix's columns, in its dtype.
fn magnitude_of<const D: usize>(matrix: &Param<Tensor<D>>) -> Param<Tensor<1>> {
    let base = matrix.base();
    let (device, to) = (base.device(), base.dims()[D - 1]);
    let dtype = Some(base.dtype()).filter(DType::is_float).map_or(FloatDType::F32, FloatDType::from);
    let norms = cast(norms(dense(base.inner(), dtype)).reshape([to]), dtype);
    Param::from_tensor(match device.gradient_checkpointing_strategy() {
        None => norms,
        Some(strategy) => Tensor::from_inner(norms).with_gradient_checkpointing_strategy(strategy),
    })
}

/// Creates a parameter on the device of a matrix, in its dtype.
fn param<const D: usize, const N: usize>(values: TensorData, matrix: &Param<Tensor<D>>) -> Param<Tensor<N>> {
    let device = matrix.lazy_device();
    let dtype = matrix.is_initialized().then(|| matrix.base().dtype());
    Param::from_tensor(match dtype.filter(DType::is_float) {
        Some(dtype) => Tensor::from_data(values, (&device, dtype)),
        // A quantized matrix has no float dtype, and a lazy one has no dtype yet: use the device's default.
        None => Tensor::from_data(values, &device),
    })
}

impl Reparameterizer for Attach<'_> {
    type Reparam = LoraFactors;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraFactors>) {
        let id = param.id;
        let param = self.started(param);
        if self.also.contains(&id) {
            return (self.adaptation.train(param), None);
        }
        if !self.targets.contains(&id) {
            return (self.adaptation.freeze(param), None);
        }
        let factors = match self.done.get(&id) {
            Some(done) => done.clone(),
            None => {
                let factors = self.factors(path, &param);
                LoraFactors { base: self.adaptation.base_of(id), ..factors }
            }
        };
        self.done.insert(id, factors.clone());
        (self.adaptation.freeze(param), Some(factors))
    }
}

/// Returns numbers within plus or minus `bound`, each a function of the key and its index.
fn uniform(key: u64, count: usize, bound: f32) -> Vec<f32> {
    const STEPS: f32 = (1u64 << 24) as f32;
    let of = |at: usize| (Draws::mix(key, at as u64) >> 40) as f32 / STEPS * 2.0 - 1.0;
    (0..count).map(|at| of(at) * bound).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly_and_depend_on_the_key() {
        let numbers = uniform(7, 10_000, 0.5);
        assert!(numbers.iter().all(|x| (-0.5..0.5).contains(x)));
        let mean = numbers.iter().sum::<f32>() / 1e4;
        let square = numbers.iter().map(|x| x * x).sum::<f32>() / 1e4;
        // A uniform number within ±b has mean 0 and variance b²/3; checked to 5 standard deviations.
        assert!(mean.abs() < 0.0145 && (square - 1.0 / 12.0).abs() < 0.004, "{mean} {square}");
        assert_eq!(numbers, uniform(7, 10_000, 0.5));
        assert_ne!(numbers, uniform(8, 10_000, 0.5));
    }
}
