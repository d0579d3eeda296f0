//! Hugging Face folders: what is read, written and refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::tensor::Device;
use firebrick_models::family::Family;
use firebrick_models::pretrained::{Folder, ForcedTokens, Pretrained, PretrainedError, Unfit, save};
use firebrick_models::{
    Bart, BartConfig, BertConfig, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, Gpt, Gpt2Config,
    Llama, ModernBertConfig, ModernBertMaskedLm, ModernBertSequenceClassifier, ModernBertTokenClassifier, T5,
    T5Config,
};
use serde_json::{Value, json};

use crate::support::golden_models::{bits, device, folder, path};

/// Loads, saves and loads again.
fn round_trip<M: Pretrained>(name: &str) {
    let first = folder(name);
    let config = first.config().unwrap();
    let loaded = first.load::<M>(&config, &device()).unwrap();
    let out = tempfile::tempdir().unwrap();
    // For `tests/golden/opens_in_transformers.py`.
    let kept = std::env::var_os("FIREBRICK_SAVED").map(PathBuf::from);
    let out = kept.unwrap_or_else(|| out.path().into()).join(name);
    save(&loaded.model, &config, &out).unwrap();

    let again = Folder::open(&out).unwrap();
    let again_config = again.config().unwrap();
    let reloaded = again.load::<M>(&again_config, &device()).unwrap();
    assert!(reloaded.fresh.is_empty() && reloaded.unread.is_empty(), "{name}: {:?}", reloaded.unread);
    assert!(bits(&reloaded.model) == bits(&loaded.model), "{name}: other numbers");
    assert_eq!(again.architectures(), first.architectures(), "{name}");

    // Fields that Firebrick does not use are kept, and no other file is written.
    let fields = |path: &Path| -> Value {
        serde_json::from_slice(&fs::read(path.join("config.json")).unwrap()).unwrap()
    };
    let (before, after) = (fields(&path(name)), fields(again.path()));
    for (field, value) in before.as_object().unwrap() {
        let expected = if field == "dtype" { &json!("float32") } else { value };
        assert_eq!(&after[field], expected, "{name}: {field}");
    }
    let mut files: Vec<_> =
        fs::read_dir(again.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    files.sort();
    assert_eq!(files, ["config.json", "model.safetensors"]);
}

#[test]
fn what_was_saved_is_loaded_to_the_bit() {
    round_trip::<BertTokenClassifier>("bert-tokens");
    round_trip::<BertSequenceClassifier>("bert-sequence");
    round_trip::<BertSequenceClassifier>("xlm-roberta-sequence");
    round_trip::<BertMaskedLm>("bert-masked-lm");
    round_trip::<BertMaskedLm>("roberta-masked-lm");
    for family in ["distilbert", "electra", "deberta"] {
        round_trip::<BertTokenClassifier>(&format!("{family}-tokens"));
        round_trip::<BertSequenceClassifier>(&format!("{family}-sequence"));
        round_trip::<BertMaskedLm>(&format!("{family}-masked-lm"));
    }
    round_trip::<BertTokenClassifier>("deberta-convolved");
    round_trip::<BertMaskedLm>("deberta-masked-lm-new");
    round_trip::<ModernBertTokenClassifier>("modernbert-tokens");
    round_trip::<ModernBertSequenceClassifier>("modernbert-sequence");
    round_trip::<ModernBertSequenceClassifier>("modernbert-sequence-mean");
    round_trip::<ModernBertMaskedLm>("modernbert-masked-lm");
    round_trip::<Gpt>("gpt2");
    round_trip::<Gpt>("gpt2-untied");
    round_trip::<Llama>("llama");
    round_trip::<Llama>("llama3");
    round_trip::<Llama>("qwen2");
    round_trip::<Llama>("mistral");
    round_trip::<Llama>("qwen2-windows");
    round_trip::<Llama>("qwen3");
    round_trip::<Llama>("qwen3-windows");
    round_trip::<Llama>("phi3");
    round_trip::<Llama>("phi3-longrope");
    round_trip::<Llama>("gemma2");
    round_trip::<Llama>("gemma2-uncapped");
    round_trip::<Llama>("gemma3");
    round_trip::<Llama>("gemma3-scaled");
    round_trip::<T5>("t5");
    round_trip::<T5>("t5-untied");
    round_trip::<T5>("mt5");
    round_trip::<T5>("mt5-untied");
    round_trip::<Bart>("bart");
    round_trip::<Bart>("bart-scaled");
}

#[test]
fn a_new_head_starts_anew_and_that_of_another_task_is_passed_over() {
    let folder = folder("bert-masked-lm");
    let config = folder.config::<BertConfig>().unwrap().with_labels(["O", "B-X", "I-X"]);
    let loaded = folder.load::<BertTokenClassifier>(&config, &device()).unwrap();
    assert_eq!(loaded.fresh, ["classifier.bias", "classifier.weight"]);
    assert_eq!(loaded.unread.len(), 5);
    assert!(loaded.unread.iter().all(|name| name.starts_with("cls.predictions.")), "{:?}", loaded.unread);

    let loaded = folder.load::<BertSequenceClassifier>(&config, &device()).unwrap();
    let fresh =
        ["classifier.bias", "classifier.weight", "bert.pooler.dense.bias", "bert.pooler.dense.weight"];
    assert_eq!(loaded.fresh, fresh);
    // The head is drawn, and equal for every reader.
    let drawn = bits(&loaded.model);
    assert!(drawn == bits(&loaded.model.valid()) && drawn.iter().any(|&bits| bits != 0));
}

/// A classifier starts from the head of a masked LM, but for its last layer.
#[test]
fn a_classifier_keeps_the_layer_that_it_shares_with_a_masked_lm() {
    let folder = folder("modernbert-masked-lm");
    let config = folder.config::<ModernBertConfig>().unwrap().with_labels(["O", "B-X", "I-X"]);
    let loaded = folder.load::<ModernBertTokenClassifier>(&config, &device()).unwrap();
    assert_eq!(loaded.fresh, ["classifier.bias", "classifier.weight"]);
    assert_eq!(loaded.unread, ["decoder.bias"]);
}

fn unfit<M: Pretrained>(name: &str, config: &M::Config) -> (Unfit, String) {
    match folder(name).load::<M>(config, &Device::flex()) {
        Err(PretrainedError::Tensors(unfit)) => {
            let text = unfit.to_string();
            (*unfit, text)
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was loaded"),
    }
}

#[test]
fn tensors_that_do_not_fit_are_listed_by_name() {
    let config = folder("bert-tokens").config::<BertConfig>().unwrap();
    let deeper = BertConfig { num_hidden_layers: 3, ..config.clone() };
    let (found, text) = unfit::<BertTokenClassifier>("bert-tokens", &deeper);
    assert_eq!((found.missing.len(), found.extra.len() + found.misshapen.len()), (16, 0));
    assert!(found.missing.iter().all(|(name, _)| name.starts_with("bert.encoder.layer.2.")));
    // In the layout of the file.
    let wide = ("bert.encoder.layer.2.intermediate.dense.weight".to_owned(), vec![24, 16]);
    assert!(found.missing.contains(&wide), "{text}");
    assert!(text.contains("missing:") && text.contains("expected [24, 16]"), "{text}");

    let shallower = BertConfig { num_hidden_layers: 1, ..config.clone() };
    let (found, text) = unfit::<BertTokenClassifier>("bert-tokens", &shallower);
    assert_eq!((found.extra.len(), found.missing.len()), (16, 0), "{text}");

    let narrower = BertConfig { intermediate_size: 8, ..config.clone() }.with_labels(["a"]);
    let (found, text) = unfit::<BertTokenClassifier>("bert-tokens", &narrower);
    assert!(text.contains("classifier.weight, expected [1, 16], found [5, 16]"), "{text}");
    assert_eq!((found.misshapen.len(), found.missing.len() + found.extra.len()), (8, 0), "{text}");

    // The folder has a classifier, but not one of this head's shape.
    let config = folder("xlm-roberta-sequence").config::<BertConfig>().unwrap();
    let config = BertConfig { model_type: "bert".into(), ..config };
    let (found, _) = unfit::<BertSequenceClassifier>("xlm-roberta-sequence", &config);
    assert!(!found.missing.is_empty() && !found.extra.is_empty());
    let error = folder("gpt2").config::<BertConfig>().unwrap_err().to_string();
    assert!(error.contains("`model_type`") && error.contains("found gpt2"), "{error}");
}

#[test]
fn a_head_of_its_own_is_found_where_config_json_says_that_it_is_tied() {
    let out = copied("gpt2-untied");
    edit(&out.path().join("config.json"), |config| config["tie_word_embeddings"] = json!(true));
    let folder = Folder::open(out.path()).unwrap();
    let config = folder.config::<Gpt2Config>().unwrap();
    assert!(!config.tie_word_embeddings);
    assert!(folder.load::<Gpt>(&config, &device()).is_ok());
    let tied = Gpt2Config { tie_word_embeddings: true, ..config };
    let error = folder.load::<Gpt>(&tied, &device()).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight, expected the values of transformer.wte.weight"), "{error}");
}

/// As in transformers.
#[test]
fn an_mt5_without_a_head_is_tied_whatever_config_json_says() {
    let out = copied("mt5");
    edit(&out.path().join("config.json"), |config| config["tie_word_embeddings"] = json!(false));
    let folder = Folder::open(out.path()).unwrap();
    let config = folder.config::<T5Config>().unwrap();
    assert!(config.tie_word_embeddings);
    assert!(folder.load::<T5>(&config, &device()).is_ok());
}

#[test]
fn a_bart_without_its_head_is_opened() {
    let out = copied("bart-scaled");
    edit(&out.path().join("config.json"), |config| config["architectures"] = json!(["BartModel"]));
    let folder = Folder::open(out.path()).unwrap();
    let loaded = folder.load::<Bart>(&folder.config().unwrap(), &device()).unwrap();
    assert!(loaded.fresh.is_empty() && loaded.unread.is_empty(), "{:?}", loaded.fresh);
    // It is saved with a bias of 0, which transformers has there too.
    save(&loaded.model, &folder.config().unwrap(), out.path()).unwrap();
    let bytes = fs::read(out.path().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let bias = file.tensor("final_logits_bias").unwrap();
    assert_eq!(bias.shape(), [1, 29]);
    assert!(bias.data().iter().all(|byte| *byte == 0));
}

#[test]
fn other_heads_of_a_bart_are_refused_by_name() {
    for head in ["BartForSequenceClassification", "BartForQuestionAnswering", "BartForCausalLM"] {
        let out = copied("bart");
        edit(&out.path().join("config.json"), |config| config["architectures"] = json!([head]));
        let error = Folder::open(out.path()).unwrap().config::<BartConfig>().unwrap_err().to_string();
        let expected = "`architectures`: expected BartForConditionalGeneration or BartModel, found ";
        assert!(error.contains(&format!("{expected}{head}")), "{error}");
    }
}

/// As in transformers.
#[test]
fn forced_tokens_are_those_of_the_settings_for_text_if_there_are_any() {
    let out = copied("bart");
    let forced = || Folder::open(out.path()).unwrap().forced_tokens();
    assert_eq!(forced().unwrap(), ForcedTokens { first: None, last: vec![2] });
    edit(&out.path().join("config.json"), |config| config["forced_bos_token_id"] = json!(0));
    assert_eq!(forced().unwrap(), ForcedTokens { first: Some(0), last: vec![2] });
    // A field that is absent has the value of the class, and one that is null has none.
    let ends = || Folder::open(out.path()).unwrap().end_tokens();
    edit(&out.path().join("config.json"), |config| {
        let fields = config.as_object_mut().unwrap();
        ["forced_eos_token_id", "eos_token_id"].iter().for_each(|name| drop(fields.remove(*name)));
    });
    assert_eq!((forced().unwrap().last, ends().unwrap()), (vec![2], vec![2]));
    edit(&out.path().join("config.json"), |config| config["eos_token_id"] = Value::Null);
    assert_eq!(ends().unwrap(), [0; 0]);
    let settings = out.path().join("generation_config.json");
    fs::write(&settings, r#"{"forced_eos_token_id": [9, 8]}"#).unwrap();
    assert_eq!(forced().unwrap(), ForcedTokens { first: None, last: vec![9, 8] });
    fs::write(&settings, "{}").unwrap();
    assert_eq!(forced().unwrap(), ForcedTokens::default());
    for wrong in [r#"{"forced_bos_token_id": [1, 2]}"#, r#"{"forced_bos_token_id": "<s>"}"#] {
        fs::write(&settings, wrong).unwrap();
        let error = forced().unwrap_err().to_string();
        assert!(error.contains("generation_config.json: `forced_bos_token_id`: expected the id"), "{error}");
    }
}

/// Renames a tensor in a file, which begins with the length of a JSON text that places the tensors after it.
fn rename(file: &Path, from: &str, to: &str) {
    let bytes = fs::read(file).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, numbers) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let tensor = header.as_object_mut().unwrap().remove(from).unwrap();
    header[to] = tensor;
    let header = header.to_string();
    fs::write(file, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), numbers].concat()).unwrap();
}

#[test]
fn a_tied_tensor_is_found_under_any_of_its_names() {
    let out = copied("t5");
    let weights = out.path().join("model.safetensors");
    rename(&weights, "shared.weight", "decoder.embed_tokens.weight");
    let load = || {
        let folder = Folder::open(out.path()).unwrap();
        folder.load::<T5>(&folder.config().unwrap(), &device())
    };
    assert!(load().unwrap().unread.is_empty());
    rename(&weights, "decoder.embed_tokens.weight", "embed_tokens.weight");
    let error = load().unwrap_err().to_string();
    assert!(error.contains("shared.weight, expected [29, 16]"), "{error}");
    assert!(error.contains("embed_tokens.weight, found [29, 16]"), "{error}");
}

#[test]
fn weights_in_several_files_are_replaced_by_one() {
    let out = copied("bert-masked-lm");
    let load = || {
        let folder = Folder::open(out.path()).unwrap();
        let config = folder.config().unwrap();
        (folder.load::<BertMaskedLm>(&config, &device()).unwrap().model, config)
    };
    let (model, config) = load();
    save(&model, &config, out.path()).unwrap();
    assert!(!out.path().join("model.safetensors.index.json").exists());
    assert!(bits(&load().0) == bits(&model));
}

/// Loads a folder with more tokens, and compares each tensor that has a row for each token with its mean.
fn grows<M: Pretrained>(name: &str, tables: &[&str])
where
    M::Config: Family,
{
    let given = folder(name);
    let config: M::Config = given.config().unwrap();
    let (from, to) = (config.vocabulary(), config.vocabulary() + 3);
    let more = config.clone().with_vocabulary(to);
    // Unless it is asked for, other shapes are refused.
    let refused = given.load::<M>(&more, &device()).unwrap_err().to_string();
    assert!(refused.contains("of a different shape"), "{refused}");
    let saved = |model: &M, config: &M::Config| {
        let out = tempfile::tempdir().unwrap();
        save(model, config, out.path()).unwrap();
        let bytes = fs::read(out.path().join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let numbers = |data: &[u8]| -> Vec<f32> {
            data.chunks(4).map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect()
        };
        file.iter().map(|(name, view)| (name.to_owned(), numbers(view.data()))).collect::<BTreeMap<_, _>>()
    };
    let before = saved(&given.load::<M>(&config, &device()).unwrap().model, &config);
    let given = given.growing(from, to);
    for later in [false, true] {
        let loaded =
            if later { given.load_later::<M>(&more, &device()) } else { given.load::<M>(&more, &device()) };
        let after = saved(&loaded.unwrap().model, &more);
        assert_eq!(before.len(), after.len());
        for (tensor, after) in after {
            let before = &before[&tensor];
            assert!(after.starts_with(before), "{name} {tensor}");
            assert_eq!(after.len() > before.len(), tables.contains(&&*tensor), "{name} {tensor}");
            let width = before.len() / from;
            for (at, new) in after[before.len()..].iter().enumerate() {
                let rows = before.iter().skip(at % width).step_by(width);
                let mean = rows.map(|number| f64::from(*number)).sum::<f64>() / from as f64;
                let expected = if tensor == "final_logits_bias" { 0.0 } else { mean };
                assert!((f64::from(*new) - expected).abs() < 1e-6, "{name} {tensor}: {new} {expected}");
            }
        }
    }
}

#[test]
fn tokens_that_a_folder_lacks_get_the_mean_of_the_others() {
    grows::<Llama>("llama", &["model.embed_tokens.weight", "lm_head.weight"]);
    grows::<Llama>("llama3", &["model.embed_tokens.weight"]);
    grows::<Gpt>("gpt2-untied", &["transformer.wte.weight", "lm_head.weight"]);
    grows::<T5>("t5", &["shared.weight"]);
    grows::<Bart>("bart", &["model.shared.weight", "final_logits_bias"]);
    let bert = ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"];
    grows::<BertMaskedLm>("bert-masked-lm", &bert);
    grows::<BertTokenClassifier>("bert-tokens", &bert[..1]);
    grows::<ModernBertMaskedLm>(
        "modernbert-masked-lm",
        &["model.embeddings.tok_embeddings.weight", "decoder.bias"],
    );
}

/// Copies a folder.
fn copied(name: &str) -> tempfile::TempDir {
    let out = tempfile::tempdir().unwrap();
    for file in fs::read_dir(path(name)).unwrap() {
        let file = file.unwrap();
        fs::write(out.path().join(file.file_name()), fs::read(file.path()).unwrap()).unwrap();
    }
    out
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Returns the error of opening a folder after `harm` changed it.
fn refusal(name: &str, harm: impl FnOnce(&Path)) -> String {
    let folder = copied(name);
    harm(folder.path());
    match Folder::open(folder.path()) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn an_index_that_does_not_fit_is_refused() {
    const INDEX: &str = "model.safetensors.index.json";
    let first = "model-00001-of-00002.safetensors";
    let place = |file: &'static str| {
        move |folder: &Path| {
            edit(&folder.join(INDEX), |index| index["weight_map"]["cls.predictions.bias"] = json!(file));
        }
    };
    for outside in ["../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..", "", "config.json"] {
        let error = refusal("bert-masked-lm", place(outside));
        assert!(error.contains(INDEX) && error.contains(&format!("found `{outside}`")), "{error}");
    }
    let error = refusal("bert-masked-lm", place(first));
    assert!(error.contains(&format!("places `cls.predictions.bias` in {first}")), "{error}");
    let error = refusal("bert-masked-lm", |folder| fs::remove_file(folder.join(first)).unwrap());
    assert!(error.contains(first), "{error}");
    let error = refusal("bert-masked-lm", |folder| fs::write(folder.join(INDEX), "{}").unwrap());
    assert!(error.contains("weight_map"), "{error}");
}

#[test]
fn damaged_files_are_refused_by_name() {
    let weights = "model.safetensors";
    let cut = |folder: &Path| {
        let bytes = fs::read(folder.join(weights)).unwrap();
        fs::write(folder.join(weights), &bytes[..bytes.len() - 4]).unwrap();
    };
    let error = refusal("gpt2", cut);
    assert!(error.contains(weights) && error.contains("download the file again"), "{error}");
    let error = refusal("gpt2", |folder| fs::write(folder.join(weights), []).unwrap());
    assert!(error.contains(weights), "{error}");
    let error = refusal("gpt2", |folder| {
        fs::rename(folder.join(weights), folder.join("pytorch_model.bin")).unwrap();
    });
    assert!(error.contains("found pytorch_model.bin"), "{error}");
    let error = refusal("gpt2", |folder| fs::write(folder.join("config.json"), "[1]").unwrap());
    assert!(error.contains("config.json") && error.contains("expected an object"), "{error}");
    let error = refusal("gpt2", |folder| fs::remove_file(folder.join("config.json")).unwrap());
    assert!(error.contains("config.json"), "{error}");
}
