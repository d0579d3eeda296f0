//! Reports a missing `tokenizer.json`, and how to get one.

use std::path::Path;

use crate::{DataError, TokenizerError};

/// Files of older tokenizers, which transformers converts to a `tokenizer.json`.
const OLDER: [&str; 6] =
    ["vocab.txt", "vocab.json", "merges.txt", "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"];

/// Checks that the path exists and is not a file of an older tokenizer.
///
/// # Errors
///
/// [`TokenizerError::NoTokenizerFile`], which explains how to create or fetch a `tokenizer.json`.
pub(super) fn check(path: &Path) -> Result<(), DataError> {
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

    use crate::Tokenizer;

    #[test]
    fn errors_say_how_to_get_a_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let error = |path: &str| Tokenizer::from_file(folder.path().join(path)).unwrap_err().to_string();
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
