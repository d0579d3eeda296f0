//! Low-rank factors: trained as a hand-written loop trains them, under every strategy, and merged at the end.

use crate::support::many::{Outcome, Setting, accumulate, apart, optimizer};
use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::store::{ModuleSnapshot, SafetensorsStore};
use firebrick::checkpoints::{Checkpoint, Consolidate, Dtype, What, consolidate};
use firebrick::datasets::{Batch, Batches};
use firebrick::strategies::{Adaptation, Composed, Composition, Draws, Paths, trained};
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Data, Ema, Lora, Loss, Objective, Offload, Pass, Recompute, Schedule,
    Trainer, Zero,
};
use firebrick_models::Gpt;

/// f32 sums in another order, over 20 updates.
const TOLERANCE: f64 = 2e-6;
const RANK: usize = 4;

/// Factors for the projections of attention, and the last norm trained whole.
fn lora() -> Lora {
    Lora::rank(RANK).alpha(16.0).also(["norm"])
}

/// Runs with factors and further strategies.
fn run(setting: &Setting, ranks: usize, micro_batches: usize, then: impl Composition<Gpt>) -> Outcome {
    setting.run(ranks, micro_batches, Composed::new().with(lora()).with(then))
}

fn alone(setting: &Setting) -> Outcome {
    run(setting, 1, 1, None::<Clip>)
}

/// The loop that a Burn user writes, with the same factors.
#[test]
fn it_trains_to_where_a_plain_loop_does() {
    let setting = Setting { steps: 6, ..Setting::default() };
    let device = device().autodiff();
    let mut adaptation = Adaptation::seeded(setting.seed);
    let mut model = lora().adapt(gpt(setting.dropout, &device), &mut adaptation).unwrap();
    let (mut optimizer, rows, mut losses) = (optimizer(), Rows::ragged(setting.rows), Vec::new());
    let mut place = (0, 0);
    for _ in 0..setting.steps {
        let (epoch, start) = place;
        let end = (start + setting.global).min(setting.rows);
        let batch = rows.batch(epoch, start..end).unwrap();
        let pass = Pass::train(&device).drawing(Draws { seed: setting.seed, epoch, first: start as u64 });
        let items = batch.items() as f64;
        let loss = model.loss(batch, &pass).sum / items;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(setting.rate, model, grads);
        losses.push(loss.into_scalar::<f64>());
        place = if end == setting.rows { (epoch + 1, 0) } else { (epoch, end) };
    }
    let found = alone(&setting);
    let expected = parameters(&model.valid().materialize());
    match is_cpu() {
        true => {
            assert_eq!(found.losses, losses);
            assert!(found.parameters == expected);
        }
        false => assert!(difference(&found.parameters, &expected) < 1e-5),
    }
}

#[test]
fn only_adapted_matrices_and_what_is_named_too_change() {
    let given = gpt(0.0, &device());
    let found = alone(&Setting { dropout: 0.0, ..Setting::default() }).parameters;
    let (paths, given) = (Paths::of(&given), parameters(&given));
    assert_eq!(found.len(), given.len(), "what is returned is the model as it was given");
    let mut start = 0;
    for (place, size) in paths.places().iter().zip(sizes(&gpt(0.0, &device()))) {
        let part = start..start + size;
        let changed = found[part.clone()] != given[part];
        start += size;
        let adapted = place.path.contains("attention.") && place.path.ends_with("weight");
        assert_eq!(changed, adapted || place.path.starts_with("norm."), "{}", place.path);
    }
}

fn sizes(model: &Gpt) -> Vec<usize> {
    trained(&model.clone().train()).iter().map(|one| one.shape.iter().product()).collect()
}

