//! Tests whether an optimizer updates each element of a parameter on its own, as updating a shard requires.
//!
//! An optimizer does not declare this, so it is tested: one copy updates a few made-up rows of each parameter as a
//! whole, and two other copies update half of the rows each. If the halves together differ from the whole in any bit,
//! the update of an element depends on others: on the norm of its row, of its matrix, or on the whole matrix.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData, TensorReadError};
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{Paths, each_distinct_param};

use crate::TrainError;
use crate::engine::dry_run::{Caught, caught};

/// Rows of the made-up parameters, with one axis and with several. A half fills whole vectors of the processor, so that
/// the same instructions compute every element.
const ROWS: [usize; 2] = [64, 4];
/// Columns of a made-up matrix.
const COLUMNS: usize = 16;
/// Updates to compare. Before the first, many optimizers have no history.
const UPDATES: usize = 3;
const RATE: f64 = 0.01;

/// Refuses an optimizer that cannot update shards, on the device of the updates.
///
/// # Errors
///
/// [`TrainError::NotElementwise`], with the first parameter whose update is not elementwise. [`TrainError::Device`] if the
/// device has failed, as when a kernel of the update does not compile, and [`TrainError::TrialUpdate`] if an update panicked.
pub(crate) fn require_elementwise<M: Module>(
    model: &M,
    optimizer: &ModelOptimizer,
    device: &Device,
) -> Result<(), TrainError> {
    let device = device.clone().inner();
    let updated = |part| match caught(|| updated(model, optimizer.clone(), part, &device)) {
        Ok(values) => values.map_err(TrainError::from),
        Err(Caught { message, .. }) => Err(TrainError::TrialUpdate { reason: message }),
    };
    let (whole, upper, lower) = (updated(Part::Whole)?, updated(Part::Upper)?, updated(Part::Lower)?);
    for place in Paths::of(model).places() {
        let of = |values: &HashMap<ParamId, Vec<f32>>| values.get(&place.id).cloned().unwrap_or_default();
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        if bits(of(&whole)) != bits([of(&upper), of(&lower)].concat()) {
            return Err(TrainError::NotElementwise { parameter: place.path.clone() });
        }
    }
    Ok(())
}

/// Which of the made-up rows to update.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Whole,
    Upper,
    Lower,
}

/// Returns the values of each made-up parameter after some updates.
///
/// # Errors
///
/// The device has failed. What fails in its queue, such as compiling a kernel, is an error of the read.
fn updated<M: Module>(
    model: &M,
    mut optimizer: ModelOptimizer,
    part: Part,
    device: &Device,
) -> Result<HashMap<ParamId, Vec<f32>>, TensorReadError> {
    let mut small = model.clone().map(&mut MakeUp { part, device });
    for update in 0..UPDATES {
        let mut grads =
            GradientsOf { update, part, device, grads: GradientsParams::new(), seen: HashSet::new() };
        small.visit(&mut grads);
        small = optimizer.step(RATE, small, grads.grads);
    }
    let mut flat = Vec::new();
    each_distinct_param(&small, |param| {
        if !param.shape().is_empty() {
            flat.push((param.id(), param.flat()));
        }
    });
    let mut values = HashMap::new();
    for (id, value) in flat {
        values.insert(id, value.try_into_data()?.iter::<f32>().collect());
    }
    Ok(values)
}

/// Generates numbers that look random, with sizes that differ from row to row, so that the norms of the halves differ.
fn made_up<const D: usize>(part: Part, phase: f32, device: &Device) -> Tensor<D> {
    let rows = ROWS[usize::from(D > 1)];
    let columns = if D > 1 { COLUMNS } else { 1 };
    let number = |at: usize| ((at as f32 + phase) * 1.7).sin() * (1 + at / columns) as f32 * 0.1;
    let numbers = (0..rows * columns).map(number).collect::<Vec<_>>();
    let half = rows * columns / 2;
    let (numbers, rows) = match part {
        Part::Whole => (numbers, rows),
        Part::Upper => (numbers[..half].to_vec(), rows / 2),
        Part::Lower => (numbers[half..].to_vec(), rows / 2),
    };
    let mut shape = [1; D];
    shape[0] = rows;
    if D > 1 {
        shape[1] = columns;
    }
    Tensor::from_data(TensorData::new(numbers, shape), device)
}

/// Replaces each parameter by made-up numbers.
struct MakeUp<'a> {
    part: Part,
    device: &'a Device,
}

impl ModuleMapper for MakeUp<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match D {
            0 => param,
            _ => {
                let device = self.device.clone().autodiff();
                Param::initialized(param.id, made_up(self.part, 0.0, &device).require_grad())
            }
        }
    }
}

