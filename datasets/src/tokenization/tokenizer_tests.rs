//! Tests of encoding and decoding with made and loaded tokenizers.

use std::fs;

use super::*;

/// A text long enough for several pieces.
fn long_text() -> String {
    (0..20_000).map(|line| format!("line {line} and its neighbour {}\n", line + 1)).collect()
}

/// Writes `json` to a file and reads it as a tokenizer.
fn read(json: &str) -> Result<Tokenizer, DataError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), json).unwrap();
    Tokenizer::from_file(file.path())
}

fn saved(tokenizer: &Tokenizer) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    tokenizer.save(file.path()).unwrap();
    fs::read_to_string(file.path()).unwrap()
}

#[test]
fn character_tokenizers_round_trip_through_a_file() {
    let tokenizer = read(&saved(&Tokenizer::characters("añ \n\"").unwrap())).unwrap();
    assert!(tokenizer.characters.is_some());
    let ids = tokenizer.encode("a \nñ\"").unwrap();
    assert_eq!(ids, [3, 1, 0, 4, 2]);
    assert_eq!(tokenizer.decode(&ids).unwrap(), "a \nñ\"");
}

#[test]
fn a_trained_tokenizer_comes_back_from_its_json() {
    let names =
        || SpecialNames { pad: Some("<pad>".into()), eos: Some("</s>".into()), ..SpecialNames::default() };
    let text = long_text();
    let trained = Tokenizer::train_bpe_with(&text, 300, names()).unwrap();
    let json = trained.to_json().unwrap();
    let read = Tokenizer::from_json(&json, names()).unwrap();
    assert_eq!(read.to_json().unwrap(), json);
    assert_eq!(read.settings(), trained.settings());
    assert_eq!((read.special(), read.vocab_size()), (trained.special(), trained.vocab_size()));
    assert_eq!(read.encode(&text).unwrap(), trained.encode(&text).unwrap());
    assert!(Tokenizer::from_json("{", names()).is_err());
    let other = SpecialNames { pad: Some("[PAD]".into()), ..SpecialNames::default() };
    assert!(Tokenizer::from_json(&json, other).is_err());
}

#[test]
fn bpe_round_trips_through_a_file() {
    let text = long_text();
    let trained = Tokenizer::train_bpe(&text, 300).unwrap();
    assert_eq!(trained.vocab_size(), 300);
    let read = read(&saved(&trained)).unwrap();
    let ids = trained.encode(&text).unwrap();
    assert!(ids.len() < text.len() / 2);
    assert_eq!(read.encode(&text).unwrap(), ids);
    assert_eq!(read.decode(&ids).unwrap(), text);
}

#[test]
fn pieces_are_encoded_on_their_own_and_in_order() {
    let text = long_text();
    let tokenizer = Tokenizer::train_bpe(&text, 300).unwrap();
    let pieces = pieces(&text);
    assert!(pieces.len() > 4);
    let each = pieces.iter().map(|piece| tokenizer.encode(piece).unwrap());
    let each: Vec<u32> = each.flatten().collect();
    assert_eq!(tokenizer.encode(&text).unwrap(), each);
}

#[test]
fn an_empty_text_is_an_error() {
    for result in [Tokenizer::characters(""), Tokenizer::train_bpe("", 300)] {
        assert!(matches!(result.unwrap_err(), DataError::EmptyText { .. }));
    }
}

#[test]
fn unknown_ids_and_words() {
    let tokenizer = read(
        r#"{"version": "1.0",
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 2}, "unk_token": "?"}}"#,
    )
    .unwrap();
    // As in transformers: a model's table may have more rows than the tokenizer has tokens.
    for id in [1, 3, u32::MAX] {
        assert_eq!(tokenizer.decode(&[0, id, 2]).unwrap(), "a b");
        assert_eq!(tokenizer.decode(&[id]).unwrap(), "");
    }
    let error = tokenizer.encode("c").unwrap_err();
    assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFailed { .. })));
}

#[test]
fn ids_must_agree() {
    for (added, processor, reason) in [
        (7, 2, "its added token \"<s>\" has the id 7, but the library assigns 2"),
        (2, 0, "its post-processor's token \"<s>\" has the id 0, but the library assigns 2"),
    ] {
        let error = read(&format!(
            r#"{{"version": "1.0", "added_tokens": [{{"id": {added}, "content": "<s>", "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false, "special": true}}],
                "post_processor": {{"type": "BertProcessing", "cls": ["<s>", {processor}], "sep": ["a", 0]}},
                "model": {{"type": "WordLevel", "vocab": {{"a": 0, "?": 1}}, "unk_token": "?"}}}}"#
        ))
        .unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[test]
fn a_nonterminating_expression_is_reported() {
    let tokenizer = read(
        r#"{"version": "1.0", "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|aa)+$(?!b)"},
            "behavior": "Isolated", "invert": false},
            "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}"#,
    )
    .unwrap();
    assert_eq!(tokenizer.encode("aab").unwrap(), [0]);
    let error = tokenizer.encode(&("a".repeat(60) + "b")).unwrap_err().to_string();
    assert!(error.contains("a regular expression of its pipeline does not terminate"), "{error}");
    assert!(error.contains("retry-limit-in-match"), "{error}");
}

#[test]
fn new_tokens_get_the_next_ids() {
    let tokenizer = Tokenizer::train_bpe("to be or not to be", 260).unwrap();
    let known = tokenizer.vocab_size() as u32;
    let tokens = ["<a>", "t", "<b>"].map(String::from);
    let larger = tokenizer.clone().with_new_tokens(&tokens).unwrap();
    assert_eq!(larger.vocab_size() as u32, known + 2, "`t` is in the vocabulary");
    let ids = larger.encode("t<b><a>").unwrap();
    assert_eq!(ids, [tokenizer.encode("t").unwrap(), vec![known + 1, known]].concat());
    assert_eq!(larger.decode(&ids).unwrap(), "t<b><a>");
    assert_ne!(larger.settings(), tokenizer.settings());
    let again = larger.clone().with_new_tokens(&tokens).unwrap();
    assert_eq!(again.fingerprint().unwrap(), larger.fingerprint().unwrap());
    let error = tokenizer.with_new_tokens(&[String::new()]).unwrap_err().to_string();
    assert!(error.contains("new tokens") && error.contains("without a text"), "{error}");
}
