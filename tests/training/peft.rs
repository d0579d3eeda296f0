//! Factors of pretrained models under Hugging Face's names, which PEFT can load onto the original model.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use burn::optim::AdamConfig;
use burn::tensor::TensorData;
use firebrick::datasets::{Batch, Batches, DataError};
use firebrick::strategies::{Adaptation, Composition, Paths};
use firebrick::{Data, Lora, Objective, Schedule, Trainer};
use firebrick_models::family::Family;
use firebrick_models::pretrained::{Pretrained, load_adapters, save, save_adapters, unsavable_adapter};
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
    // Of the number of the run, so that each is kept.
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let out = tempfile::tempdir().unwrap();
    let label = format!("{name}-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let out = trained_into::<M, B>(out.path(), (name, &label), lora, batch_of);
    let bytes = std::fs::read(out.join("adapter/adapter_model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let names =
        file.names().into_iter().map(|name| name.replace(|x: char| x.is_ascii_digit(), "#")).collect();
    let config = std::fs::read_to_string(out.join("adapter/adapter_config.json")).unwrap();
    (names, serde_json::from_str(&config).unwrap())
}

/// Does the same in a folder of this label, and returns it.
fn trained_into<M, B>(
    out: &Path,
    (name, label): (&str, &str),
    lora: Lora,
    batch_of: impl Fn(&Case) -> B,
) -> PathBuf
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let folder = folder(name);
    let config = folder.config().unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let out = kept_in(out, label);
    save(&model, &config, out.join("given")).unwrap();
    let data = Data::new(Same(batch_of(&cases(name)[0])));
    let trainer = Trainer::new().with(lora).steps(4);
    let trained = trainer.fit(model, AdamConfig::new().init(), Schedule::constant(0.05), data).unwrap();
    save(&trained.model, &config, out.join("merged")).unwrap();
    let adapters = trained.adapters.unwrap();
    let given = out.join("given").display().to_string();
    save_adapters(&adapters, (&trained.model, &config), &given, out.join("adapter")).unwrap();
    // What is written is read back as the same model.
    let read = load_adapters::<M>(&config, out.join("adapter")).unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    save(&read.merge_into(model).unwrap(), &config, out.join("again")).unwrap();
    let weights = |folder: &str| std::fs::read(out.join(folder).join("model.safetensors")).unwrap();
    assert!(weights("again") == weights("merged"), "{label}");
    out
}

/// Returns the folder of a run, which `tests/golden/opens_in_peft.py` reads if it is kept.
fn kept_in(out: &Path, label: &str) -> PathBuf {
    let kept = std::env::var_os("FIREBRICK_ADAPTED").map(PathBuf::from);
    kept.unwrap_or_else(|| out.into()).join(label)
}

/// The tensors of a file.
fn tensors(file: &Path) -> BTreeMap<String, (Vec<usize>, Vec<f64>)> {
    let bytes = std::fs::read(file).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| -> Vec<f64> {
        data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()).into()).collect()
    };
    file.iter().map(|(name, view)| (name.to_owned(), (view.shape().to_vec(), values(view.data())))).collect()
}