/// Creates made-up gradients for one update.
struct GradientsOf<'a> {
    update: usize,
    part: Part,
    device: &'a Device,
    grads: GradientsParams,
    seen: HashSet<ParamId>,
}

impl ModuleVisitor for GradientsOf<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D > 0 && self.seen.insert(param.id) {
            let phase = 31.0 * (self.update + 1) as f32;
            self.grads.register(param.id, made_up::<D>(self.part, phase, self.device));
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::module::ParamGroup;
    use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
    use burn::optim::{
        AdaGradConfig, AdafactorConfig, AdamConfig, AdamWConfig, AdanConfig, LambConfig, LearningRate,
        LionConfig, ModuleOptimizer, MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
        momentum::MomentumConfig,
    };

    use super::*;
    use crate::optim;
    use crate::testing::device;

    #[derive(Module, Debug)]
    struct Model {
        linear: Linear,
        norm: LayerNorm,
    }

    fn model() -> Model {
        let device = device().autodiff();
        Model { linear: LinearConfig::new(8, 8).init(&device), norm: LayerNormConfig::new(8).init(&device) }
    }

    #[test]
    fn optimizers_that_go_element_by_element_are_let_through() {
        let momentum = MomentumConfig { momentum: 0.9, dampening: 0.1, nesterov: true };
        let model = model();
        let fit: [(_, ModelOptimizer); 9] = [
            ("AdamW", AdamWConfig::new().with_weight_decay(0.1).init().into()),
            ("Adam", AdamConfig::new().init().into()),
            ("Lion", LionConfig::new().init().into()),
            ("Sgd", SgdConfig::new().with_momentum(Some(momentum)).init().into()),
            ("AdaGrad", AdaGradConfig::new().init().into()),
            ("RmsProp", RmsPropConfig::new().init().into()),
            ("Adan", AdanConfig::new().init().into()),
            ("our AdamW", optim::AdamW::new().weight_decay(0.1).init().unwrap()),
            (
                "AdamW8bit",
                optim::AdamW8bit::new().min_8bit_size(1).init(&model, &optim::Groups::new()).unwrap(),
            ),
        ];
        for (name, optimizer) in fit {
            let found = require_elementwise(&model, &optimizer, &Device::flex());
            assert!(found.is_ok(), "{name}: {found:?}");
        }
    }

    #[test]
    fn others_are_refused_with_the_parameter_and_those_that_fit() {
        let model = model();
        let matrices = ParamGroup::from_ids(vec![model.linear.weight.id]);
        let muon = ModuleOptimizer::from(AdamWConfig::new().build()).with_group(
            matrices.clone(),
            MuonConfig::new().build(),
            None,
        );
        let lamb = ModuleOptimizer::from(AdamWConfig::new().build()).with_group(
            ParamGroup::from_ids(vec![model.norm.gamma.id]),
            LambConfig::new().build(),
            None,
        );
        let refused: [(ModelOptimizer, _); 7] = [
            (muon.into(), "linear.weight"),
            (lamb.into(), "norm.gamma"),
            (LambConfig::new().init().into(), "linear.weight"),
            (AdafactorConfig::new().init().into(), "linear.weight"),
            (optim::Lamb::new().init().unwrap(), "linear.weight"),
            (optim::Adafactor::new().init().unwrap(), "linear.weight"),
            (optim::Adafactor::new().relative_step(true).beta_1(0.9).init().unwrap(), "linear.weight"),
        ];
        for (optimizer, path) in refused {
            let error = require_elementwise(&model, &optimizer, &Device::flex()).unwrap_err();
            assert!(
                matches!(&error, TrainError::NotElementwise { parameter } if parameter == path),
                "{error}"
            );
            assert!(error.to_string().contains("AdamW, AdamW8bit, Adam, Lion"), "{error}");
        }
    }

    /// Refuses vectors.
    #[derive(Clone, Debug)]
    struct OfMatrices;

    impl Optimizer for OfMatrices {
        type State<const D: usize> = ();

        fn step<const D: usize>(
            &self,
            _: LearningRate,
            param: Tensor<D>,
            _: Tensor<D>,
            _: Option<()>,
        ) -> (Tensor<D>, Option<()>) {
            assert_eq!(D, 2, "only matrices are updated");
            (param, None)
        }

        fn to_device<const D: usize>(_: (), _: &Device) {}
    }

    /// Its reason is another one than elements that depend on each other.
    #[test]
    fn an_update_that_fails_says_why() {
        let of_matrices = ModuleOptimizer::from(OfMatrices);
        let error = require_elementwise(&model(), &of_matrices.into(), &Device::flex()).unwrap_err();
        assert!(matches!(&error, TrainError::TrialUpdate { .. }), "{error}");
        assert!(error.to_string().contains("only matrices are updated"), "{error}");
    }
}
