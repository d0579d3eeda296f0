//! Rejects dangerous content in a `tokenizer.json`.
//!
//! The `tokenizers` crate trusts its files: some make it panic, others make it request more memory than available,
//! which ends the process. These checks reject such content before the crate sees the file, and each error says why.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::counted;

/// The largest id may be the number of tokens times `SPARSE`, plus `SPARSE_MORE`. A model has a row for each id, so a
/// single huge id would request gigabytes.
const SPARSE: u64 = 16;
const SPARSE_MORE: u64 = 65_536;

/// The maximum factor by which the normalizers, the pre-tokenizers or the decoders of a file may each lengthen a text.
/// Known models stay below 600.
const GROWTH: f64 = 4096.0;

/// The crate frees a Unigram vocabulary with one level of recursion for each byte of a token.
const UNIGRAM_TOKEN: usize = 512;

/// The crate's time for a word grows with the cube of this setting, which is usually 100.
const WORD_PIECE_CHARACTERS: u64 = 1000;

/// The longest known expressions have 2 KB. The time to compile a case-insensitive one grows with the square of its
/// length.
const PATTERN_BYTES: usize = 16_384;

/// More than any template needs.
const TEMPLATE_PIECES: usize = 64;

/// Checks the parts of a file that would crash the crate, or that it would accept silently.
pub(super) fn check(json: &Value) -> Result<(), String> {
    check_ids(json)?;
    check_model(&json["model"])?;
    for part in ["normalizer", "pre_tokenizer", "decoder"] {
        check_tables(&json[part])?;
        check_patterns(&json[part], part)?;
        let growth = growth(&json[part]);
        if growth > GROWTH {
            return Err(format!(
                "its `{part}` could make a text {growth:.0} times as long; the limit is {GROWTH:.0}"
            ));
        }
    }
    check_templates(&json["post_processor"])
}

/// Returns the tokens of the model with their ids.
fn vocabulary(model: &Value) -> Box<dyn Iterator<Item = (&str, Option<u64>)> + '_> {
    match &model["vocab"] {
        Value::Object(tokens) => Box::new(tokens.iter().map(|(token, id)| (token.as_str(), id.as_u64()))),
        Value::Array(tokens) => {
            Box::new((0..).zip(tokens).map(|(id, token)| (token[0].as_str().unwrap_or("?"), Some(id))))
        }
        _ => Box::new(std::iter::empty()),
    }
}

