//! Writes a corpus as a file of token ids.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::train::Interrupter;
use firebrick_datasets::{DataError, Files, TextChunks, TokenWriter, Tokenizer};
use serde::Serialize;

use crate::attended::attended;
use crate::load::{Loading, tell_skipped};
use crate::{CausalLmTask, Dataset, LoadError, Paths, TokenizerConfig};
use firebrick::saving::Staged;

/// A corpus written as a file of token ids.
#[derive(Clone, Debug, Serialize)]
pub struct Tokenized {
    /// The file.
    pub path: PathBuf,
    /// The folder of the tokenizer, if it was built from the text.
    pub tokenizer: Option<PathBuf>,
    /// Number of documents.
    pub documents: u64,
    /// Number of tokens.
    pub tokens: u64,
    /// Number of malformed records that were skipped.
    pub skipped: u64,
}

impl Dataset {
    /// Tokenizes the text of `data.path` into a token file, which a run reads in place as its `data.path`. Needs memory
    /// for a few MiB of text, unless the vocabulary is built from the text.
    ///
    /// Each plain text file is one document; in other formats, each record is one. A document has the tokens that the
    /// tokenizer puts around a text, and ends in the end token, if the tokenizer has one and `task` does not say otherwise.
    ///
    /// # Errors
    ///
    /// The data cannot be read, the file cannot be written, or the work is interrupted; then no file is left.
    pub fn tokenize(
        &self,
        output: &Path,
        interrupter: &Interrupter,
        say: impl Fn(&str),
    ) -> Result<Tokenized, LoadError> {
        // Before the text is read.
        Staged::create(output).map_err(|error| LoadError::File {
            path: output.to_owned(),
            doing: "making the file",
            reason: error.to_string(),
        })?;
        let (Some(task), Some(paths)) = (self.task.downcast_ref::<CausalLmTask>(), &self.data.path) else {
            return Err(LoadError::Tokenize(self.task.name()));
        };
        let loading = self.loading(&say);
        let plain = loading.is_plain_text(paths);
        let (dataset, of) = (self.clone(), paths.clone());
        let tokenizer = attended(interrupter, "preparing", &say, move |say| {
            let loading = dataset.loading(say);
            loading.tokenizer_of(|| if plain { loading.text_of(&of) } else { loading.all_text() })
        })?;
        let mut writer = TokenWriter::create(output, &tokenizer)?;
        say(&format!("tokenizing {}", paths.summary()));
        let go_on = || if interrupter.should_stop() { Err(LoadError::Interrupted) } else { Ok(()) };
        match plain {
            true => write_files(&loading, paths, &tokenizer, task.end, &mut writer, go_on)?,
            false => {
                let opened = loading.open(paths, loading.config.format.as_ref())?;
                loading.each_document(
                    &opened.reader,
                    &loading.skipped,
                    &tokenizer,
                    task.documents(),
                    |ids| {
                        go_on()?;
                        Ok(writer.document(ids)?)
                    },
                )?
            }
        }
        if writer.tokens() == 0 {
            return Err(DataError::EmptyText { place: format!("`{}`", paths.summary()) }.into());
        }
        let kept = match self.data.tokenizer {
            TokenizerConfig::File(_) => None,
            TokenizerConfig::Characters | TokenizerConfig::Bpe { .. } => Some(save(&tokenizer, output)?),
        };
        let (documents, tokens) = (writer.documents(), writer.tokens());
        writer.finish()?;
        let skipped = loading.skipped.count();
        tell_skipped(&loading.skipped, &say);
        Ok(Tokenized { path: output.to_owned(), tokenizer: kept, documents, tokens, skipped })
    }
}

/// Writes plain text files, each as one document.
fn write_files(
    loading: &Loading<'_>,
    paths: &Paths,
    tokenizer: &Tokenizer,
    end: Option<bool>,
    writer: &mut TokenWriter,
    go_on: impl Fn() -> Result<(), LoadError>,
) -> Result<(), LoadError> {
    let surround = tokenizer.surround(loading.end(tokenizer, end)?)?;
    let mut progress = loading.progress("tokens");
    let extensions: Vec<&str> = loading.config.extensions.iter().map(String::as_str).collect();
    let extensions = if extensions.is_empty() { vec!["txt", "md"] } else { extensions };
    let files: Vec<Arc<Path>> = Files::find(paths.as_slice(), &extensions)?.paths().to_vec();
    for file in files {
        writer.part(surround.before())?;
        let mut last = surround.before().last().copied();
        for chunk in TextChunks::open(&file)? {
            go_on()?;
            let ids = tokenizer.encode(&chunk?)?;
            last = ids.last().copied().or(last);
            writer.part(&ids)?;
            progress(writer.tokens() as usize);
        }
        writer.document(&surround.after(last))?;
    }
    Ok(())
}

/// Saves a tokenizer that was built from the text into a folder beside the token file.
fn save(tokenizer: &Tokenizer, output: &Path) -> Result<PathBuf, LoadError> {
    let mut folder = output.as_os_str().to_owned();
    folder.push(".tokenizer");
    let folder = PathBuf::from(folder);
    let failed = |source| LoadError::from(DataError::Io { path: folder.clone(), source });
    fs::create_dir_all(&folder).map_err(failed)?;
    tokenizer.save(folder.join("tokenizer.json"))?;
    Ok(folder)
}
