//! Reading a `tokenizer.json` that may come from anywhere.

use std::path::Path;

use tokenizers::{ModelWrapper, Tokenizer};

use crate::{DataError, panics::caught, readers::read_whole};

/// Reads the file, and turns off what would cut a text short or roll dice.
pub(crate) fn read(path: &Path) -> Result<Tokenizer, DataError> {
    let json = read_whole(path)?;
    guarded(|| {
        let mut tokenizer = Tokenizer::from_bytes(&json)?;
        check_ids(&tokenizer)?;
        tokenizer.with_truncation(None)?.with_padding(None);
        turn_off_dropout(&mut tokenizer);
        Ok(tokenizer)
    })
    .map_err(|reason| DataError::TokenizerFile { path: path.to_owned(), reason })
}

/// Does `work` with a tokenizer, and makes a panic an error: some files make the `tokenizers`
/// crate panic, when they are read or later.
pub(crate) fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match caught(work) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(message) => Err(format!("it panicked: {message}")),
    }
}

fn check_ids(tokenizer: &Tokenizer) -> tokenizers::Result<()> {
    match tokenizer.get_vocab(true).into_values().max() {
        None => Err("its vocabulary is empty".into()),
        Some(id) if i32::try_from(id).is_err() => Err(DataError::IdTooLarge { id }.into()),
        Some(_) => Ok(()),
    }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read_json(json: &str) -> Result<Tokenizer, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), json).unwrap();
        read(file.path())
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
            // The crate panics on these two: a merge longer than any token, a prefix longer than
            // a merge.
            model(r#"{"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "a"]]}"#),
            model(
                r#"{"type": "BPE", "vocab": {"a": 0, "aa": 1}, "merges": [["a", "a"]],
                    "continuing_subword_prefix": "prefix"}"#,
            ),
            model(r#"{"type": "WordLevel", "vocab": {}, "unk_token": "?"}"#),
            model(r#"{"type": "WordLevel", "vocab": {"a": 2147483648}, "unk_token": "?"}"#),
        ] {
            let error = read_json(&broken).unwrap_err();
            assert!(matches!(error, DataError::TokenizerFile { .. }), "{error}");
        }
    }

    #[test]
    fn a_file_changes_no_lengths_and_rolls_no_dice() {
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
}
