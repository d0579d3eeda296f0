//! Adapters read from folders: of earlier runs, and of PEFT.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::golden_models::folder;
use crate::support::*;
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};
use firebrick::datasets::Batches;
use firebrick::strategies::{
    Adaptation, Composition, LowRank, Paths, StrategyError, UnfitFactors, trained as trained_params,
};
use firebrick::{
    AdapterError, Adapters, Data, Lora, Objective, Pass, Schedule, TrainError, Trained, Trainer,
};
use firebrick_models::pretrained::{Pretrained, load_adapters, save_adapters};
use firebrick_models::{Gpt, Llama};
use serde::Deserialize;

use crate::support::many::optimizer;

fn lora() -> Lora {
    Lora::rank(4).alpha(16.0).dropout(0.1).also(["norm"])
}

fn data() -> Data<<Rows as Batches>::Batch> {
    Data::new(Rows::ragged(21)).micro_batch(8).valid(Rows::ragged(9))
}

/// Trains factors anew, or from those given.
fn trained(lora: Lora, from: Option<&Adapters>, rate: f64) -> Result<Trained<Gpt>, TrainError> {
    let trainer = Trainer::new().seed(11).with(lora).steps(3).evaluate_every(3);
    let trainer = match from {
        Some(adapters) => trainer.starting_from(adapters),
        None => trainer,
    };
    trainer.fit(gpt(0.0, &device().autodiff()), optimizer(), Schedule::constant(rate), data())
}

fn valid_loss(model: &Gpt) -> f64 {
    let batch = Rows::ragged(9).batch(0, 0..9).unwrap();
    let loss = model.loss(batch, &Pass::evaluate(&device()));
    loss.sum.into_scalar::<f64>() / loss.items as f64
}

#[test]
fn a_saved_adapter_makes_the_same_model_again() {
    for lora in [
        lora(),
        lora().dora(),
        lora().rank_stabilized().dropout(0.0).on(["tokens", "*.query_key_value.weight"]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let first = trained(lora.clone(), None, 1e-2).unwrap();
        first.adapters.as_ref().unwrap().save(&folder).unwrap();
        let adapters = Adapters::load(&folder).unwrap();
        assert_eq!(adapters.dropout, first.adapters.as_ref().unwrap().dropout);
        let merged = adapters.merge_into(gpt(0.0, &device())).unwrap();
        assert!(parameters(&merged) == parameters(&first.model), "to the bit");
        assert_eq!(valid_loss(&merged), valid_loss(&first.model.valid()));
        assert!(difference(&parameters(&merged), &parameters(&gpt(0.0, &device()))) > 1e-2, "it has learned");

        // Training goes on from there: a rate that moves nothing evaluates what the first run ended with.
        let still = trained(lora, Some(&adapters), 1e-30).unwrap();
        assert_eq!(still.report.valid_loss, first.report.valid_loss);
        assert!(parameters(&still.model) == parameters(&first.model));
        let on = trained(adapters.recipe(), Some(&adapters), 1e-2).unwrap();
        assert!(on.report.valid_loss < first.report.valid_loss);

        // A second save of what was read has the same bytes.
        let again = tempfile::tempdir().unwrap();
        adapters.save(&again).unwrap();
        let bytes = |folder: &Path| fs::read(folder.join("adapter_model.safetensors")).unwrap();
        assert!(bytes(folder.path()) == bytes(again.path()));
    }
}

#[derive(Deserialize)]
struct Golden {
    ids: Vec<Vec<i32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    model: String,
    logits: Vec<f32>,
    /// The summed loss of the next tokens.
    loss: f64,
    /// By the names of the file.
    gradient_norms: BTreeMap<String, f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/adapters/cases.json")).unwrap()
}

fn path(name: &str) -> PathBuf {
    std::path::absolute(Path::new("tests/golden/adapters").join(name)).unwrap()
}

/// Returns the adapters of a case, and the model with them: as PEFT saved them, and saved again.
fn adapted<M: Pretrained + 'static>(case: &Case) -> (Adapters, [M; 2]) {
    let folder = folder(&case.model);
    let config = folder.config().unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let adapters = load_adapters::<M>(&config, path(&case.name)).unwrap();
    let again = tempfile::tempdir().unwrap();
    save_adapters(&adapters, (&model, &config), &case.model, &again).unwrap();
    let saved = load_adapters::<M>(&config, &again).unwrap();
    (adapters.clone(), [adapters, saved].map(|adapters| adapters.merge_into(model.clone()).unwrap()))
}

