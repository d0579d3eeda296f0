//! Windows of one long text for a causal language model.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use firebrick_datasets::{
    Corpus, DataError, Fingerprint, Keeping, ReadError, Reader, Record, Skipped, TokenBatch, TokenFile,
    TokenSequence, Tokenizer, TokenizerError, Windows,
};

use super::kept;
use super::{Loaded, Loading, Part};
use crate::{LoadError, Paths, TokenizerConfig};
use firebrick::Data;

/// Number of record texts that are tokenized at once, on all cores.
const CHUNK: usize = 4096;

/// Number of bytes of text that are tokenized at once, at most one text more.
const CHUNK_BYTES: usize = 64 << 20;

/// The documents of a long text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Documents<'a> {
    /// The field of a record that holds one.
    pub text: &'a str,
    /// Whether an end token follows each, besides what the tokenizer puts around it.
    pub end: Option<bool>,
}

impl Loading<'_> {
    /// Returns windows of a token file, of plain text files, or of the texts of records.
    pub(crate) fn windows(&self, paths: &Paths, of: Documents<'_>) -> Result<Loaded, LoadError> {
        (self.say)(&format!("reading {}", paths.summary()));
        let (tokenizer, batches) = match paths.as_slice() {
            [path] if TokenFile::is_one(path) => self.windows_of_file(path)?,
            _ if self.is_plain_text(paths) => self.windows_of_text(paths)?,
            _ => self.windows_of_records(paths, of)?,
        };
        let longest_row = self.config.block.map(|block| block + 1);
        Ok(Loaded { longest_row, ..self.loaded(tokenizer, self.cut(batches)) })
    }

    /// Whether the files are read as plain text, with all their line ends.
    pub(crate) fn is_plain_text(&self, paths: &Paths) -> bool {
        self.config.is_plain_text(paths)
    }

    fn windows_of_text(&self, paths: &Paths) -> Result<(Arc<Tokenizer>, Data<TokenBatch>), LoadError> {
        let all = self.text_of(paths)?;
        self.prints.add(Part::Train, Fingerprint::of(&all));
        let (train, valid, tokenized) = match &self.config.valid {
            Some(valid) => {
                let valid = self.text_of(valid)?;
                self.prints.add(Part::Valid, Fingerprint::of(&valid));
                (all.clone(), valid.clone(), all + "\n" + &valid)
            }
            None => {
                let (train, valid) = Corpus::from(all.clone()).split(self.config.valid_fraction)?;
                (train, valid, all)
            }
        };
        (self.say)(&format!("tokenizing {:.1} MB of text", tokenized.len() as f64 / 1e6));
        // A vocabulary of characters must include those of the validation text.
        let tokenizer = self.tokenizer_of(|| match self.config.tokenizer {
            TokenizerConfig::Characters => Ok(tokenized),
            _ => Ok(train.clone()),
        })?;
        let surround = tokenizer.surround(None)?;
        let ids_of = |what: &str, text: &str| -> Result<TokenSequence, LoadError> {
            Ok(surround.put(self.ids_of(what, text, &tokenizer)?).into())
        };
        let valid = match valid.is_empty() {
            true => None,
            false => Some(ids_of("the validation text", &valid)?),
        };
        let train = ids_of(&paths.summary(), &train)?;
        let data = self.windows_of_tokens(train, valid, 0.0)?;
        Ok((Arc::new(tokenizer), data))
    }

    pub(crate) fn text_of(&self, paths: &Paths) -> Result<String, LoadError> {
        let mut texts = self.config.plain_texts(paths, self.say)?;
        // A single text is not copied.
        Ok(if texts.len() == 1 { texts.remove(0) } else { texts.join("\n") })
    }

    fn windows_of_records(
        &self,
        paths: &Paths,
        of: Documents<'_>,
    ) -> Result<(Arc<Tokenizer>, Data<TokenBatch>), LoadError> {
        let tokenizer = self.tokenizer_of(|| self.all_text())?;
        let tokens = |part, data, paths| self.tokens_of_records((part, data), paths, &tokenizer, of);
        let train = tokens(Part::Train, "training", paths)?;
        let valid = self.config.valid.as_ref();
        let valid = valid.map(|valid| tokens(Part::Valid, "validation", valid)).transpose()?;
        let data = self.windows_of_tokens(train, valid, self.kept())?;
        Ok((Arc::new(tokenizer), data))
    }

    /// Returns the ids of the texts of records, from the cache or from the files.
    fn tokens_of_records(
        &self,
        (part, data): (Part, &str),
        paths: &Paths,
        tokenizer: &Tokenizer,
        of: Documents<'_>,
    ) -> Result<TokenSequence, LoadError> {
        self.prints.forget(part);
        let opened = self.open(paths, self.config.format.as_ref())?;
        let end = self.end(tokenizer, of.end)?;
        let place = self.cache.as_ref().and_then(|_| tokenizer.settings()).and_then(|settings| {
            let settings = Fingerprint::of(format!("{:?}", (String::from(settings), of.text, end)));
            self.place_of("the tokens", "documents", settings, &opened)
        });
        let keeping = Keeping::new(Fingerprint::of("ids"));
        if let Some(place) = &place
            && let Some((about, ids)) = self.found(place, |entry| kept::read::<Vec<u32>>(entry, &keeping))
        {
            self.note((part, data), about);
            return Ok(ids.concat().into());
        }
        let mut all = Vec::new();
        let ((), about) = self.noting((part, data), opened, |reader, skipped| {
            self.each_document(&reader, &skipped, tokenizer, of, |ids| {
                all.extend_from_slice(ids);
                Ok(())
            })
        })?;
        if let Some(place) = &place {
            self.keep(place, |writer| kept::write_ids(writer, &about, &keeping, &all));
        }
        Ok(all.into())
    }

    /// Visits the token ids of each text of a reader, with the tokens that the tokenizer puts around a text, and followed
    /// by the end token if one is wanted. Counts skipped records in `skipped`.
    pub(crate) fn each_document(
        &self,
        reader: &dyn Reader,
        skipped: &Skipped,
        tokenizer: &Tokenizer,
        of: Documents<'_>,
        mut visit: impl FnMut(&[u32]) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let surround = tokenizer.surround(self.end(tokenizer, of.end)?)?;
        let mut progress = self.progress("documents");
        let mut texts: Vec<String> = Vec::new();
        let (mut documents, mut bytes) = (0, 0);
        let mut flush = |texts: &mut Vec<String>| {
            let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
            for ids in tokenizer.encode_each(&borrowed)? {
                visit(&surround.put(ids))?;
            }
            documents += texts.len();
            progress(documents);
            texts.clear();
            Ok::<_, LoadError>(())
        };
        self.each_record(reader, skipped, |record: Record| {
            let text = self.config.malformed.keep(record.text(of.text).map(str::to_owned), skipped)?;
            bytes += text.as_ref().map_or(0, String::len);
            texts.extend(text);
            match texts.len() == CHUNK || bytes >= CHUNK_BYTES {
                true => {
                    bytes = 0;
                    flush(&mut texts)
                }
                false => Ok(()),
            }
        })?;
        flush(&mut texts)
    }

    /// Returns the end token that follows each document.
    pub(crate) fn end(&self, tokenizer: &Tokenizer, asked: Option<bool>) -> Result<Option<u32>, LoadError> {
        match (asked, tokenizer.special().eos) {
            (Some(true), None) => {
                Err(DataError::Tokenizer(TokenizerError::NoToken { role: "end", setting: "end_id" }).into())
            }
            (Some(false), _) => Ok(None),
            (_, eos) => Ok(eos),
        }
    }

    fn windows_of_file(&self, path: &Path) -> Result<(Arc<Tokenizer>, Data<TokenBatch>), LoadError> {
        let TokenizerConfig::File(_) = self.config.tokenizer else {
            let reason = "name the tokenizer that made it: `tokenizer: File(\"tokenizer.json\")`".to_owned();
            return Err(DataError::Read(ReadError::TokenFile { path: path.to_owned(), reason }).into());
        };
        let tokenizer = self.tokenizer_of(|| Ok(String::new()))?;
        let open = |part, path: &Path| {
            let file = TokenFile::open(path)?;
            file.require_tokenizer(&tokenizer)?;
            self.prints.add(part, file.fingerprint()?);
            Ok::<_, DataError>(TokenSequence::from(file))
        };
        let train = open(Part::Train, path)?;
        let valid = match self.config.valid.as_ref().map(Paths::as_slice) {
            None => None,
            Some([valid]) => Some(open(Part::Valid, valid)?),
            Some(_) => {
                let reason = "`data.valid` must be one token file too".to_owned();
                return Err(DataError::Read(ReadError::TokenFile { path: path.to_owned(), reason }).into());
            }
        };
        let data = self.windows_of_tokens(train, valid, self.kept())?;
        Ok((Arc::new(tokenizer), data))
    }

    /// Returns windows over tokens. Without validation tokens, the last `kept` share of the training tokens is used for
    /// validation.
    fn windows_of_tokens(
        &self,
        train: TokenSequence,
        valid: Option<TokenSequence>,
        kept: f64,
    ) -> Result<Data<TokenBatch>, LoadError> {
        let end = train.len();
        let cut = end - (end as f64 * kept) as usize;
        let windows = |tokens, range, part| {
            let windows = Windows::within(tokens, range, self.config.block.unwrap_or(1));
            windows.map_err(|error| LoadError::Part { part, error })
        };
        let training = windows(train.clone(), 0..cut, self.settled.part())?;
        let data = Data::new(match self.settled.is_evaluated {
            true => training,
            false => training.shuffled(self.seed),
        });
        Ok(match valid {
            Some(valid) => {
                let all = self.evaluated_tokens(0..valid.len());
                data.valid(windows(valid, all, "validation")?)
            }
            None if cut < end => {
                let kept = self.evaluated_tokens(cut..end);
                data.valid(windows(train, kept, "validation")?)
            }
            None => data,
        })
    }

    /// Returns the validation tokens whose windows are evaluated: all, or those of the first windows.
    fn evaluated_tokens(&self, tokens: Range<usize>) -> Range<usize> {
        let block = self.config.block.unwrap_or(1);
        // The last token of a window is only a label.
        let most = self.evaluate_samples.map(|samples| samples.saturating_mul(block).saturating_add(1));
        let end = most.map_or(tokens.end, |most| tokens.start.saturating_add(most).min(tokens.end));
        tokens.start..end
    }

    /// Returns the share of the training data that is used for validation.
    fn kept(&self) -> f64 {
        if self.config.valid.is_some() { 0.0 } else { self.config.valid_fraction }
    }
}