#[test]
fn gradients_and_moments_are_of_what_is_trained() {
    let setting = Setting { steps: 2, ..Setting::default() };
    let report = alone(&setting).report;
    // Two matrices in each of three blocks, [16, 48] and [16, 16], and a norm of 16 with its bias.
    let numbers = 3 * RANK * (16 + 48 + 16 + 16) + 2 * 16;
    assert!(!is_unpadded() || report.gradient_bytes == 4 * numbers, "{}", report.gradient_bytes);
    assert_eq!(report.optimizer_bytes, 2 * 4 * numbers);
    let given: usize = sizes(&gpt(0.0, &device())).iter().sum();
    assert_eq!(report.parameters, given + numbers - 2 * 16);
    assert_eq!(report.master_bytes, 4 * report.parameters);
}

/// The factors with the scale of the root of their rank, beside all linear layers.
#[test]
fn rank_stabilized_beside_all_linear_layers_it_is_the_same_under_other_strategies() {
    let setting = Setting::default();
    let run = |ranks, micro_batches, then: Option<Zero>| {
        let all = Composed::new()
            .with(Lora::rank(RANK).rank_stabilized().on_all_linear())
            .with(Accumulate(micro_batches));
        setting.cut_for(ranks, micro_batches).run(ranks, micro_batches, Composed::new().with(then).with(all))
    };
    let expected = run(1, 1, None);
    // With α as the rank, the scale is √r, which α = r√r gives without it.
    let plain = Lora::rank(RANK).alpha((RANK as f64).powf(1.5)).on_all_linear();
    let (losses, parameters) = apart(&setting.run(1, 1, plain), &expected);
    assert!(losses < TOLERANCE && parameters < TOLERANCE, "{losses:e} {parameters:e}");
    let recomputed = Lora::rank(RANK).rank_stabilized().on_all_linear();
    let recomputed = setting.run(1, 1, Composed::new().with(recomputed).with(Recompute::every_block()));
    if is_cpu() {
        assert_eq!(recomputed.losses, expected.losses);
        assert!(recomputed.parameters == expected.parameters);
    }
    for stage in [2, 3] {
        let found = run(2, 2, Some(Zero::stage(stage).replicate_below(64)));
        let (losses, parameters) = apart(&found, &expected);
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "stage {stage}: {losses:e} {parameters:e}");
    }
}

#[test]
fn other_strategies_change_nothing_of_it() {
    let setting = Setting::default();
    let expected = alone(&setting);
    let holds = |name: &str, found: Outcome, (of_losses, of_parameters): (f64, f64)| {
        let (losses, parameters) = apart(&found, &expected);
        assert!(losses < of_losses && parameters < of_parameters, "{name}: {losses:e} {parameters:e}");
    };
    let exact = (TOLERANCE, TOLERANCE);
    let cut = setting.cut_for(1, 4);
    holds("accumulated", run(&cut, 1, 4, Accumulate(4)), exact);
    let recomputed = run(&setting, 1, 1, Recompute::every_block());
    if is_cpu() {
        assert_eq!(recomputed.losses, expected.losses);
        assert!(recomputed.parameters == expected.parameters);
    }
    holds("recomputed", recomputed, exact);
    holds("offloaded", run(&setting, 1, 1, Offload::optimizer()), exact);
    holds("offloaded parameters", run(&setting, 1, 1, Offload::parameters()), exact);
    // The position of `Lora` in the recipe does not matter.
    holds("last", setting.run(1, 1, Composed::new().with(Clip::norm(1e9)).with(lora())), exact);
    holds("averaged", run(&setting, 1, 1, Ema::new(0.5)), exact);
    if has_bf16() {
        holds("bf16", run(&setting, 1, 1, Amp::bf16()), (1e-2, 5e-2));
        let all = Composed::new().with(Amp::bf16()).with(Recompute::every_block()).with(accumulate(2));
        holds("all", run(&setting.cut_for(1, 2), 1, 2, all), (1e-2, 5e-2));
    }
}