#[test]
fn adapters_of_peft_give_its_logits() {
    let Golden { ids, cases } = golden();
    let ids = || Tensor::<1, Int>::from_ints(ids.concat().as_slice(), &device()).reshape([2, 5]);
    let pass = || Pass::evaluate(&device());
    assert_eq!(cases.len(), 6);
    for case in &cases {
        let logits = match &*case.model {
            "gpt2" => adapted::<Gpt>(case).1.map(|model| model.forward(ids(), &pass())),
            _ => adapted::<Llama>(case).1.map(|model| model.forward(ids(), &pass())),
        };
        for logits in logits {
            let found = logits.into_data().iter::<f32>().collect::<Vec<_>>();
            assert_eq!(found.len(), case.logits.len());
            let furthest = found.iter().zip(&case.logits).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(
                f64::from(furthest) < 1e-5 * if is_cpu() { 1.0 } else { 5.0 },
                "{}: {furthest:e}",
                case.name
            );
        }
    }
    let (adapters, _) = adapted::<Llama>(&cases[0]);
    assert_eq!(adapters.low_rank, LowRank { rank: 2, alpha: 3.0, rank_stabilized: false, dora: false });
    assert_eq!(adapters.dropout, 0.1);
    let (adapters, _) = adapted::<Llama>(&cases[1]);
    assert_eq!(adapters.low_rank, LowRank { rank: 3, alpha: 2.0, rank_stabilized: true, dora: false });
}

/// Returns the loss of the next tokens, and the norm of each factor's gradient by the names of PEFT.
fn learned<M: Pretrained + 'static>(
    case: &Case,
    forward: impl Fn(&M) -> Tensor<3>,
    ids: &[Vec<i32>],
) -> (f64, BTreeMap<String, f64>) {
    let folder = folder(&case.model);
    let (config, device) = (folder.config().unwrap(), device().autodiff());
    let model = folder.load::<M>(&config, &device).unwrap().model;
    let adapters = load_adapters::<M>(&config, path(&case.name)).unwrap();
    let mut adaptation = Adaptation::default().starting_from(Some(adapters.to_start()));
    let model = adapters.recipe().dropout(0.0).adapt(model, &mut adaptation).unwrap();
    let logits = forward(&model);
    let [rows, length, _] = logits.dims();
    let read = log_softmax(logits, 2).narrow(1, 0, length - 1);
    let next: Vec<i32> = ids.iter().flat_map(|row| row[1..].iter().copied()).collect();
    let next = Tensor::<1, Int>::from_ints(next.as_slice(), &device).reshape([rows, length - 1, 1]);
    let loss = -read.gather(2, next).sum();
    let grads = loss.backward();
    let places = Paths::of(&model);
    let mut norms = BTreeMap::new();
    let mut grads = GradientsParams::from_grads(grads, &model);
    for one in trained_params(&model) {
        let place = places.places().iter().find(|place| place.id == one.id).unwrap();
        let (module, is_table) = match &place.reparameterizes {
            Some(matrix) => {
                (M::keys(&config).saved_as(matrix).unwrap().0.to_string(), place.holder == "Embedding")
            }
            None => continue,
        };
        let module = module.strip_suffix(".weight").unwrap();
        let factor = match (place.path.rsplit_once('.').unwrap().1, is_table) {
            ("a", true) => "lora_embedding_A",
            ("b", true) => "lora_embedding_B",
            ("a", false) => "lora_A.weight",
            ("b", false) => "lora_B.weight",
            _ => "lora_magnitude_vector",
        };
        let norm = match one.shape.len() {
            1 => norm(grads.remove::<1>(one.id).unwrap()),
            _ => norm(grads.remove::<2>(one.id).unwrap()),
        };
        norms.insert(format!("{module}.{factor}"), norm);
    }
    (loss.into_scalar::<f64>(), norms)
}

fn norm<const D: usize>(grad: Tensor<D>) -> f64 {
    grad.square().sum().sqrt().into_scalar::<f64>()
}

#[test]
fn adapters_of_peft_learn_as_there() {
    let Golden { ids, cases } = golden();
    let pass = || Pass::evaluate(&device().autodiff());
    for case in &cases {
        let tokens =
            || Tensor::<1, Int>::from_ints(ids.concat().as_slice(), &device().autodiff()).reshape([2, 5]);
        let (loss, norms) = match &*case.model {
            "gpt2" => learned::<Gpt>(case, |model| model.forward(tokens(), &pass()), &ids),
            _ => learned::<Llama>(case, |model| model.forward(tokens(), &pass()), &ids),
        };
        let close = |found: f64, expected: f64| (found - expected).abs() < 1e-4 * expected.max(1.0);
        assert!(close(loss, case.loss), "{}: {loss} {}", case.name, case.loss);
        let factors = case.gradient_norms.iter().filter(|(name, _)| !name.contains("modules_to_save"));
        assert_eq!(factors.clone().count(), norms.len(), "{}", case.name);
        for (name, expected) in factors {
            assert!(close(norms[name], *expected), "{} {name}: {} {expected}", case.name, norms[name]);
        }
    }
}

