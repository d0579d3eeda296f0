//! Text to token ids and back.

use std::{path::Path, sync::Arc};

use sha2::{Digest, Sha256};

use super::{
    Side, SpecialNames, SpecialTokens, bpe,
    characters::Characters,
    fast::Fast,
    framed::framed,
    missing,
    pieces::{on_all_cores, pieces},
    tokenizer_config::TokenizerConfig,
    tokenizer_file::{self, guarded},
    transformers_class,
};
use crate::{DataError, whole_file};

/// Turns text into token ids, and ids into text.
///
/// Whichever way it was made, it is saved as an ordinary `tokenizer.json`, which any tool built on
/// the `tokenizers` library reads.
///
/// # Example
///
/// ```
/// use firebrick_datasets::Tokenizer;
///
/// let tokenizer = Tokenizer::characters("hello")?;
/// assert_eq!(tokenizer.vocab_size(), 4); // e, h, l, o
/// assert_eq!(tokenizer.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(tokenizer.decode(&[1, 3, 2, 0])?, "hole");
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tokenizer {
    fast: Arc<Fast>,
    /// The fast way, for a vocabulary of characters.
    characters: Option<Characters>,
    vocab_size: usize,
    special: SpecialTokens,
    names: SpecialNames,
    max_length: Option<usize>,
    padding: Option<Side>,
    truncation: Option<Side>,
    segments: Option<bool>,
}

impl Tokenizer {
    /// One token for each distinct character of `text`, in the order of their code points.
    ///
    /// # Errors
    ///
    /// [`DataError::EmptyText`] if there is no character.
    pub fn characters(text: &str) -> Result<Self, DataError> {
        not_empty(text)?;
        Ok(Self::new(Characters::tokenizer(text)?))
    }

    /// Byte-level BPE, trained on `text`: it starts from the 256 bytes, so it encodes any text, and
    /// adds the most frequent pairs until there are `vocab_size` tokens.
    ///
    /// The same text gives the same tokenizer. If `text` is too short to repeat that many pairs,
    /// the vocabulary stays smaller. Tokens do not reach across words, nor across the cuts that
    /// [`encode`](Self::encode) makes. Words of more than 4 KiB are cut.
    ///
    /// # Errors
    ///
    /// [`DataError::VocabularySize`] if `vocab_size` is below 257, [`DataError::EmptyText`] if
    /// there is no text.
    ///
    /// # Example
    ///
    /// ```
    /// use firebrick_datasets::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::train_bpe("the cat, the dog, the end", 258)?;
    /// assert_eq!(tokenizer.encode("the")?.len(), 1);
    /// assert_eq!(tokenizer.decode(&tokenizer.encode("新しい")?)?, "新しい");
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    pub fn train_bpe(text: &str, vocab_size: usize) -> Result<Self, DataError> {
        not_empty(text)?;
        Ok(Self::new(bpe::train(text, vocab_size)?))
    }

    /// As [`train_bpe`](Self::train_bpe), with special tokens besides.
    ///
    /// They come after the vocabulary. Texts are framed with them: `cls` or else `bos` begins a
    /// text, `sep` or else `eos` ends it.
    ///
    /// # Errors
    ///
    /// Those of [`train_bpe`](Self::train_bpe).
    pub fn train_bpe_with(text: &str, vocab_size: usize, names: SpecialNames) -> Result<Self, DataError> {
        not_empty(text)?;
        Self::new(framed(bpe::train(text, vocab_size)?, &names)?).with_special(names)
    }