/// Trains factors, and checks that PEFT, which has values of its own for each place of a tied parameter, gets the trained
/// table at all of these places.
fn all_places_are_alike<M, B>(name: &str, lora: Lora, batch_of: impl Fn(&Case) -> B, places: &[&str])
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let out = tempfile::tempdir().unwrap();
    let is_plain = lora == lora.clone().also(Vec::<String>::new());
    let kind = match lora == lora.clone().dora() {
        true => "dora",
        false if is_plain => "lora",
        false => "also",
    };
    let label = format!("{name}-tied-{kind}");
    let out = trained_into::<M, B>(out.path(), (name, &label), lora, batch_of);
    let config = std::fs::read_to_string(out.join("adapter/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let scale = config["lora_alpha"].as_f64().unwrap() / config["r"].as_f64().unwrap();
    let lists = |field: &str, place: &str| {
        config[field].as_array().is_some_and(|names| names.iter().any(|name| name == place))
    };
    let [given, merged] =
        ["given", "merged"].map(|folder| tensors(&out.join(folder).join("model.safetensors")));
    let adapter = tensors(&out.join("adapter/adapter_model.safetensors"));
    let table = format!("{}.weight", places[0]);
    let (given, (shape, merged)) = (&given[&table].1, &merged[&table]);
    let [rows, columns] = shape[..] else { panic!("{shape:?}") };
    for place in places {
        let of = |factor: &str| adapter.get(&format!("base_model.model.{place}.{factor}"));
        let found: Vec<f64> = match (of("weight"), of("lora_A.weight"), of("lora_embedding_A")) {
            (Some((_, whole)), None, None) => {
                assert!(lists("modules_to_save", place), "{label} {place}");
                whole.clone()
            }
            // The product of a layer's factors is B·A, and that of a table's its transpose.
            (None, Some((a_shape, a)), None) => {
                let (b, rank) = (&of("lora_B.weight").unwrap().1, a_shape[0]);
                let product = |row: usize, column: usize| {
                    (0..rank).map(|at| b[row * rank + at] * a[at * columns + column]).sum::<f64>()
                };
                assert!(lists("target_modules", place), "{label} {place}");
                (0..rows * columns)
                    .map(|at| given[at] + scale * product(at / columns, at % columns))
                    .collect()
            }
            (None, None, Some((a_shape, a))) => {
                let (b, rank) = (&of("lora_embedding_B").unwrap().1, a_shape[0]);
                let product = |row: usize, column: usize| {
                    (0..rank).map(|at| b[column * rank + at] * a[at * rows + row]).sum::<f64>()
                };
                assert!(lists("target_modules", place), "{label} {place}");
                (0..rows * columns)
                    .map(|at| given[at] + scale * product(at / columns, at % columns))
                    .collect()
            }
            _ => panic!("{label}: {place} has no values, or too many"),
        };
        let furthest = found.iter().zip(merged).fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(found.len() == merged.len() && furthest < 1e-5, "{label} {place}: {furthest:e}");
        assert_ne!(given, merged, "{label} has learned");
    }
}

#[test]
fn tied_parameters_are_written_for_each_place() {
    let lora = || Lora::rank(2).alpha(4.0);
    let [also, on] = [lora().also(["tokens"]), lora().on(["tokens", "*.query.weight"])];
    let joined = || lora().on(["tokens", "*.query_key_value.weight"]);
    for lora in [also.clone(), on.clone()] {
        let causal = ["model.embed_tokens", "lm_head"];
        all_places_are_alike::<Llama, _>("llama3", lora.clone(), Case::causal, &causal);
        all_places_are_alike::<Llama, _>("gemma2", lora.clone(), Case::causal, &causal);
        let t5 = ["shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"];
        all_places_are_alike::<T5, _>("t5", lora.clone(), Case::seq2seq, &t5);
        let bart = ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"];
        all_places_are_alike::<Bart, _>("bart", lora, Case::seq2seq, &bart);
    }
    for lora in [also, joined()] {
        all_places_are_alike::<Gpt, _>("gpt2", lora, Case::causal, &["transformer.wte", "lm_head"]);
    }
    // Magnitudes of other matrices beside a table that is trained whole.
    let causal = ["model.embed_tokens", "lm_head"];
    all_places_are_alike::<Llama, _>("llama3", lora().dora().also(["tokens"]), Case::causal, &causal);
    let of_bert = ["bert.embeddings.word_embeddings", "cls.predictions.decoder"];
    let masked = |case: &Case| case.labeled(0);
    let lora_of_bert = lora().on(["*.tokens.weight", "*.query.weight"]);
    all_places_are_alike::<BertMaskedLm, _>("bert-masked-lm", lora_of_bert, masked, &of_bert);
    let (_, config) = adapted::<Llama, _>("llama3", lora(), Case::causal);
    assert_eq!(config["task_type"], "CAUSAL_LM");
    assert!(config["base_model_name_or_path"].as_str().unwrap().ends_with("given"), "{config}");
    let (_, config) = adapted::<BertMaskedLm, _>("bert-masked-lm", lora(), masked);
    assert_eq!(
        (&config["task_type"], &config["auto_mapping"]["base_model_class"]),
        (&Value::Null, &Value::from("BertForMaskedLM"))
    );
}

/// Trains and saves every combination of matrices with factors, parameters that are trained whole, and magnitudes. Those of a
/// `tied` table cannot be saved. `tables` are the matrix of tokens and what else a layer that reads it has, `query` the matrices
/// of queries, and `whole` is a module that no layer shares.
fn all_combinations<M, B>(
    name: &str,
    batch_of: impl Fn(&Case) -> B,
    tied: bool,
    (tables, query, whole): (&[&str], &str, &str),
) where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let out = tempfile::tempdir().unwrap();
    let lora = || Lora::rank(2).alpha(4.0);
    let table = tables[0];
    let on =
        [("attention", lora()), ("table", lora().on([table, query])), ("linear", lora().on_all_linear())];
    let both = tables.iter().copied().chain([whole]).collect();
    let also = [("nothing", vec![]), ("table", tables.to_vec()), ("module", vec![whole]), ("both", both)];
    for (on, lora) in on {
        for (whole, also) in &also {
            let is_twice = on == "table" && also.contains(&table);
            for dora in [false, true].into_iter().filter(|_| !is_twice) {
                let lora = lora.clone().also(also.iter().copied());
                let lora = if dora { lora.dora() } else { lora };
                let kind = if dora { "dora" } else { "lora" };
                let label = format!("{name}-{kind}-of-{on}-and-{whole}");
                if !(tied && dora && on == "table") {
                    trained_into::<M, B>(out.path(), (name, &label), lora, &batch_of);
                }
            }
        }
    }
}

