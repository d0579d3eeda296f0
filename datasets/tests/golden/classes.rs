//! The fields of a `tokenizer_config.json` that transformers' classes follow.

use std::{fs, sync::Arc};

use firebrick_datasets::collators::Tokens;
use firebrick_datasets::{DataError, Encoder, Input, Tokenizer, TokenizerError};
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
    decoded: Vec<String>,
    /// Whether versions 4 and 5 make the same ids; `None` if version 4 cannot read the folder.
    agrees: Option<bool>,
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
    assert!(cases.len() > 90);
    for Case { tokenizer, patch, config, model, ids, decoded, agrees, pair, types } in cases {
        let case = format!("{tokenizer} {patch:?} {config} {model}");
        let encoder = Encoder::new(read(&tokenizer, &patch, &config, &model).unwrap());
        let found: Vec<_> = texts.iter().map(|text| encoder.ids(text).unwrap()).collect();
        assert_eq!(found, ids, "{case}");
        let found: Vec<_> = ids.iter().map(|row| encoder.tokenizer().decode(row).unwrap()).collect();
        assert_eq!(found, decoded, "{case}");
        // Where the versions differ, a warning says so, and only there.
        let warnings = encoder.tokenizer().warnings();
        let other =
            |field: &str| ["tokenizer_class", "added_tokens_decoder", "model_input_names"].contains(&field);
        if let Some(agrees) = agrees {
            let warned = warnings.iter().any(|warning| !other(&warning.field));
            assert_ne!(agrees, warned, "{case}: {warnings:?}");
        }
        let encoding = encoder.encode(Input::Text(&first), Some(Input::Text(&second))).unwrap().remove(0);
        let tokens = Tokens::of(encoding, encoder.tokenizer());
        // For an unknown class, nothing says whether its model reads the segments that the file makes.
        let types = encoder.tokenizer().segments().map_or(tokens.type_ids.clone(), |_| types);
        assert_eq!(tokens, Tokens { ids: pair, type_ids: types }, "{case}");

        // After saving, the tokenizer no longer depends on the class.
        let folder = tempfile::tempdir().unwrap();
        encoder.tokenizer().save(folder.path().join("tokenizer.json")).unwrap();
        let again = Tokenizer::from_file(folder.path()).unwrap();
        assert_eq!(again.fingerprint().unwrap(), encoder.tokenizer().fingerprint().unwrap(), "{case}");
        if let Some(segments) = encoder.tokenizer().segments() {
            assert_eq!(again.segments(), Some(segments), "{case}");
        }
        assert_eq!(again.warnings(), [], "{case}");
        let found: Vec<_> = ids.iter().map(|row| again.decode(row).unwrap()).collect();
        assert_eq!(found, decoded, "{case}");
        let again = Encoder::new(Arc::new(again));
        let found: Vec<_> = texts.iter().map(|text| again.ids(text).unwrap()).collect();
        assert_eq!(found, ids, "{case}");
    }
}