    /// Reads a `tokenizer.json`, or that of a folder.
    ///
    /// Its truncation, padding and dropout are turned off: they would cut the text short, or make
    /// its encoding depend on chance.
    ///
    /// Which token has which [role](Self::special) is said, if the file is called
    /// `tokenizer.json`, by `tokenizer_config.json` beside it, then by `special_tokens_map.json`;
    /// in any case then by its own padding, post-processor and model. What is still missing is
    /// looked for by name among its special tokens: `[PAD]`, `<pad>`, `<|pad|>`, `<|padding|>` and
    /// `<|finetune_right_pad_id|>` fill rows, `[UNK]`, `<unk>` and `<|unk|>` stand for the unknown,
    /// `[BOS]`, `<s>`, `<bos>`, `<|begin_of_text|>` and `<|startoftext|>` begin a text, `[EOS]`,
    /// `</s>`, `<eos>`, `<|end_of_text|>` and `<|endoftext|>` end one, `[CLS]` and `<cls>` stand for
    /// it, `[SEP]` and `<sep>` between two, and `[MASK]`, `<mask>` and `<|mask|>` hide a token.
    ///
    /// What transformers' class of the tokenizer makes of `do_lower_case`, `strip_accents`,
    /// `tokenize_chinese_chars` and `add_prefix_space` in that `tokenizer_config.json`, or of its
    /// defaults where they are missing, is done here too; `model_input_names` says whether the
    /// [segments](Self::segments) of a pair are read.
    ///
    /// Regular expressions are those of Oniguruma, as in Python's `tokenizers`. The file may come
    /// from anywhere: a broken or malicious one is an error.
    ///
    /// # Errors
    ///
    /// [`DataError::NoTokenizerFile`] if there is none or it is of another kind, [`DataError::Io`] if a
    /// file cannot be read, [`DataError::TokenizerFile`] if it is broken, and
    /// [`DataError::TokenizerConfig`] if one beside it is, names a token that it lacks, or has a field
    /// that transformers would follow and the file does not.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let mut path = path.as_ref().to_owned();
        if path.is_dir() {
            path.push(FILE);
        }
        missing::check(&path)?;
        let (mut inner, names) = tokenizer_file::read(&path)?;
        let mut config = TokenizerConfig::default();
        if let Some(folder) = config_folder(&path) {
            let segments = guarded(|| Ok(transformers_class::apply(folder, &mut inner)))
                .map_err(|reason| DataError::TokenizerFile { path: path.clone(), reason })??;
            config = TokenizerConfig::read(folder, |token| inner.token_to_id(token).is_some())?;
            config.segments = config.segments.or(segments);
        }
        let names = config.names.or(names.known_to(&inner)).or(SpecialNames::well_known(&inner));
        Self {
            max_length: config.max_length,
            padding: config.padding,
            truncation: config.truncation,
            segments: config.segments,
            ..Self::new(inner)
        }
        .with_special(names)
    }

    /// Gives tokens a role. Roles that are not named stay as they are.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownToken`] if a token is not in the vocabulary.
    pub fn with_special(self, names: SpecialNames) -> Result<Self, DataError> {
        let names = names.or(self.names);
        let special = names.resolve(self.fast.tokenizer())?;
        Ok(Self { special, names, ..self })
    }

    /// Gives these tokens a role, and takes it from all others: a tokenizer that was [trained](Self::train_bpe_with) and
    /// saved is then the one that it was, whatever [its file](Self::from_file) seems to say of roles.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownToken`] if a token is not in the vocabulary.
    pub fn with_only_special(self, names: SpecialNames) -> Result<Self, DataError> {
        Self { names: SpecialNames::default(), ..self }.with_special(names)
    }

    pub(super) fn new(inner: tokenizers::Tokenizer) -> Self {
        let ids = inner.get_vocab(true).into_values();
        Self {
            vocab_size: ids.max().map_or(0, |largest| largest as usize + 1),
            characters: Characters::of(&inner),
            special: SpecialTokens::default(),
            names: SpecialNames::default(),
            max_length: None,
            padding: None,
            truncation: None,
            segments: None,
            fast: Arc::new(Fast::new(inner)),
        }
    }

    /// The ids of `text`, without adding special tokens at its ends.
    ///
    /// A text of more than 64 KiB is first cut into pieces, each ending with the first newline
    /// past 64 KiB, and the pieces are encoded on all cores. If there is none before 128 KiB, a
    /// piece ends before the last space, and if there is no space either, within the word. The
    /// cuts are part of what this function means: they are the same on every machine, and so are
    /// the ids. With a vocabulary of characters they change nothing.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownCharacter`] if a vocabulary of characters lacks one,
    /// [`DataError::TokenizerFailed`] if a tokenizer from a file cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        if let Some(characters) = &self.characters {
            return characters.encode(text);
        }
        let pieces = pieces(text);
        let ids = on_all_cores(&pieces, |index, &piece| {
            guarded(|| self.fast.ids(piece)).map_err(|reason| {
                let start: usize = pieces[..index].iter().map(|piece| piece.len()).sum();
                DataError::tokenizer(format!("encode the text from byte {start} on"))(reason)
            })
        })?;
        Ok(ids.concat())
    }

    /// The text of `ids`.
    ///
    /// With BPE, ids that end within a character give a `U+FFFD` (�) in its place.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownId`] if an id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        let unknown = |id: &&u32| self.inner().id_to_token(**id).is_none();
        if let Some(&id) = ids.iter().find(unknown) {
            return Err(DataError::UnknownId { id, vocab_size: self.vocab_size });
        }
        guarded(|| self.inner().decode(ids, false)).map_err(DataError::tokenizer("decode the ids"))
    }

    /// The ids of each of several texts, as [`encode`](Self::encode) makes them, on all cores.
    ///
    /// # Errors
    ///
    /// Those of [`encode`](Self::encode), the first in order.
    pub fn encode_each(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DataError> {
        on_all_cores(texts, |_, text| self.encode(text))
    }

    /// The id of a token by its name, as the vocabulary has it.
    ///
    /// # Errors
    ///
    /// [`DataError::UnknownToken`] if the vocabulary does not have it.
    pub fn id(&self, token: &str) -> Result<u32, DataError> {
        self.inner().token_to_id(token).ok_or_else(|| DataError::UnknownToken {
            role: "given",
            token: token.to_owned(),
            known: self.special.all.iter().filter_map(|&id| self.inner().id_to_token(id)).collect(),
        })
    }

    /// A token as one reads it: its text, or, where that is only a part of a character, its name
    /// in the vocabulary. An id that is not in the vocabulary is shown as its number.
    pub fn piece(&self, id: u32) -> String {
        let Some(name) = self.inner().id_to_token(id) else {
            return format!("#{id}");
        };
        match self.decode(&[id]) {
            // What stands for a space at the beginning of a word is lost in decoding.
            Ok(text) if !text.is_empty() && !text.contains('\u{FFFD}') && !name.starts_with('\u{2581}') => {
                text
            }
            _ => name,
        }
    }

    /// One more than the largest id: the rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The tokens that have a role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// SHA-256 of the tokenizer as JSON, by which a file of ids knows its tokenizer.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenizerFailed`] if it cannot be written as JSON.
    pub fn fingerprint(&self) -> Result<[u8; 32], DataError> {
        let json = guarded(|| self.fast.tokenizer().to_string(false))
            .map_err(DataError::tokenizer("write itself as JSON"))?;
        Ok(Sha256::digest(json).into())
    }

    /// The most tokens that the model it was made for takes, special ones included.
    pub fn model_max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// Where short rows were filled for the model it was made for.
    pub fn padding_side(&self) -> Option<Side> {
        self.padding
    }

    /// Where long texts were cut for the model it was made for.
    pub fn truncation_side(&self) -> Option<Side> {
        self.truncation
    }

    /// Whether the model it was made for reads the segments of a pair, if that is known.
    pub fn segments(&self) -> Option<bool> {
        self.segments
    }

    /// What does the work.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        self.fast.tokenizer()
    }

    /// What encodes.
    pub(super) fn fast(&self) -> &Fast {
        &self.fast
    }

    /// Saves as a `tokenizer.json`.
    ///
    /// If it is called so, `tokenizer_config.json` is written beside it, with the tokens that have a
    /// role, the lengths and the sides, if there are any. It names the class that takes a `tokenizer.json` as it is,
    /// `PreTrainedTokenizerFast`, unless it names one already: without it, the class is that of the model in the same
    /// folder, which may make other tokens. What such a file says about other things stays.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a file cannot be written, [`DataError::TokenizerConfig`] if there is a
    /// `tokenizer_config.json` that is broken.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let path = path.as_ref();
        let json =
            guarded(|| self.inner().to_string(true)).map_err(DataError::tokenizer("write itself as JSON"))?;
        whole_file::write(path, json).map_err(DataError::io(path))?;
        let Some(folder) = config_folder(path) else {
            return Ok(());
        };
        let config = TokenizerConfig {
            names: self.names.clone(),
            max_length: self.max_length,
            padding: self.padding,
            truncation: self.truncation,
            segments: self.segments,
        };
        config.write(folder)?;
        transformers_class::name(folder, self.inner())
    }

    /// Saves into a folder that transformers' `AutoTokenizer` opens, with the tokens that are made here.
    ///
    /// Besides what [`save`](Self::save) writes, `tokenizer_config.json` gets the most tokens and the inputs of
    /// the model.
    ///
    /// # Errors
    ///
    /// Those of [`save`](Self::save).
    pub fn save_for_model(&self, folder: impl AsRef<Path>, model: &ForModel) -> Result<(), DataError> {
        let folder = folder.as_ref();
        let ForModel { max_length, segments } = *model;
        let for_model = Self {
            max_length: self.max_length.into_iter().chain(max_length).min(),
            segments: Some(segments && self.segments != Some(false)),
            ..self.clone()
        };
        for_model.save(folder.join(FILE))
    }
}

/// What a tokenizer's configuration says of the model beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForModel {
    /// The most tokens that it reads, special ones included.
    pub max_length: Option<usize>,
    /// Whether it reads the segments of a pair.
    pub segments: bool,
}

/// The name under which a tokenizer is found in a folder.
const FILE: &str = "tokenizer.json";

/// The folder with the other files of a tokenizer. A tokenizer under another name may be one of
/// several, so files beside it are not known to be its own.
fn config_folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE))
}

fn not_empty(text: &str) -> Result<(), DataError> {
    if text.is_empty() {
        return Err(DataError::EmptyText { place: "the text to build a vocabulary from".to_owned() });
    }
    Ok(())
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