#[test]
fn every_combination_is_saved_and_read() {
    let query = "*.query.weight";
    all_combinations::<Llama, _>("llama3", Case::causal, true, (&["tokens"], query, "norm"));
    all_combinations::<Llama, _>("llama", Case::causal, false, (&["tokens"], query, "head"));
    let joined = (&["tokens"][..], "*.query_key_value.weight", "norm");
    all_combinations::<Gpt, _>("gpt2", Case::causal, true, joined);
    all_combinations::<T5, _>("t5-untied", Case::seq2seq, true, (&["tokens"], query, "head"));
    let masked = |case: &Case| case.labeled(0);
    // The layer of the head that reads the table has the bias of the head, and that is in a module with all of the head.
    let of_bert = (&["*.tokens.weight", "bias", "transform"][..], query, "encoder.blocks.0.attention_norm");
    all_combinations::<BertMaskedLm, _>("bert-masked-lm", masked, true, of_bert);
    let of_texts = (&["*.tokens.weight"][..], query, "classifier");
    let classified = |case: &Case| case.classified(0);
    all_combinations::<BertSequenceClassifier, _>("bert-sequence", classified, false, of_texts);
}

/// Trains factors for an update.
fn adapters_of<M, B>(
    name: &str,
    lora: Lora,
    batch_of: impl Fn(&Case) -> B,
) -> (firebrick::Adapters, M, M::Config)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let folder = folder(name);
    let config = folder.config().unwrap();
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let data = Data::new(Same(batch_of(&cases(name)[0])));
    let trainer = Trainer::new().with(lora).steps(1);
    let trained = trainer.fit(model, AdamConfig::new().init(), Schedule::constant(0.05), data).unwrap();
    (trained.adapters.unwrap(), trained.model, config)
}

/// PEFT saves a module with all that is in it.
#[test]
fn a_module_of_which_a_part_is_frozen_cannot_be_saved_for_peft() {
    let lora = Lora::rank(2).also(["*.tokens.weight"]);
    let (adapters, model, config) =
        adapters_of::<BertMaskedLm, _>("bert-masked-lm", lora, |case| case.labeled(0));
    let reason = unsavable_adapter(&adapters, &model, &config).unwrap();
    assert!(reason.contains("`cls.predictions.decoder`, of which `bias` stay frozen"), "{reason}");
    let out = tempfile::tempdir().unwrap();
    let error = save_adapters(&adapters, (&model, &config), "bert", &out).unwrap_err().to_string();
    assert!(error.contains(&reason) && !out.path().join("adapter_config.json").exists(), "{error}");
}

