//! Frozen matrices in 4 and 8 bits: a run equals the same run with the unpacked matrices as weights, bit for bit.

use std::collections::HashSet;
use std::path::Path;

use crate::support::many::{Outcome, Setting, apart};
use crate::support::resuming::Way;
use crate::support::*;
use burn::module::{Module, ParamId};
use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::{Tensor, TensorData};
use firebrick::checkpoints::{Checkpoint, Consolidate, What, consolidate};
use firebrick::datasets::Batches;
use firebrick::strategies::{
    Adaptation, Composed, Composition, Effects, ParamMap, Paths, Setup, Stages, Strategy, StrategyError,
    StrategyRecipe, each_param, map_params, relift,
};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Data, Ema, Freeze, Lora, Loss, Objective, Offload, Pass, Quantize,
    Recompute, Resume, Schedule, Trainer, Zero,
};
use firebrick_kernels::packed::Packing;
use firebrick_models::Gpt;

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;

fn lora() -> Lora {
    Lora::rank(4).alpha(16.0).dropout(0.1).also(["norm"])
}

/// Gives frozen matrices of blocks the values that they are unpacked to, and leaves them dense.
#[derive(Clone, Debug)]
struct Rounded(Packing);

impl StrategyRecipe for Rounded {
    fn effects(&self) -> Effects {
        Effects { adapts: true, ..Effects::none("Rounded") }
    }
}

impl Strategy<Gpt> for Rounded {
    fn adapted(&self, model: Gpt, _: &mut Adaptation) -> Result<Gpt, StrategyError> {
        Ok(map_params(model.clone(), &mut Rounding(self.0, packed_of(&model))))
    }

    fn stages(&self, setup: &mut Setup<Gpt>) -> Result<Stages<Gpt>, StrategyError> {
        Recompute::every_block().stages(setup)
    }
}

/// The matrices of the blocks' linear layers.
fn packed_of(model: &Gpt) -> HashSet<ParamId> {
    let paths = Paths::of(model);
    let is_packed = |path: &str| path.starts_with("blocks.") && path.ends_with("weight");
    paths.places().iter().filter(|place| is_packed(&place.path)).map(|place| place.id).collect()
}

struct Rounding(Packing, HashSet<ParamId>);

impl ParamMap for Rounding {
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
        if !self.1.contains(&id) {
            return value;
        }
        let (shape, device) = (value.dims(), value.device().inner());
        let numbers: Vec<f32> = value.clone().into_data().iter().collect();
        let rounded = self.0.pack(&numbers, [shape[0], shape[1]]).to_f32();
        relift(Tensor::from_data(TensorData::new(rounded, shape), &device), &value)
    }
}

fn quantized(packing: Packing) -> Quantize {
    match packing {
        Packing::Nf4 => Quantize::nf4(),
        Packing::Int8 => Quantize::int8(),
    }
}

fn equal(found: &Outcome, expected: &Outcome, name: &str) {
    match is_cpu() {
        true => {
            assert_eq!(found.losses, expected.losses, "{name}");
            assert!(found.parameters == expected.parameters, "{name}");
        }
        false => assert!(apart(found, expected).1 < 1e-5, "{name}"),
    }
}

#[test]
fn it_trains_as_with_the_unpacked_matrices() {
    let setting = Setting::default();
    let dense = setting.run(1, 1, lora());
    for packing in [Packing::Nf4, Packing::Int8] {
        let expected = setting.run(1, 1, Composed::new().with(lora()).with(Rounded(packing)));
        equal(&setting.run(1, 1, Composed::new().with(lora()).with(quantized(packing))), &expected, "alone");
        assert_ne!(expected.losses, dense.losses, "{packing:?} is rounded");
        // Beside factors of some matrices, the others are packed too, and read without factors.
        for lora in
            [Lora::rank(4).on_all_linear(), Lora::rank(4).dora(), Lora::rank(2).on(["*.output.weight"])]
        {
            let expected = setting.run(1, 1, Composed::new().with(lora.clone()).with(Rounded(packing)));
            equal(
                &setting.run(1, 1, Composed::new().with(lora.clone()).with(quantized(packing))),
                &expected,
                "others",
            );
        }
    }
}

