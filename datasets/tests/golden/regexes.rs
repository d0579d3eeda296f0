//! Regular expressions in a `tokenizer.json` have the same meaning as in Python's `tokenizers`.

use std::{fs, sync::Arc};

use firebrick_datasets::{DataError, Encoder, Input, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::golden;

#[derive(Deserialize)]
struct Case {
    pattern: String,
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    replaced: Vec<Option<String>>,
    /// The texts on which the library panics when it replaces.
    #[serde(default)]
    fails: Vec<usize>,
    #[serde(default)]
    isolated: Vec<Option<Vec<String>>>,
}

#[derive(Deserialize)]
struct Behavior {
    pattern: String,
    behavior: String,
    invert: bool,
    pieces: Vec<Option<Vec<String>>>,
}

fn read(json: &Value) -> Result<Arc<Tokenizer>, DataError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), json.to_string()).unwrap();
    Tokenizer::from_file(file.path()).map(Arc::new)
}

/// Creates a tokenizer for which any word is a token.
fn splitting(pre_tokenizer: Value) -> Value {
    json!({"version": "1.0", "pre_tokenizer": pre_tokenizer,
        "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}})
}

fn split(pattern: &str, behavior: &str, invert: bool) -> Value {
    splitting(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}))
}

fn replace(pattern: &str) -> Value {
    json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "_"})
}

/// Returns the pieces that a text is cut into; `None` for a text that is not cut.
fn pieces(tokenizer: Arc<Tokenizer>, texts: &[String]) -> Vec<Option<Vec<String>>> {
    let encoder = Encoder::new(tokenizer);
    let cut = |text: &String| {
        let encoding = encoder.encode(Input::Text(text), None).unwrap().remove(0);
        let piece = |&(start, end): &(u32, u32)| text[start as usize..end as usize].to_owned();
        let pieces: Vec<String> = encoding.offsets.iter().map(piece).collect();
        (pieces != [text.as_str()]).then_some(pieces)
    };
    texts.iter().map(cut).collect()
}

fn unless_same(new: String, text: &str) -> Option<String> {
    (new != text).then_some(new)
}

#[test]
fn each_construct() {
    let texts: Vec<String> = golden("regexes", "texts");
    let cases: Vec<Case> = golden("regexes", "cases");
    assert!(cases.len() > 200);
    // Tokens are bytes, so the normalized text can be decoded from them.
    let folder = tempfile::tempdir().unwrap();
    let bytes = folder.path().join("bytes.json");
    Tokenizer::train_bpe("aa", 257).unwrap().save(&bytes).unwrap();
    let mut normalizing: Value = serde_json::from_slice(&fs::read(bytes).unwrap()).unwrap();
    normalizing["pre_tokenizer"]["use_regex"] = false.into();
    let ids = texts.iter().enumerate().map(|(id, text)| (text.clone(), json!(id)));
    let mut decoding = splitting(Value::Null);
    decoding["model"]["vocab"] = Value::Object(ids.chain([("?".to_owned(), json!(texts.len()))]).collect());

    for Case { pattern, refused, replaced, fails, isolated } in cases {
        let splitting = split(&pattern, "Isolated", false);
        normalizing["normalizer"] = replace(&pattern);
        decoding["decoder"] = json!({"type": "Sequence", "decoders": [replace(&pattern), {"type": "Fuse"}]});
        if refused {
            for (json, part) in
                [(&splitting, "pre_tokenizer"), (&normalizing, "normalizer"), (&decoding, "decoder")]
            {
                let error = read(json).unwrap_err().to_string();
                let named = error.contains(&format!("`{part}`")) && error.contains(&format!("{pattern:?}"));
                assert!(named, "{error}");
            }
            continue;
        }
        assert_eq!(pieces(read(&splitting).unwrap(), &texts), isolated, "{pattern}");
        let tokenizer = read(&normalizing).unwrap();
        for (index, (text, new)) in texts.iter().zip(&replaced).enumerate() {
            match tokenizer.encode(text) {
                Ok(ids) => assert_eq!(
                    &unless_same(tokenizer.decode(&ids).unwrap(), text),
                    new,
                    "{pattern} in {text:?}"
                ),
                Err(error) => assert!(fails.contains(&index), "{pattern} in {text:?}: {error}"),
            }
        }
        let tokenizer = read(&decoding).unwrap();
        let decoded = (0..).zip(&texts).map(|(id, text)| unless_same(tokenizer.decode(&[id]).unwrap(), text));
        assert_eq!(decoded.collect::<Vec<_>>(), replaced, "{pattern}");
    }
}

#[test]
fn each_behavior() {
    let texts: Vec<String> = golden("regexes", "texts");
    for Behavior { pattern, behavior, invert, pieces: expected } in
        golden::<Vec<Behavior>>("regexes", "behaviors")
    {
        let tokenizer = read(&split(&pattern, &behavior, invert)).unwrap();
        assert_eq!(pieces(tokenizer, &texts), expected, "{pattern} {behavior} {invert}");
    }
}

#[test]
fn the_pattern_of_byte_level() {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let texts: Vec<String> = golden("regexes", "texts");
    let expected: Vec<Option<Vec<String>>> = golden("regexes", "byte_level");
    assert_eq!(pieces(read(&splitting(byte_level)).unwrap(), &texts), expected);
}