#[test]
fn accumulated_over_ragged_global_batches_it_follows_one_batch() {
    let setting = Setting::default().cut_for(1, 3);
    let found = run(&setting, 1, 3, Composed::new().with(Accumulate(3)).with(Clip::norm(0.05)));
    let (losses, parameters) = apart(&found, &run(&setting, 1, 1, Clip::norm(0.05)));
    assert!(losses < TOLERANCE && parameters < TOLERANCE, "{losses:e} {parameters:e}");
}

#[test]
fn ranks_share_it() {
    for (stage, ranks) in [(0, 2), (1, 2), (2, 2), (3, 2), (3, 3)] {
        let setting = Setting::default().cut_for(ranks, 2);
        let zero = || Zero::stage(stage).replicate_below(64);
        let strategies = match stage {
            0 | 1 => Composed::new().with(Accumulate(2)).with(zero()),
            _ => Composed::new().with(zero()).with(Accumulate(2)),
        };
        let found = run(&setting, ranks, 2, strategies.clone());
        let (losses, parameters) = apart(&found, &alone(&setting));
        let name = format!("stage {stage} on {ranks} ranks");
        assert!(losses < TOLERANCE && parameters < TOLERANCE, "{name}: {losses:e} {parameters:e}");
        // Stage 3 shards frozen matrices too.
        let master: Vec<_> =
            found.report.ranks.iter().map(|rank| rank.master_bytes + rank.replica_bytes).collect();
        let whole = 4 * found.report.parameters;
        assert!(
            master.iter().all(|bytes| (stage == 3) == (*bytes < whole * 3 / 4)),
            "{name}: {master:?} {whole}"
        );
    }
}

/// A run with files, evaluations and saves.
fn with_files(folder: &std::path::Path, then: impl Composition<Gpt>) -> firebrick::Trained<Gpt> {
    files_of(lora(), folder, then)
}

fn files_of(lora: Lora, folder: &std::path::Path, then: impl Composition<Gpt>) -> firebrick::Trained<Gpt> {
    let data = Data::new(Rows::ragged(21)).micro_batch(8).valid(Rows::ragged(9));
    Trainer::new()
        .seed(11)
        .with(lora)
        .with(then)
        .steps(9)
        .evaluate_every(9)
        .output(folder)
        .checkpoints(Checkpoints::every(9))
        .fit(gpt(0.1, &device().autodiff()), optimizer(), Schedule::constant(1e-2), data)
        .unwrap()
}

fn valid_loss(model: &Gpt) -> f64 {
    let batch = Rows::ragged(9).batch(0, 0..9).unwrap();
    let Loss { sum, items } = model.loss(batch, &Pass::evaluate(&device()));
    sum.into_scalar::<f64>() / items as f64
}

#[test]
fn what_is_returned_and_saved_is_the_plain_model_with_merged_weights() {
    for lora in [lora(), lora().dora()] {
        is_merged(lora);
    }
}

fn is_merged(lora: Lora) {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trained = files_of(lora, &output, None::<Clip>);
    let reported = trained.report.valid_loss.unwrap();
    let merged = valid_loss(&trained.model);
    assert!((reported - merged).abs() < 1e-6 * merged, "{reported} {merged}");
    assert!((reported - valid_loss(&gpt(0.1, &device()))).abs() > 1e-3, "it has learned");
    let saved = |path: &std::path::Path| {
        let mut model = map_waves(gpt(0.1, &device()));
        let found = model.load_from(&mut SafetensorsStore::from_file(path)).unwrap();
        assert!(found.unused.is_empty() && found.missing.is_empty(), "{found:?}");
        parameters(&model)
    };
    let expected = parameters(&trained.model);
    assert!(saved(&output.join("model.safetensors")) == expected);
    assert!(saved(&output.join("best.safetensors")) == expected);
    // Trained parameters require gradients again, as in the original model.
    let given = gpt(0.1, &device().autodiff());
    assert_eq!(sizes(&trained.model).len(), sizes(&given).len());

    let to = folder.path().join("consolidated.safetensors");
    let checkpoint = Checkpoint::open(output.join("checkpoints/step-00000009")).unwrap();
    assert_eq!(checkpoint.manifest().lora_scale, Some(4.0));
    consolidate(&checkpoint, What::Parameters, &to, &Consolidate::default(), |_, _| {}).unwrap();
    assert!(difference(&saved(&to), &expected) < 1e-6);
    let half = Consolidate { dtype: Some(Dtype::BF16), ..Default::default() };
    consolidate(&checkpoint, What::Parameters, &to, &half, |_, _| {}).unwrap();
    let apart = difference(&saved(&to), &expected);
    assert!((1e-4..1e-2).contains(&apart), "{apart}");
}

