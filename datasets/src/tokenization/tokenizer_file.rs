//! Reads an untrusted `tokenizer.json`.

use std::path::Path;

use serde_json::Value;
use tokenizers::{ModelWrapper, Tokenizer};

use super::{
    SpecialNames,
    tokenizer_check::{check, processor_tokens},
};
use crate::panics::caught_silently;
use crate::{DataError, TokenizerError, strict_json};

/// The largest known files have 40 MB.
const MOST_BYTES: u64 = 512 * 1024 * 1024;

/// Reads the file and turns off truncation, padding and dropout. Also returns the special tokens that the file defines.
pub(super) fn read(path: &Path) -> Result<(Tokenizer, SpecialNames), DataError> {
    let bytes = strict_json::bytes(path, MOST_BYTES)?;
    let read = |bytes: Vec<u8>| {
        let json = strict_json::parse(&bytes)?;
        guarded(|| {
            check(&json)?;
            let mut tokenizer = Tokenizer::from_bytes(&bytes)?;
            check_ids(&tokenizer)?;
            check_agreement(&tokenizer, &json)?;
            tokenizer.with_truncation(None)?.with_padding(None);
            turn_off_dropout(&mut tokenizer);
            Ok((tokenizer, SpecialNames::of_json(&json)))
        })
    };
    bytes.and_then(read).map_err(|reason| {
        DataError::Tokenizer(TokenizerError::TokenizerFile { path: path.to_owned(), reason })
    })
}

/// Runs `work` with a tokenizer and turns a panic into an error: some files make the `tokenizers` crate panic, on
/// loading or later.
pub(crate) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match caught_silently(work) {
        Ok(result) => result.map_err(|error| error.to_string()),
        // The crate has no other way to report this.
        Err(message) if message.starts_with("Onig: Regex search error") => Err(format!(
            "a regular expression of its pipeline does not terminate on this text, not even in Python's tokenizers \
             ({message}); rewrite the expression so that it can match in only one way"
        )),
        Err(message) => Err(format!("it panicked: {message}")),
    }
}

fn check_ids(tokenizer: &Tokenizer) -> tokenizers::Result<()> {
    match tokenizer.get_vocab(true).into_values().max() {
        None => Err("its vocabulary is empty".into()),
        Some(id) if i32::try_from(id).is_err() => {
            Err(DataError::Tokenizer(TokenizerError::IdTooLarge { id }).into())
        }
        Some(_) => Ok(()),
    }
}

/// Checks the ids of added tokens. The crate numbers them itself without comparing, so a model trained with the file's
/// ids would get different ones.
fn check_agreement(tokenizer: &Tokenizer, json: &Value) -> tokenizers::Result<()> {
    let added = json["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter_map(|token| token["content"].as_str().zip(token["id"].as_u64()));
    for (place, tokens) in [
        ("added token", added.collect()),
        ("post-processor's token", processor_tokens(&json["post_processor"])),
    ] {
        for (token, id) in tokens {
            match tokenizer.token_to_id(token) {
                Some(known) if u64::from(known) == id => {}
                Some(known) => {
                    return Err(format!(
                        "its {place} {token:?} has the id {id}, but the library assigns {known}"
                    )
                    .into());
                }
                None if token.is_empty() => {}
                None => return Err(format!("its {place} {token:?} is not in the vocabulary").into()),
            }
        }
    }
    Ok(())
}

fn turn_off_dropout(tokenizer: &mut Tokenizer) {
    if let ModelWrapper::BPE(model) = tokenizer.get_model()
        && model.dropout.is_some()
    {
        let mut model = model.clone();
        model.dropout = None;
        tokenizer.with_model(model);
    }
}

/// Files of older tokenizers, which transformers converts to a `tokenizer.json`.
const OLDER: [&str; 6] =
    ["vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"];

/// Checks that the path exists and is not a file of an older tokenizer.
///
/// # Errors
///
/// [`TokenizerError::NoTokenizerFile`], which explains how to create or fetch a `tokenizer.json`.
pub(super) fn require(path: &Path) -> Result<(), DataError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fix = if path.exists() {
        if !OLDER.contains(&&*name) && path.extension().is_none_or(|ending| ending != "model") {
            return Ok(());
        }
        conversion(folder, &name)
    } else if !folder.exists() || !name.ends_with(".json") {
        let named = path.display();
        format!(
            "there is no such file or folder; tokenizers are read from local files: download its folder, for \
             example with `hf download {named} --local-dir {named}`"
        )
    } else {
        let found: Vec<_> = OLDER.into_iter().filter(|name| folder.join(name).is_file()).collect();
        match found.is_empty() {
            false => conversion(folder, &found.join(", ")),
            true => "there is no such file; download the folder again, or specify the folder of a tokenizer"
                .into(),
        }
    };
    Err(TokenizerError::NoTokenizerFile { path: path.to_owned(), fix }.into())
}