#[test]
fn a_recipe_that_does_not_fit_is_told_with_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    trained(lora(), None, 1e-2).unwrap().adapters.unwrap().save(&folder).unwrap();
    let adapters = Adapters::load(&folder).unwrap();
    let error = |lora: Lora, adapters: &Adapters| match trained(lora, Some(adapters), 1e-2).unwrap_err() {
        TrainError::Strategy(StrategyError::Factors { factors, error }) => {
            assert_eq!(factors, folder.path().display().to_string());
            error
        }
        error => panic!("{error}"),
    };
    let found = error(lora().alpha(8.0), &adapters).to_string();
    assert!(found.contains("found rank 4 and alpha 16: write `Lora(rank: 4, alpha: 16)`"), "{found}");
    let found = error(lora().dora(), &adapters).to_string();
    assert!(found.contains("expected factors of rank 4 and alpha 16, with magnitudes, as"), "{found}");
    let found = error(lora().rank_stabilized(), &adapters);
    assert!(matches!(found, UnfitFactors::Scale { .. }), "{found}");
    let found = error(lora().on(["*.query_key_value.weight"]), &adapters);
    assert_eq!(found, UnfitFactors::NotAdapted { path: "blocks.0.attention.output.weight".into() });
    let found = error(lora().on_all_linear(), &adapters);
    assert!(matches!(&found, UnfitFactors::NoFactors { path } if path.starts_with("blocks.0.")), "{found}");
    let found = error(lora().also(Vec::<String>::new()), &adapters);
    assert!(matches!(&found, UnfitFactors::NotWhole { path } if path.starts_with("norm.")), "{found}");

    let mut other = adapters.clone();
    other.factors[0].path = "blocks.9.weight".into();
    assert_eq!(error(lora(), &other), UnfitFactors::NoParameter { path: "blocks.9.weight".into() });
    let mut other = adapters.clone();
    other.factors[0].b = other.factors[1].b.clone();
    let found = error(lora(), &other).to_string();
    assert!(found.contains(".lora.b` must be [4, 16], found [4, 48]"), "{found}");

    // PEFT leaves the head of a tied table as it was.
    let tied = crate::support::golden_models::folder("llama3");
    let config = tied.config().unwrap();
    let found = load_adapters::<Llama>(&config, path("llama-embedding")).unwrap_err();
    assert!(
        matches!(&found, AdapterError::Tied { tensor, .. } if tensor.ends_with("lora_embedding_A")),
        "{found}"
    );

    // Without `Lora`, the factors would be left out.
    let trainer = Trainer::new().starting_from(&adapters).steps(1);
    let model = gpt(0.0, &device().autodiff());
    let found = trainer.fit(model, optimizer(), Schedule::constant(1e-2), data()).unwrap_err().to_string();
    assert!(
        found.ends_with("no strategy adapts the model with it: add `Lora(rank: 4, alpha: 16)`"),
        "{found}"
    );
}

#[test]
fn a_folder_that_is_not_whole_is_told_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let [config, weights] =
        ["adapter_config.json", "adapter_model.safetensors"].map(|name| folder.path().join(name));
    let put = |case: &str| {
        fs::copy(path(case).join("adapter_config.json"), &config).unwrap();
        fs::copy(path(case).join("adapter_model.safetensors"), &weights).unwrap();
    };
    let of_llama = || {
        let llama = crate::support::golden_models::folder("llama");
        load_adapters::<Llama>(&llama.config().unwrap(), folder.path()).unwrap_err()
    };
    assert!(matches!(of_llama(), AdapterError::File { path, .. } if path == config));
    put("gpt2");
    let found = of_llama().to_string();
    assert!(found.contains("`base_model.model.transformer.h.0.attn.c_"), "{found}");
    put("llama");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("\"r\": 2", "\"r\": 3")).unwrap();
    let found = of_llama().to_string();
    assert!(
        found.contains("down_proj.lora_A.weight` must be [3, in], for `r` is 3, found [2, 24]"),
        "{found}"
    );
    fs::write(&config, text.replace("\"use_dora\": false", "\"use_dora\": true")).unwrap();
    let found = of_llama().to_string();
    assert!(found.contains("down_proj.lora_magnitude_vector` is missing beside"), "{found}");
    fs::write(&config, text.replace("\"lora_bias\": false", "\"lora_bias\": true")).unwrap();
    assert!(matches!(of_llama(), AdapterError::Setting { path, setting: "lora_bias", .. } if path == config));
    fs::write(&config, &text).unwrap();
    fs::write(&weights, "no tensors").unwrap();
    assert!(matches!(of_llama(), AdapterError::File { path, .. } if path == weights));
}
