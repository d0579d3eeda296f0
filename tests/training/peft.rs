//! Factors of pretrained models under Hugging Face's names, which PEFT can load onto the original model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;

use burn::optim::AdamConfig;
use firebrick::datasets::{Batch, Batches, DataError};
use firebrick::strategies::{Adaptation, Composition, Paths};
use firebrick::{Data, Lora, Objective, Schedule, Trainer};
use firebrick_models::pretrained::{Pretrained, save};
use firebrick_models::{
    Bart, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, Gpt, Llama, ModernBertMaskedLm,
    ModernBertSequenceClassifier, T5,
};
use serde_json::Value;

use crate::support::golden_models::{Case, cases, device, folder};

/// Data with the same batch at every position.
struct Same<B>(B);

impl<B: Batch + Clone + Sync> Batches for Same<B> {
    type Batch = B;

    fn samples(&self, _: u64) -> usize {
        4
    }

    fn batch(&self, _: u64, _: Range<usize>) -> Result<B, DataError> {
        Ok(self.0.clone())
    }
}

/// Trains factors for a few updates, and saves the original model, the factors, and both merged. Returns the names in
/// the factors' file, without those of layers, and the configuration.
fn adapted<M, B>(name: &str, lora: Lora, batch_of: impl Fn(&Case) -> B) -> (BTreeSet<String>, Value)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let folder = folder(name);
    let config = folder.config().unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let out = tempfile::tempdir().unwrap();
    // For `tests/golden/opens_in_peft.py`.
    let kept = std::env::var_os("FIREBRICK_ADAPTED").map(PathBuf::from);
    let out = kept.unwrap_or_else(|| out.path().into()).join(name);
    save(&model, &config, out.join("given")).unwrap();
    let data = Data::new(Same(batch_of(&cases(name)[0])));
    let trainer = Trainer::new().with(lora).steps(4);
    let trained = trainer.fit(model, AdamConfig::new().init(), Schedule::constant(0.05), data).unwrap();
    save(&trained.model, &config, out.join("merged")).unwrap();
    let adapters = trained.adapters.unwrap();
    firebrick_models::pretrained::save_adapters::<M>(&adapters, &config, out.join("adapter")).unwrap();

    let bytes = std::fs::read(out.join("adapter/adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let names =
        file.names().into_iter().map(|name| name.replace(|x: char| x.is_ascii_digit(), "#")).collect();
    let config = std::fs::read_to_string(out.join("adapter/adapter_config.json")).unwrap();
    (names, serde_json::from_str(&config).unwrap())
}

/// Returns the modules of a folder's model that get factors if all linear layers do, by their names in the folder.
fn all_linear<M: Pretrained + 'static>(name: &str) -> Vec<String> {
    let folder = folder(name);
    let config = folder.config().unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let adapted = Lora::rank(2).on_all_linear().adapt(model, &mut Adaptation::seeded(1)).unwrap();
    let (paths, keys) = (Paths::of(&adapted), M::keys(&config));
    let factors = paths.places().iter().filter(|place| place.path.ends_with(".lora.a"));
    let matrices = factors.map(|place| place.reparameterizes.as_deref().unwrap());
    let names =
        matrices.map(|path| keys.saved_as(path).unwrap().0.strip_suffix(".weight").unwrap().to_string());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn all_linear_layers_are_those_of_peft() {
    #[derive(serde::Deserialize)]
    struct Golden {
        modules: BTreeMap<String, Vec<String>>,
    }
    let golden: Golden = serde_json::from_str(include_str!("../golden/all_linear.json")).unwrap();
    for (name, expected) in golden.modules {
        let found = match &*name {
            "gpt2" | "gpt2-untied" => all_linear::<Gpt>(&name),
            "llama" | "gemma2" | "gemma3" => all_linear::<Llama>(&name),
            "bart" => all_linear::<Bart>(&name),
            "t5" | "t5-untied" | "mt5-untied" => all_linear::<T5>(&name),
            "bert-masked-lm" | "deberta-masked-lm" => all_linear::<BertMaskedLm>(&name),
            "modernbert-masked-lm" => all_linear::<ModernBertMaskedLm>(&name),
            "modernbert-sequence" => all_linear::<ModernBertSequenceClassifier>(&name),
            _ => all_linear::<BertSequenceClassifier>(&name),
        };
        assert_eq!(found, expected, "{name}");
    }
}

/// Returns the names of these modules' factors.
fn factors(modules: &[&str]) -> BTreeSet<String> {
    let of =
        |module: &&str| ["A", "B"].map(|factor| format!("base_model.model.{module}.lora_{factor}.weight"));
    modules.iter().flat_map(of).collect()
}

#[test]
fn modules_are_called_as_in_hugging_face_folders() {
    let lora = || Lora::rank(2).alpha(4.0);
    let with_head = lora().on(["*.query.weight", "*.value.weight"]).also(["classifier"]);
    let batch = |case: &Case| case.labeled(0);
    let (names, config) = adapted::<BertTokenClassifier, _>("bert-tokens", with_head, batch);
    let mut expected = factors(
        &["query", "value"]
            .map(|name| format!("bert.encoder.layer.#.attention.self.{name}"))
            .each_ref()
            .map(String::as_str),
    );
    expected.extend(["weight", "bias"].map(|name| format!("base_model.model.classifier.{name}")));
    assert_eq!(names, expected);
    assert_eq!(config["modules_to_save"], serde_json::json!(["classifier"]));
    assert_eq!(config["fan_in_fan_out"], false);

    let (names, config) = adapted::<Gpt, _>("gpt2", lora(), Case::causal);
    assert_eq!(names, factors(&["transformer.h.#.attn.c_attn", "transformer.h.#.attn.c_proj"]));
    assert_eq!(config["use_rslora"], false);
    assert_eq!(config["fan_in_fan_out"], true, "its layers keep weights as [in, out]");
    let (names, config) = adapted::<Llama, _>("llama", lora().alpha(1.5), Case::causal);
    let projections = ["q", "k", "v", "o"].map(|name| format!("model.layers.#.self_attn.{name}_proj"));
    assert_eq!(names, factors(&projections.each_ref().map(String::as_str)));
    assert_eq!((config["lora_alpha"].as_f64(), config["modules_to_save"].is_null()), (Some(1.5), true));
    let stabilized = lora().rank_stabilized().on_all_linear();
    let (names, config) = adapted::<Llama, _>("llama3", stabilized, Case::causal);
    let fed = ["gate", "up", "down"].map(|name| format!("model.layers.#.mlp.{name}_proj"));
    let modules: Vec<_> = projections.iter().chain(&fed).map(String::as_str).collect();
    assert_eq!(names, factors(&modules));
    assert_eq!(config["use_rslora"], true);
    let dora = lora().dora().dropout(0.1).on(["*.query_key_value.weight", "tokens"]);
    let (names, config) = adapted::<Gpt, _>("gpt2-untied", dora, Case::causal);
    let modules = ["transformer.h.#.attn.c_attn", "transformer.wte"];
    assert!(
        modules
            .iter()
            .all(|module| names.contains(&format!("base_model.model.{module}.lora_magnitude_vector"))),
        "{names:?}"
    );
    assert_eq!((&config["use_dora"], &config["lora_dropout"]), (&Value::Bool(true), &serde_json::json!(0.1)));
    let (names, _) = adapted::<T5, _>("t5", lora(), Case::seq2seq);
    assert!(
        names.contains("base_model.model.decoder.block.#.layer.#.EncDecAttention.q.lora_A.weight"),
        "{names:?}"
    );
    let (names, _) = adapted::<Bart, _>("bart", lora(), Case::seq2seq);
    let parts = ["encoder.layers.#.self_attn", "decoder.layers.#.self_attn", "decoder.layers.#.encoder_attn"];
    let projections = ["q_proj", "k_proj", "v_proj", "out_proj"];
    let modules = parts.iter().flat_map(|part| projections.map(|name| format!("model.{part}.{name}")));
    let modules: Vec<String> = modules.collect();
    assert_eq!(names, factors(&modules.iter().map(String::as_str).collect::<Vec<_>>()));
}