/// PEFT looks for the values of the classifier if it is told the task, whether or not it was trained.
#[test]
fn a_frozen_classifier_has_no_task() {
    let (_, config) =
        adapted::<BertSequenceClassifier, _>("bert-sequence", Lora::rank(2), |case| case.classified(0));
    let class = &config["auto_mapping"]["base_model_class"];
    assert_eq!((&config["task_type"], class), (&Value::Null, &Value::from("BertForSequenceClassification")));
    let lora = Lora::rank(2).also(["classifier"]);
    let (_, config) = adapted::<BertSequenceClassifier, _>("bert-sequence", lora, |case| case.classified(0));
    assert_eq!((&config["task_type"], &config["auto_mapping"]), (&Value::from("SEQ_CLS"), &Value::Null));
}

#[test]
fn magnitudes_of_a_tied_table_cannot_be_saved_for_peft() {
    let lora = Lora::rank(2).dora().on(["tokens"]);
    let (adapters, model, config) = adapters_of::<Llama, _>("llama3", lora, Case::causal);
    let reason = unsavable_adapter(&adapters, &model, &config).unwrap();
    assert!(reason.contains("`tokens.weight` is tied") && reason.contains("`dora`"), "{reason}");
    let out = tempfile::tempdir().unwrap();
    let error = save_adapters(&adapters, (&model, &config), "llama3", &out).unwrap_err().to_string();
    assert!(error.contains(&reason), "{error}");
}