#[test]
fn other_strategies_change_nothing_of_it() {
    let setting = Setting { steps: 6, ..Setting::default() };
    let packed = || Composed::new().with(lora()).with(Quantize::nf4());
    let rounded = || Composed::new().with(lora()).with(Rounded(Packing::Nf4));
    let expected = setting.run(1, 1, packed());
    let recomputed = setting.run(1, 1, Composed::new().with(packed()).with(Recompute::every(2)));
    equal(&recomputed, &expected, "recomputed");
    equal(
        &setting.run(1, 1, Composed::new().with(Freeze::paths(["tokens"])).with(packed())),
        &expected,
        "frozen",
    );
    let holds = |name: &str, found: Outcome| {
        let (losses, parameters) = apart(&found, &expected);
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "{name}: {losses:e} {parameters:e}");
    };
    holds("offloaded", setting.run(1, 1, Composed::new().with(packed()).with(Offload::optimizer())));
    holds(
        "offloaded parameters",
        setting.run(1, 1, Composed::new().with(packed()).with(Offload::parameters())),
    );
    holds("averaged", setting.run(1, 1, Composed::new().with(packed()).with(Ema::new(0.5))));
    holds("accumulated", {
        setting.cut_for(1, 4).run(
            1,
            4,
            Composed::new().with(packed()).with(Accumulate(4)).with(Clip::norm(1e9)),
        )
    });
    if has_bf16() {
        let run = |strategies| setting.run(1, 1, Composed::new().with(strategies).with(Amp::bf16()));
        let expected = setting.run(1, 1, Composed::new().with(rounded()).with(Amp::bf16()));
        equal(&run(packed()), &expected, "bf16");
    }
}

#[test]
fn every_rank_keeps_the_packed_matrices_and_shares_the_factors() {
    let setting = Setting { steps: 6, ..Setting::default() };
    for (stage, ranks) in [(0, 2), (1, 2), (2, 2), (3, 2), (3, 3)] {
        let zero = Zero::stage(stage).replicate_below(64);
        let setting = setting.cut_for(ranks, 1);
        let expected = setting.run(1, 1, Composed::new().with(lora()).with(Quantize::nf4()));
        let found = setting.run(ranks, 1, Composed::new().with(lora()).with(Quantize::nf4()).with(zero));
        let (losses, parameters) = apart(&found, &expected);
        let name = format!("stage {stage} on {ranks} ranks");
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "{name}: {losses:e} {parameters:e}");
    }
}

/// Four matrices in each of three blocks of width 16.
const PACKED: usize = 3 * (16 * 48 + 16 * 16 + 2 * 16 * 64);

#[test]
fn the_bytes_of_packed_matrices_are_counted() {
    let setting = Setting { steps: 2, ..Setting::default() };
    let dense = setting.run(1, 1, lora()).report;
    // Bits for each element, and a scale for each 64.
    for (quantize, bits) in [(Quantize::nf4(), 4), (Quantize::int8(), 8)] {
        let report = setting.run(1, 1, Composed::new().with(lora()).with(quantize)).report;
        assert_eq!(report.parameters, dense.parameters);
        assert_eq!(report.replica_bytes, PACKED * bits / 8 + PACKED / 64 * 4);
        // A placeholder for each matrix.
        assert_eq!(dense.master_bytes - report.master_bytes, 4 * (PACKED - 12));
        assert_eq!(report.gradient_bytes, dense.gradient_bytes);
    }
}

fn valid_loss(model: &Gpt) -> f64 {
    let batch = Rows::ragged(9).batch(0, 0..9).unwrap();
    let Loss { sum, items } = model.loss(batch, &Pass::evaluate(&device()));
    sum.into_scalar::<f64>() / items as f64
}