#[test]
fn of_an_average_the_merged_average_is_saved() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trained = with_files(&output, Ema::new(0.9));
    let average = trained.averaged.unwrap();
    let (reported, merged) = (trained.report.valid_loss.unwrap(), valid_loss(&average));
    assert!((reported - merged).abs() < 1e-6 * merged, "{reported} {merged}");
    let mut best = gpt(0.1, &device());
    best.load_from(&mut SafetensorsStore::from_file(output.join("best.safetensors"))).unwrap();
    assert!(parameters(&best) == parameters(&average));
    let to = folder.path().join("consolidated.safetensors");
    let checkpoint = Checkpoint::open(output.join("checkpoints/step-00000009")).unwrap();
    consolidate(&checkpoint, What::Average, &to, &Consolidate::default(), |_, _| {}).unwrap();
    best.load_from(&mut SafetensorsStore::from_file(to)).unwrap();
    assert!(difference(&parameters(&best), &parameters(&average)) < 1e-6);
}

/// Returns the tensors of a file by name.
fn tensors(path: &std::path::Path) -> std::collections::BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let read = |data: &[u8]| data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect();
    file.iter().map(|(name, view)| (name.to_string(), (view.shape().to_vec(), read(view.data())))).collect()
}

#[test]
fn the_factors_alone_are_saved_as_peft_does_and_make_the_merged_weights() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run");
    let trained = with_files(&output, None::<Clip>);
    let adapters = tensors(&output.join("adapter/adapter_model.safetensors"));
    let merged = tensors(&output.join("model.safetensors"));
    let given = folder.path().join("given.safetensors");
    gpt(0.1, &device()).save_into(&mut SafetensorsStore::from_file(&given)).unwrap();
    let given = tensors(&given);
    assert_eq!(adapters.len(), 3 * 2 * 2 + 2);
    assert_eq!(adapters["base_model.model.norm.scale"], merged["norm.scale"]);
    for block in 0..3 {
        for (module, columns) in [("query_key_value", 48), ("output", 16)] {
            let module = format!("blocks.{block}.attention.{module}");
            let (of_a, a) = &adapters[&format!("base_model.model.{module}.lora_A.weight")];
            let (of_b, b) = &adapters[&format!("base_model.model.{module}.lora_B.weight")];
            assert_eq!(
                (of_a.as_slice(), of_b.as_slice()),
                ([RANK, 16].as_slice(), [columns, RANK].as_slice())
            );
            let name = format!("{module}.weight");
            for (at, (merged, given)) in merged[&name].1.iter().zip(&given[&name].1).enumerate() {
                let (row, column) = (at / columns, at % columns);
                let product: f64 = (0..RANK).map(|i| a[i * 16 + row] * b[column * RANK + i]).sum();
                assert!((given + 4.0 * product - merged).abs() < 1e-6, "{name} {at}");
            }
        }
    }
    let config = std::fs::read_to_string(output.join("adapter/adapter_config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!((config["r"].as_u64(), config["lora_alpha"].as_u64()), (Some(4), Some(16)));
    assert_eq!(config["target_modules"][1], "blocks.0.attention.output");
    assert_eq!(config["modules_to_save"], serde_json::json!(["norm"]));
    let adapters = trained.adapters.unwrap();
    assert_eq!((adapters.factors.len(), adapters.whole.len()), (6, 2));
}