#[test]
fn contradicting_settings_are_errors() {
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
            "field `do_lower_case`: expected true, as in the normalizer",
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
            "field `add_prefix_space`: expected true, as in the pre_tokenizer or normalizer",
        ),
        (
            "bytebpe",
            &Map::new(),
            json!({"model_input_names": ["input_ids"]}),
            "field `model_input_names`: expected a list with `attention_mask`",
        ),
        (
            "wordpiece",
            &Map::new(),
            json!({"added_tokens_decoder": {"x": {"content": "<new>"}}}),
            "field `added_tokens_decoder`: expected whole numbers as ids",
        ),
        (
            "wordpiece",
            &Map::new(),
            json!({"added_tokens_decoder": {"320": {"content": "<new>", "lstrip": 1}}}),
            "field `added_tokens_decoder`: expected whole numbers as ids",
        ),
        (
            "wordpiece",
            &Map::new(),
            json!({"added_tokens_decoder": ["<new>"]}),
            "field `added_tokens_decoder`: expected an object of tokens by their ids",
        ),
    ] {
        let error = read(name, patch, &config, &json!({})).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerConfig { .. })), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn ignored_settings_are_warnings() {
    let class = |name: &str, fields: Value| {
        let mut config = json!({"tokenizer_class": name});
        config.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        config
    };
    let token = json!({"content": "<new>", "special": true});
    let no_mask = Map::from_iter([("/added_tokens".to_owned(), json!([]))]);
    for (name, patch, config, model, expected) in [
        (
            "bytebpe",
            &Map::new(),
            class("UnheardOfTokenizerFast", json!({})),
            json!({}),
            &[
                "field `tokenizer_class`: how transformers changes a tokenizer.json for \"UnheardOfTokenizerFast\" is unknown",
                "field `add_prefix_space`: it is missing, for which UnheardOfTokenizerFast adds no space before each text",
            ][..],
        ),
        (
            "unigram",
            &Map::new(),
            json!({}),
            json!({"model_type": "albert"}),
            &["config.json`, field `model_type`"],
        ),
        ("unigram", &Map::new(), json!({}), json!({"model_type": "t5"}), &[]),
        (
            "wordpiece",
            &Map::new(),
            json!({"add_bos_token": false, "add_eos_token": true}),
            json!({"model_type": "mistral"}),
            &["field `add_bos_token`: it is false, for which mistral adds no special token before each text"],
        ),
        (
            "unigram",
            &Map::new(),
            class("LlamaTokenizer", json!({"add_bos_token": true})),
            json!({}),
            &[
                "field `add_bos_token`: it is true, for which LlamaTokenizer adds a special token before each text in \
             transformers 4, and none in transformers 5",
                "field `add_eos_token`: it is missing, for which LlamaTokenizer adds no special token after each text",
            ],
        ),
        ("wordpiece", &Map::new(), class("GemmaTokenizer", json!({})), json!({}), &["field `add_eos_token`"]),
        (
            "wordpiece",
            &Map::new(),
            class("PreTrainedTokenizerFast", json!({})),
            json!({"model_type": "bert"}),
            &["field `model_input_names`: it is missing, so the model gets no segments"],
        ),
        (
            "wordpiece",
            &Map::new(),
            class("PreTrainedTokenizerFast", json!({"added_tokens_decoder": {"9": token}})),
            json!({}),
            &["field `added_tokens_decoder`: the token \"<new>\" has the id 320, as in transformers, not 9"],
        ),
        (
            "wordpiece",
            &no_mask,
            class("PreTrainedTokenizerFast", json!({"mask_token": "[MASK]"})),
            json!({}),
            &["field `mask_token`: transformers encodes \"[MASK]\" within a text as one token"],
        ),
        (
            "wordpiece",
            &Map::new(),
            class("PreTrainedTokenizerFast", json!({"mask_token": "[MASK]"})),
            json!({}),
            &[],
        ),
    ] {
        let tokenizer = read(name, patch, &config, &model).unwrap();
        let found: Vec<_> = tokenizer.warnings().iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{config}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    }
}

/// Version 4's files for tokens that were added to a vocabulary.
#[test]
fn added_tokens_of_the_older_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy("tests/golden/wordpiece/tokenizer.json", folder.path().join("tokenizer.json")).unwrap();
    fs::write(folder.path().join("added_tokens.json"), r#"{"<b>": 321, "<a>": 320}"#).unwrap();
    let tokenizer = Tokenizer::from_file(folder.path()).unwrap();
    assert_eq!(tokenizer.encode("the <b> <a>").unwrap(), [68, 321, 320]);
    assert_eq!(tokenizer.warnings(), []);
    fs::write(folder.path().join("added_tokens.json"), r#"{"<b>": "x"}"#).unwrap();
    let error = Tokenizer::from_file(folder.path()).unwrap_err().to_string();
    assert!(error.contains("field `<b>`: expected a whole number, the id of the token"), "{error}");
}
