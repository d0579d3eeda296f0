//! The fields of a `tokenizer_config.json` that transformers' classes follow.

use std::{fs, sync::Arc};

use firebrick_datasets::{DataError, Encoder, Input, Tokenizer, Tokens};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::golden;

#[derive(Deserialize)]
struct Case {
    tokenizer: String,
    patch: Map<String, Value>,
    config: Value,
    model: Value,
    ids: Vec<Vec<u32>>,
    pair: Vec<u32>,
    types: Vec<u32>,
}

/// Reads the tokenizer of a folder with these files.
fn read(
    name: &str,
    patch: &Map<String, Value>,
    config: &Value,
    model: &Value,
) -> Result<Arc<Tokenizer>, DataError> {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(format!("tests/golden/{name}/tokenizer.json")).unwrap();
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    for (pointer, value) in patch {
        *tokenizer.pointer_mut(pointer).unwrap() = value.clone();
    }
    for (file, content) in
        [("tokenizer.json", &tokenizer), ("tokenizer_config.json", config), ("config.json", model)]
    {
        fs::write(folder.path().join(file), content.to_string()).unwrap();
    }
    Tokenizer::from_file(folder.path()).map(Arc::new)
}

#[test]
fn equal_to_transformers() {
    let texts: Vec<String> = golden("classes", "texts");
    let [first, second] = ["first", "second"].map(|part| golden::<String>("classes", part));
    let cases: Vec<Case> = golden("classes", "cases");
    assert!(cases.len() > 30);
    for Case { tokenizer, patch, config, model, ids, pair, types } in cases {
        let told = format!("{tokenizer} {patch:?} {config} {model}");
        let encoder = Encoder::new(read(&tokenizer, &patch, &config, &model).unwrap());
        let found: Vec<_> = texts.iter().map(|text| encoder.ids(text).unwrap()).collect();
        assert_eq!(found, ids, "{told}");
        let encoding = encoder.encode(Input::Text(&first), Some(Input::Text(&second))).unwrap().remove(0);
        let tokens = Tokens::of(encoding, encoder.tokenizer());
        assert_eq!(tokens, Tokens { ids: pair, type_ids: types }, "{told}");

        // After saving, the tokenizer no longer depends on the class.
        let folder = tempfile::tempdir().unwrap();
        encoder.tokenizer().save(folder.path().join("tokenizer.json")).unwrap();
        let again = Tokenizer::from_file(folder.path()).unwrap();
        assert_eq!(again.fingerprint().unwrap(), encoder.tokenizer().fingerprint().unwrap(), "{told}");
        assert_eq!(again.segments(), encoder.tokenizer().segments(), "{told}");
    }
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let sequence = json!({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}]});
    let normalizer = Map::from_iter([("/normalizer".to_owned(), sequence)]);
    let bert = |field: &str, value: Value| json!({"tokenizer_class": "BertTokenizer", field: value});
    read("wordpiece", &normalizer, &bert("do_lower_case", true.into()), &json!({})).unwrap();
    let llama = |prefix: bool| json!({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": prefix});
    read("unigram", &Map::new(), &llama(true), &json!({})).unwrap();
    read("bytebpe", &Map::new(), &llama(false), &json!({})).unwrap();
    for (name, patch, config, expected) in [
        (
            "wordpiece",
            &normalizer,
            bert("do_lower_case", false.into()),
            "field `do_lower_case`: expected true, which the normalizer",
        ),
        (
            "wordpiece",
            &normalizer,
            bert("tokenize_chinese_chars", true.into()),
            "field `tokenize_chinese_chars`: expected false",
        ),
        (
            "wordpiece",
            &Map::new(),
            bert("do_lower_case", "no".into()),
            "expected true or false, found \"no\"",
        ),
        (
            "unigram",
            &Map::new(),
            llama(false),
            "field `add_prefix_space`: expected true, which the pre_tokenizer or normalizer",
        ),
        (
            "bytebpe",
            &Map::new(),
            json!({"model_input_names": ["input_ids"]}),
            "field `model_input_names`: expected a list with `attention_mask`",
        ),
    ] {
        let error = read(name, patch, &config, &json!({})).unwrap_err();
        assert!(matches!(error, DataError::TokenizerConfig { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}