/// Trains factors of a model that has two tokens more than its folder, and saves the folder, the factors, and both merged.
/// `tables` are the names of what has a row for each token.
fn grows<M, B>(name: &str, lora: Lora, batch_of: impl Fn(&Case) -> B, tables: &[&str])
where
    M: Pretrained + Objective<B> + 'static,
    M::Config: Family,
    B: Batch + Clone + Sync,
{
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let out = tempfile::tempdir().unwrap();
    let label = format!("{name}-grown-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    let out = kept_in(out.path(), &label);
    let folder = folder(name);
    let config: M::Config = folder.config().unwrap();
    let small = folder.load::<M>(&config, &device()).unwrap().model;
    save(&small, &config, out.join("given")).unwrap();
    let (from, to) = (config.vocabulary(), config.vocabulary() + 2);
    let (folder, config) = (folder.growing(from, to), config.with_vocabulary(to));
    let model = folder.load::<M>(&config, &device()).unwrap().model;
    let data = Data::new(Same(batch_of(&cases(name)[0])));
    let trainer = Trainer::new().with(lora).steps(4);
    let trained =
        trainer.fit(model.clone(), AdamConfig::new().init(), Schedule::constant(0.05), data).unwrap();
    save(&trained.model, &config, out.join("merged")).unwrap();
    let adapters = trained.adapters.unwrap().with_given(folder.grown::<M>(&config).unwrap());
    let given = out.join("given").display().to_string();
    save_adapters(&adapters, (&trained.model, &config), &given, out.join("adapter")).unwrap();

    // As PEFT names them: as in the model, or below `base_layer` if they have factors.
    let written = std::fs::read_to_string(out.join("adapter/adapter_config.json")).unwrap();
    let written: Value = serde_json::from_str(&written).unwrap();
    let saved = tensors(&out.join("adapter/adapter_model.safetensors"));
    for table in tables {
        let (module, leaf) = table.rsplit_once('.').unwrap();
        let targets = written["target_modules"].as_array().unwrap();
        let base = if targets.iter().any(|target| target == module) { ".base_layer" } else { "" };
        let name = format!("base_model.model.{module}{base}.{leaf}");
        assert_eq!(saved.get(&name).map(|(shape, _)| shape[0]), Some(to), "{label}: {name}");
    }
    let read = load_adapters::<M>(&config, out.join("adapter")).unwrap();
    let paths = |values: &[(String, TensorData)]| {
        values.iter().map(|(path, _)| path.clone()).collect::<BTreeSet<_>>()
    };
    assert_eq!(paths(&read.whole), paths(&adapters.whole), "{label}");
    assert_eq!(paths(&read.given), paths(&adapters.given), "{label}");
    let weights = |model: &M, folder: &str| {
        save(model, &config, out.join(folder)).unwrap();
        std::fs::read(out.join(folder).join("model.safetensors")).unwrap()
    };
    let merged = std::fs::read(out.join("merged/model.safetensors")).unwrap();
    assert!(weights(&read.clone().merge_into(model.clone()).unwrap(), "again") == merged, "{label}");
    // The model gets the values of the file, and not others that it may have.
    let mut other = read.clone();
    if !other.given.is_empty() {
        other
            .given
            .iter_mut()
            .for_each(|(_, data)| *data = TensorData::zeros::<f32, _>(data.shape().clone()));
        assert!(weights(&other.merge_into(model).unwrap(), "other") != merged, "{label}");
        let error = read.merge_into(small).unwrap_err().to_string();
        assert!(
            error.contains("read the data with the tokenizer that it was trained with"),
            "{label}: {error}"
        );
    }
}

/// transformers gives encoder and decoder one module when it resizes their table, and PEFT wraps it at one place.
#[test]
fn factors_of_a_shared_table_that_has_grown_cannot_be_saved_for_peft() {
    let lora = Lora::rank(2).on(["tokens"]);
    let (adapters, model, config) = adapters_of::<T5, _>("t5", lora, Case::seq2seq);
    assert_eq!(unsavable_adapter(&adapters, &model, &config), None);
    let (rows, columns) = (adapters.factors[0].a.shape()[0], adapters.factors[0].b.shape()[1]);
    let grown =
        adapters.with_given([("tokens.weight".to_owned(), TensorData::zeros::<f32, _>([rows, columns]))]);
    let reason = unsavable_adapter(&grown, &model, &config).unwrap();
    assert!(reason.contains("`tokens.weight` has grown") && reason.contains("`also`"), "{reason}");
}

#[test]
fn tables_that_have_grown_are_saved_with_the_factors() {
    let lora = || Lora::rank(2).alpha(4.0);
    let tied = ["model.embed_tokens.weight", "lm_head.weight"];
    let query = "*.query.weight";
    for lora in [lora(), lora().on(["tokens", query]), lora().also(["tokens"]), lora().also(["norm"])] {
        grows::<Llama, _>("llama3", lora, Case::causal, &tied);
    }
    // The head has rows of its own.
    for lora in
        [lora(), lora().on(["tokens", query]), lora().dora().on(["tokens", query]), lora().also(["head"])]
    {
        grows::<Llama, _>("llama", lora, Case::causal, &tied);
    }
    grows::<Gpt, _>("gpt2", lora(), Case::causal, &["transformer.wte.weight", "lm_head.weight"]);
    let of_t5 =
        ["shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"];
    let of_bart = ["model.shared.weight", "model.encoder.embed_tokens.weight", "lm_head.weight"];
    for lora in [lora(), lora().also(["tokens"])] {
        grows::<T5, _>("t5", lora.clone(), Case::seq2seq, &of_t5);
        grows::<Bart, _>("bart", lora, Case::seq2seq, &of_bart);
    }
    let masked = |case: &Case| case.labeled(0);
    let table = "bert.embeddings.word_embeddings.weight";
    let of_head = ["cls.predictions.bias", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"];
    for lora in [lora(), lora().on(["*.tokens.weight", query])] {
        grows::<BertMaskedLm, _>("bert-masked-lm", lora, masked, &[&[table][..], &of_head].concat());
    }
    grows::<BertSequenceClassifier, _>("bert-sequence", lora(), |case| case.classified(0), &[table]);
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