fn check_ids(json: &Value) -> Result<(), String> {
    let added = json["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let added = added.iter().map(|token| (token["content"].as_str().unwrap_or("?"), token["id"].as_u64()));
    let count = vocabulary(&json["model"]).count() + added.len();
    let most = (count as u64).saturating_mul(SPARSE).saturating_add(SPARSE_MORE);
    for (token, id) in vocabulary(&json["model"]).chain(added) {
        let id = id.ok_or_else(|| format!("the id of its token {token:?} is not an integer"))?;
        if id > most {
            return Err(format!(
                "its token {token:?} has the id {id}, far above the number of its tokens, {count}"
            ));
        }
    }
    Ok(())
}

fn check_model(model: &Value) -> Result<(), String> {
    if model["vocab"].is_array()
        && let Some((token, _)) = vocabulary(model).find(|(token, _)| token.len() > UNIGRAM_TOKEN)
    {
        let start: String = token.chars().take(20).collect();
        return Err(format!("its token {start:?}… has {} bytes; the limit is {UNIGRAM_TOKEN}", token.len()));
    }
    if let Some(characters) = model["max_input_chars_per_word"].as_u64()
        && characters > WORD_PIECE_CHARACTERS
    {
        return Err(format!(
            "its `max_input_chars_per_word` is {characters}; the limit is {WORD_PIECE_CHARACTERS}"
        ));
    }
    // The crate removes the prefix from the second part of each merge, by bytes.
    let prefix = model["continuing_subword_prefix"].as_str().map_or(0, str::len);
    for merge in model["merges"].as_array().map_or(&[][..], Vec::as_slice) {
        let second = match merge {
            Value::String(both) => both.split_once(' ').map(|(_, second)| second),
            both => both[1].as_str(),
        };
        if second.is_some_and(|second| !second.is_char_boundary(prefix)) {
            return Err(format!("its merge {merge} lacks the prefix of {}", counted(prefix, "byte")));
        }
    }
    Ok(())
}

/// Checks each `Precompiled` table: four bytes give the size of its first half, and the crate allocates that much at
/// once.
fn check_tables(part: &Value) -> Result<(), String> {
    if let Some(table) = part.get("precompiled_charsmap") {
        let table = table.as_str().ok_or("its `precompiled_charsmap` is not a string")?;
        let table = STANDARD.decode(table).map_err(|error| format!("its `precompiled_charsmap`: {error}"))?;
        let size = table.first_chunk().map(|size| u32::from_le_bytes(*size) as usize);
        let Some(rest) = size.and_then(|size| table.get(4..)?.get(size / 4 * 4..)) else {
            return Err("its `precompiled_charsmap` is shorter than its header states".to_owned());
        };
        if std::str::from_utf8(rest).is_err() {
            return Err("its `precompiled_charsmap` contains text that is not UTF-8".to_owned());
        }
    }
    children(part).try_for_each(check_tables)
}

/// Checks each regular expression. The crate's own error does not name the expression.
fn check_patterns(value: &Value, part: &str) -> Result<(), String> {
    if let Some(pattern) = value.pointer("/pattern/Regex").and_then(Value::as_str) {
        if pattern.len() > PATTERN_BYTES {
            return Err(format!(
                "its `{part}` has a regular expression of {} bytes; the limit is {PATTERN_BYTES}",
                pattern.len()
            ));
        }
        tokenizers::utils::SysRegex::new(pattern).map_err(|error| {
            let reason = error.to_string();
            let reason = reason.strip_prefix("Oniguruma error: ").unwrap_or(&reason);
            format!(
                "its `{part}` has {pattern:?}, which is not a valid regular expression for Oniguruma, the engine of \
                 Python's tokenizers: {reason}"
            )
        })?;
    }
    children(value).try_for_each(|inner| check_patterns(inner, part))
}

fn children(value: &Value) -> Box<dyn Iterator<Item = &Value> + '_> {
    match value {
        Value::Object(fields) => Box::new(fields.values()),
        Value::Array(values) => Box::new(values.iter()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns the factor by which a text may grow, in bytes. It checks the keys, not the types, since the crate also reads
/// parts without a type.
fn growth(part: &Value) -> f64 {
    let length = |key: &str| part.get(key).and_then(Value::as_str).map_or(0.0, |text| text.len() as f64);
    let mut factor = 1.0;
    if let Some(pattern) = part.get("pattern") {
        // A pattern that can match the empty string matches between all characters.
        let least = match pattern.get("String").and_then(Value::as_str) {
            Some(text) => text.len(),
            None => shortest_match(pattern.get("Regex").and_then(Value::as_str).unwrap_or_default()),
        };
        factor *=
            if least == 0 { 1.0 + length("content") } else { (length("content") / least as f64).max(1.0) };
    }
    // These are prepended to each part of a text, which has at least one byte.
    factor *= 1.0 + length("prepend");
    if part.get("replacement").is_some() {
        factor *= 4.0;
    }
    // A byte written as a character may take two bytes.
    if part.get("add_prefix_space").is_some() || part["type"] == "ByteLevel" {
        factor *= 2.0;
    }
    if let Some(table) = part.get("precompiled_charsmap").and_then(Value::as_str) {
        factor *= longest_entry(table);
    }
    // In Unicode's compatibility forms, three bytes may become 33.
    if matches!(part["type"].as_str(), Some("NFKC" | "NFKD")) {
        factor *= 11.0;
    }
    factor * children(part).map(growth).product::<f64>()
}

/// Returns 0 if the pattern may match the empty string, otherwise 1.
fn shortest_match(pattern: &str) -> usize {
    // Trying the pattern is simpler than analyzing it. A pattern with look-around may still match the empty string
    // elsewhere, so the usual notations for it count as such.
    let looks_around =
        ["(?=", "(?!", "(?<", r"\b", r"\B", r"\y", r"\Y", "^", "$", r"\A", r"\z", r"\Z", r"\G", r"\K", "(*"];
    let may_be_empty = looks_around.iter().any(|sign| pattern.contains(sign));
    let empty =
        tokenizers::utils::SysRegex::new(pattern).is_ok_and(|regex| regex.find_iter("").next().is_some());
    usize::from(!may_be_empty && !empty)
}

/// Returns the length of the longest text between two zeros in a table.
fn longest_entry(table: &str) -> f64 {
    let table = STANDARD.decode(table).unwrap_or_default();
    let size = table.first_chunk().map_or(0, |size| u32::from_le_bytes(*size) as usize / 4 * 4);
    let texts = table.get(4..).and_then(|rest| rest.get(size..)).unwrap_or_default();
    texts.split(|&byte| byte == 0).map(<[u8]>::len).max().unwrap_or(0).max(1) as f64
}

/// Checks that templates name only tokens they define, and each sequence once.
fn check_templates(part: &Value) -> Result<(), String> {
    for (name, allowed) in [("single", &["A"][..]), ("pair", &["A", "B"])] {
        let Some(pieces) = part.get(name).and_then(Value::as_array) else {
            continue;
        };
        if pieces.len() > TEMPLATE_PIECES {
            return Err(format!(
                "the `{name}` template of its post-processor has {} pieces; the limit is {TEMPLATE_PIECES}",
                pieces.len()
            ));
        }
        let mut seen = Vec::new();
        for piece in pieces {
            if let Some(id) = piece["Sequence"]["id"].as_str() {
                if !allowed.contains(&id) || seen.contains(&id) {
                    return Err(format!(
                        "the `{name}` template of its post-processor must contain each of {allowed:?} once, but \
                         also contains {id:?}"
                    ));
                }
                seen.push(id);
            }
            if let Some(id) = piece["SpecialToken"]["id"].as_str()
                && part["special_tokens"].get(id).is_none()
            {
                return Err(format!(
                    "the `{name}` template of its post-processor names {id:?}, which is not among its \
                     `special_tokens`"
                ));
            }
        }
    }
    children(part).try_for_each(check_templates)
}

/// Returns the tokens that the post-processor adds, with the ids that it gives them.
pub(super) fn processor_tokens(part: &Value) -> Vec<(&str, u64)> {
    let mut tokens = Vec::new();
    for role in ["sep", "cls"] {
        tokens.extend(part[role][0].as_str().zip(part[role][1].as_u64()));
    }
    if let Some(special) = part["special_tokens"].as_object() {
        for token in special.values() {
            let names = token["tokens"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let ids = token["ids"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            tokens.extend(names.zip(ids));
        }
    } else {
        for inner in children(part) {
            tokens.extend(processor_tokens(inner));
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(json: Value, reason: &str) {
        let error = check(&json).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn ids_far_beyond_the_vocabulary() {
        refused(json!({"model": {"vocab": {"a": 0, "b": 2_000_000_000}}}), "\"b\" has the id 2000000000");
        refused(json!({"added_tokens": [{"content": "x", "id": 70_000}]}), "\"x\" has the id 70000");
        refused(json!({"model": {"vocab": {"a": -1}}}), "not an integer");
        check(&json!({"model": {"vocab": {"a": 0, "b": 60_000}}})).unwrap();
    }

    #[test]
    fn normalizers_that_lengthen_texts_too_much() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let double = replace(json!({"String": "a"}), "aa");
        let chain = |parts: usize| json!({"normalizer": {"type": "Sequence", "normalizers": vec![double.clone(); parts]}});
        check(&chain(12)).unwrap();
        refused(chain(13), "8192 times");
        let long = "x".repeat(5000);
        refused(json!({"decoder": replace(json!({"Regex": "[a-z]"}), &long)}), "`decoder`");
        refused(json!({"normalizer": replace(json!({"String": ""}), &long)}), "`normalizer`");
        refused(json!({"normalizer": {"type": "Prepend", "prepend": long}}), "`normalizer`");
        check(&json!({"normalizer": replace(json!({"Regex": " {2,}"}), "▁")})).unwrap();
        for (pattern, least) in [("a*", 0), ("a", 1), ("(?=b)", 0), (r"\Y", 0), (" {2,}", 1), ("(", 1)] {
            assert_eq!(shortest_match(pattern), least, "{pattern}");
        }
    }

    #[test]
    fn expressions() {
        let split = |pattern: &str| {
            json!({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}}]}})
        };
        check(&split(r"\p{L}+(?=x)|\X")).unwrap();
        refused(split("a)"), "its `pre_tokenizer` has \"a)\", which is not a valid regular expression");
        refused(split("(?s)."), "undefined group option");
        refused(split(&"a".repeat(16_385)), "has a regular expression of 16385 bytes");
    }

    #[test]
    fn truncated_tables() {
        let table = |bytes: &[u8]| {
            json!({"normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": STANDARD.encode(bytes)}]}})
        };
        check(&table(&[4, 0, 0, 0, 0, 0, 0, 0, b'a', 0])).unwrap();
        refused(table(&[0xFC, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0]), "shorter than its header states");
        refused(table(&[1, 2]), "shorter than its header states");
        refused(table(&[0, 0, 0, 0, 0xFF]), "not UTF-8");
        let mut long = vec![0; 4];
        long.resize(10_000, b'x');
        refused(table(&long), "times as long");
    }

    #[test]
    fn templates() {
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        let single = |pieces: Vec<Value>| {
            json!({"post_processor": {"type": "Sequence", "processors": [
            {"type": "TemplateProcessing", "single": pieces, "special_tokens": {}}]}})
        };
        check(&single(vec![sequence("A")])).unwrap();
        refused(single(vec![sequence("B")]), "but also contains \"B\"");
        refused(single(vec![sequence("A"), sequence("A")]), "but also contains \"A\"");
        refused(single(vec![json!({"SpecialToken": {"id": "[X]", "type_id": 0}})]), "\"[X]\"");
        refused(single(vec![json!({}); 65]), "65 pieces");
    }

    #[test]
    fn models() {
        let deep = "x".repeat(1000);
        refused(json!({"model": {"type": "Unigram", "vocab": [[deep, 0.0]]}}), "has 1000 bytes");
        refused(
            json!({"model": {"continuing_subword_prefix": "#", "merges": [["a", "é"]]}}),
            "prefix of 1 byte",
        );
        refused(json!({"model": {"vocab": {}, "max_input_chars_per_word": 1_000_000}}), "is 1000000");
    }
}