fn conversion(folder: &Path, found: &str) -> String {
    let folder = folder.display();
    format!(
        "there is {found}; convert it with transformers: `python3 -c \"from transformers import AutoTokenizer; \
         AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')\"`, then specify the folder {folder}"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read_json(json: &str) -> Result<Tokenizer, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json).unwrap();
        Ok(read(file.path())?.0)
    }

    #[test]
    fn broken_files_are_errors() {
        assert!(matches!(read(Path::new("no/such/tokenizer.json")).unwrap_err(), DataError::Io { .. }));
        let model = |model: &str| format!(r#"{{"version": "1.0", "model": {model}}}"#);
        for broken in [
            String::new(),
            "{}".to_owned(),
            "[".repeat(10_000),
            model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}"#),
            // The crate panics on these two: a merge longer than any token, and a prefix longer than a merge.
            model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}"#),
            model(
                r#"{"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"]],
                    "continuing_subword_prefix": "prefix"}"#,
            ),
            model(r#"{"type": "WordLevel", "vocab": {}, "unk_token": "?"}"#),
            model(r#"{"type": "WordLevel", "vocab": {"a": 2147483648}, "unk_token": "?"}"#),
        ] {
            let error = read_json(&broken).unwrap_err();
            assert!(matches!(error, DataError::Tokenizer(TokenizerError::TokenizerFile { .. })), "{error}");
        }
    }

    #[test]
    fn long_tokens_are_freed_without_overflow() {
        let tokens: Vec<String> =
            (0..3).map(|token| format!(r#"["{}", -1.0]"#, "ab".repeat(256 - token))).collect();
        let json = format!(
            r#"{{"version": "1.0", "model": {{"type": "Unigram", "unk_id": 0, "vocab": [{}]}}}}"#,
            tokens.join(",")
        );
        // A small stack, as some threads have.
        let work = move || drop(read_json(&json).unwrap().clone());
        std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn truncation_padding_and_dropout_are_off() {
        let tokenizer = read_json(
            r#"{
                "version": "1.0",
                "truncation": {
                    "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
                },
                "padding": {
                    "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "a"
                },
                "model": {
                    "type": "BPE", "dropout": 1.0, "vocab": {"a": 5, "aa": 6},
                    "merges": [["a", "a"]]
                }
            }"#,
        )
        .unwrap();
        let encoding = tokenizer.encode_fast("aaaaaa", false).unwrap();
        assert_eq!(encoding.get_ids(), [6, 6, 6]);
    }

    #[test]
    fn errors_say_how_to_get_a_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let error =
            |path: &str| crate::Tokenizer::from_file(folder.path().join(path)).unwrap_err().to_string();
        assert!(error("").contains("download the folder again"), "{}", error(""));
        assert!(error("org/bert").contains("hf download"), "{}", error("org/bert"));
        fs::write(folder.path().join("vocab.txt"), "[PAD]\n").unwrap();
        fs::write(folder.path().join("spiece.model"), "").unwrap();
        for path in ["", "tokenizer.json"] {
            let error = error(path);
            assert!(
                error.contains("there is vocab.txt, spiece.model; convert it with transformers"),
                "{error}"
            );
            assert!(error.contains("save_pretrained"), "{error}");
        }
        for path in ["vocab.txt", "spiece.model"] {
            assert!(
                error(path).contains(&format!("there is {path}; convert it with transformers")),
                "{}",
                error(path)
            );
        }
    }
}