#[test]
fn what_is_returned_and_saved_is_the_plain_model_of_unpacked_and_merged_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let data = Data::new(Rows::ragged(21)).micro_batch(8).valid(Rows::ragged(9));
    let trained = Trainer::new()
        .seed(11)
        .with(Lora::rank(4).on(["*.query_key_value.weight"]))
        .with(Quantize::nf4())
        .with(Ema::new(0.5))
        .steps(9)
        .evaluate_every(9)
        .output(&output)
        .checkpoints(Checkpoints::every(9))
        .fit(gpt(0.1, &device().autodiff()), many::optimizer(), Schedule::constant(1e-2), data)
        .unwrap();
    let average = trained.averaged.unwrap();
    let (reported, merged) = (trained.report.valid_loss.unwrap(), valid_loss(&average));
    assert!((reported - merged).abs() < 1e-6 * merged, "{reported} {merged}");
    let saved = |path: &Path| {
        let mut model = map_waves(gpt(0.1, &device()));
        let found = model.load_from(&mut SafetensorsStore::from_file(path)).unwrap();
        assert!(found.unused.is_empty() && found.missing.is_empty(), "{found:?}");
        parameters(&model)
    };
    assert!(saved(&output.join("model.safetensors")) == parameters(&trained.model));
    assert!(saved(&output.join("best.safetensors")) == parameters(&average));
    // A matrix without factors is saved as the numbers that it unpacks to.
    let given = gpt(0.1, &device());
    let rounded = map_params(given.clone(), &mut Rounding(Packing::Nf4, packed_of(&given)));
    let of = |model: &Gpt, path: &str| {
        let mut found = Vec::new();
        let paths = Paths::of(model);
        each_param(model, |param| {
            if paths.path(param.id()) == Some(path) {
                found = param.to_host().iter::<f32>().collect();
            }
        });
        found
    };
    let path = "blocks.1.attention.output.weight";
    assert!(of(&trained.model, path) == of(&rounded, path));
    assert!(of(&trained.model, path) != of(&given, path));

    let to = folder.path().join("consolidated.safetensors");
    let checkpoint = Checkpoint::open(output.join("checkpoints/step-00000009")).unwrap();
    let packed = checkpoint.manifest().packed.as_ref().unwrap();
    assert_eq!((packed.bits, packed.shapes.len()), (4, 12));
    assert_eq!(checkpoint.parameters().info(path).unwrap().shape, [16, 16]);
    for (what, expected) in [(What::Parameters, &trained.model), (What::Average, &average)] {
        consolidate(&checkpoint, what, &to, &Consolidate::default(), |_, _| {}).unwrap();
        assert!(difference(&saved(&to), &parameters(expected)) < 1e-6);
    }
}

/// The model that a resumed run is given does not matter: the checkpoint has the packed matrices.
#[test]
fn a_run_resumes_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = || Composed::new().with(lora()).with(Quantize::nf4());
    let whole = Way::on(1, 1).train(&folder.path().join("whole"), recipe()).unwrap();
    let parts = folder.path().join("parts");
    Way { stop_at: Some(4), ..Way::on(1, 1) }.train(&parts, recipe()).unwrap();
    let way = Way { resume: Some(Resume::Latest), ..Way::on(1, 1) };
    let resumed = way.train(&parts, recipe()).unwrap();
    assert_eq!(resumed.losses, whole.losses[whole.losses.len() - resumed.losses.len()..]);
    assert!(resumed.parameters == whole.parameters);

    let other = way.train(&parts, Composed::new().with(lora()).with(Quantize::int8()));
    let error = other.err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("Quantize") && error.contains("in 4 bits"), "{error}");
}

#[test]
fn what_cannot_be_packed_is_refused() {
    let refused = |strategies: Vec<firebrick::strategies::Composed<Gpt>>| {
        let model = gpt(0.0, &device().autodiff());
        strategies.adapt(model, &mut Adaptation::default()).unwrap_err().to_string()
    };
    let boxed = |strategy: Quantize| firebrick::strategies::Composed::new().with(strategy);
    let error = refused(vec![boxed(Quantize::nf4())]);
    assert!(error.contains("add `Lora` or `Freeze`"), "{error}");
    let adapted = || firebrick::strategies::Composed::new().with(lora());
    let error = refused(vec![adapted(), boxed(Quantize::nf4()), boxed(Quantize::int8())]);
    assert!(error.contains("Quantize is named twice"), "{error}");

    let device = device().autodiff();
    let model = gpt(0.0, &device).no_grad();
    let started = Quantize::nf4().start(&mut Setup::new(&model, &device)).err();
    assert_eq!(started, Some(StrategyError::NotAdapted("Quantize")));
}
