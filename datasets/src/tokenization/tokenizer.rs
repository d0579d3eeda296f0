//! Converts text to token ids and back.

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use sha2::{Digest, Sha256};
use tokenizers::{AddedToken, ModelWrapper};

use super::{
    SpecialNames, SpecialTokens, TokenizerWarning, bpe,
    characters::Characters,
    clean_up::clean_up,
    config_tokens,
    fast::Fast,
    framed::framed,
    pieces::{on_all_cores, pieces},
    tokenizer_config::{FILE, TokenizerConfig, config_folder},
    tokenizer_file::{self, guarded},
    transformers_class,
};
use crate::{DataError, Fingerprint, Side, TokenizerError};

/// Converts text to token ids and back.
///
/// However it was made, it is saved as an ordinary `tokenizer.json`, which every tool built on the `tokenizers` library
/// can read.
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
    /// The fast encoder for a character vocabulary.
    characters: Option<Characters>,
    vocab_size: usize,
    special: SpecialTokens,
    pub(super) config: TokenizerConfig,
    warnings: Vec<TokenizerWarning>,
    /// The hash of its JSON, once it is asked for.
    sha256: Arc<OnceLock<[u8; 32]>>,
    /// The file that it was read from.
    pub(super) origin: Option<Arc<Path>>,
}

impl Tokenizer {
    /// Creates one token for each distinct character of `text`, in the order of their code points.
    ///
    /// # Errors
    ///
    /// [`DataError::EmptyText`] if the text is empty.
    pub fn characters(text: &str) -> Result<Self, DataError> {
        not_empty(text)?;
        Ok(Self::new(Characters::tokenizer(text)?))
    }

    /// Trains byte-level BPE on `text`: it starts from the 256 bytes, so it encodes any text, and adds the most
    /// frequent pairs until there are `vocab_size` tokens.
    ///
    /// The same text gives the same tokenizer. If `text` is too short to repeat that many pairs, the vocabulary stays
    /// smaller. Tokens do not cross words, nor the cuts that [`encode`](Self::encode) makes. Words of more than 4 KiB
    /// are cut.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::VocabularySize`] if `vocab_size` is below 257, [`DataError::EmptyText`] if the text is empty.
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

    /// Like [`train_bpe`](Self::train_bpe), with additional special tokens.
    ///
    /// They come after the vocabulary and frame texts: `cls`, or `bos` without it, begins a text, and `sep`, or `eos`
    /// without it, ends it.
    ///
    /// # Errors
    ///
    /// Those of [`train_bpe`](Self::train_bpe).
    pub fn train_bpe_with(text: &str, vocab_size: usize, names: SpecialNames) -> Result<Self, DataError> {
        not_empty(text)?;
        Self::new(framed(bpe::train(text, vocab_size)?, &names)?).with_special(names)
    }

    /// Reads a `tokenizer.json`, or the one in a folder.
    ///
    /// Its truncation, padding and dropout are turned off: they would cut the text short or make its encoding random.
    ///
    /// The [roles](Self::special) of tokens are read from these sources, in this order: if the file is named
    /// `tokenizer.json`, `tokenizer_config.json` and `special_tokens_map.json` in its folder; then the file's own
    /// padding, post-processor and model; then the names of its special tokens. These names are known: `[PAD]`,
    /// `<pad>`, `<|pad|>`, `<|padding|>` and `<|finetune_right_pad_id|>` for `pad`, `[UNK]`, `<unk>` and `<|unk|>` for
    /// `unk`, `[BOS]`, `<s>`, `<bos>`, `<|begin_of_text|>` and `<|startoftext|>` for `bos`, `[EOS]`, `</s>`, `<eos>`,
    /// `<|end_of_text|>` and `<|endoftext|>` for `eos`, `[CLS]` and `<cls>` for `cls`, `[SEP]` and `<sep>` for `sep`,
    /// and `[MASK]`, `<mask>` and `<|mask|>` for `mask`.
    ///
    /// The tokenizer's class in transformers derives settings from `do_lower_case`, `strip_accents`,
    /// `tokenize_chinese_chars` and `add_prefix_space` in `tokenizer_config.json`, or from its defaults if they are
    /// missing. This function applies the same settings. `model_input_names` says whether the model reads the
    /// [segments](Self::segments) of a pair. `added_tokens_decoder` adds tokens, `split_special_tokens` splits special
    /// tokens within texts, and `clean_up_tokenization_spaces` applies to [`decode`](Self::decode), except with BPE.
    /// Where versions of transformers differ, this function follows version 5. [`warnings`](Self::warnings) lists the
    /// fields to which that applies, and an unknown class.
    ///
    /// Regular expressions are those of Oniguruma, as in Python's `tokenizers`. The file may be untrusted: a broken or
    /// malicious one is an error.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::NoTokenizerFile`] if there is no such file or it is of another kind, [`DataError::Io`] if a
    /// file cannot be read, [`TokenizerError::TokenizerFile`] if it is broken, and [`TokenizerError::TokenizerConfig`]
    /// if a file next to it is broken, names a token that the tokenizer lacks, or has a field that transformers would
    /// follow and the `tokenizer.json` contradicts.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let mut path = path.as_ref().to_owned();
        if path.is_dir() {
            path.push(FILE);
        }
        tokenizer_file::require(&path)?;
        let (mut inner, names) = tokenizer_file::read(&path)?;
        let (mut config, mut warnings) = (TokenizerConfig::default(), Vec::new());
        if let Some(folder) = config_folder(&path) {
            let mut apply = || {
                let segments = transformers_class::apply(folder, &mut inner, &mut warnings)?;
                warnings.extend(config_tokens::add(folder, &mut inner)?);
                config = TokenizerConfig::read(folder, |token| inner.token_to_id(token).is_some())?;
                config.segments = config.segments.or(segments);
                inner.set_encode_special_tokens(config.split_special == Some(true));
                warnings.extend(config_tokens::ordinary(folder, &config.names, &inner));
                Ok::<_, DataError>(())
            };
            guarded(|| Ok(apply())).map_err(|reason| {
                DataError::Tokenizer(TokenizerError::TokenizerFile { path: path.clone(), reason })
            })??;
        }
        let names = names.known_to(&inner).or(SpecialNames::well_known(&inner));
        Self { config, warnings, origin: Some(path.into()), ..Self::new(inner) }.with_further_special(names)
    }

    /// Adds tokens, unless the vocabulary has them, as `add_tokens` of transformers does. They get the next ids, in this
    /// order, and are found within texts.
    ///
    /// ```no_run
    /// use firebrick_datasets::Tokenizer;
    ///
    /// let tokenizer = Tokenizer::from_file("gpt2")?;
    /// let larger = tokenizer.clone().with_new_tokens(&["<question>".into(), "<answer>".into()])?;
    /// assert_eq!(larger.vocab_size(), tokenizer.vocab_size() + 2);
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if the tokenizer cannot have one, such as an empty one.
    pub fn with_new_tokens(self, tokens: &[String]) -> Result<Self, DataError> {
        const ACTION: &str = "have new tokens";
        if tokens.iter().any(String::is_empty) {
            return Err(DataError::tokenizer(ACTION)("a token without a text is among them"));
        }
        let is_new = |token: &&String| self.inner().token_to_id(token).is_none();
        let new: Vec<_> =
            tokens.iter().filter(is_new).map(|token| AddedToken::from(token.clone(), false)).collect();
        if new.is_empty() {
            return Ok(self);
        }
        let mut inner = self.inner().clone();
        guarded(|| inner.add_tokens(new)).map_err(DataError::tokenizer(ACTION))?;
        let Self { config, warnings, special, origin, .. } = self;
        Ok(Self { config, warnings, special, origin, ..Self::new(inner) })
    }

    /// Sets the roles of tokens. Roles without a name keep their token.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownToken`] if a token is not in the vocabulary.
    pub fn with_special(mut self, names: SpecialNames) -> Result<Self, DataError> {
        let further = std::mem::replace(&mut self.config.names, names);
        self.with_further_special(further)
    }

    /// Sets the roles that have no token.
    fn with_further_special(mut self, names: SpecialNames) -> Result<Self, DataError> {
        self.config.names = std::mem::take(&mut self.config.names).or(names);
        self.special = self.config.names.resolve(self.inner())?;
        Ok(self)
    }

    /// Sets the roles of tokens and removes all other roles. This restores a tokenizer that was
    /// [trained](Self::train_bpe_with) and saved, whatever roles [its file](Self::from_file) suggests.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownToken`] if a token is not in the vocabulary.
    pub fn with_only_special(mut self, names: SpecialNames) -> Result<Self, DataError> {
        self.config.names = SpecialNames::default();
        self.with_special(names)
    }

    pub(super) fn new(inner: tokenizers::Tokenizer) -> Self {
        let ids = inner.get_vocab(true).into_values();
        Self {
            vocab_size: ids.max().map_or(0, |largest| largest as usize + 1),
            characters: Characters::of(&inner),
            special: SpecialTokens::default(),
            config: TokenizerConfig::default(),
            warnings: Vec::new(),
            sha256: Arc::default(),
            origin: None,
            fast: Arc::new(Fast::new(inner)),
        }
    }

    /// Returns the ids of `text`, without adding special tokens at its ends.
    ///
    /// A text of more than 64 KiB is first cut into pieces, each ending with the first newline after 64 KiB, and the
    /// pieces are encoded on all cores. If there is no newline before 128 KiB, a piece ends before the last space, or
    /// within the word if there is no space either. The cuts are part of this function's contract: they, and therefore
    /// the ids, are the same on every machine. With a character vocabulary, they have no effect.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownCharacter`] if a character vocabulary lacks a character,
    /// [`TokenizerError::TokenizerFailed`] if a tokenizer from a file cannot encode the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DataError> {
        if let Some(characters) = &self.characters {
            return characters.encode(text, self.origin.as_deref());
        }
        let pieces = pieces(text);
        let ids = on_all_cores(&pieces, |index, &piece| {
            guarded(|| self.fast.ids(piece)).map_err(|reason| {
                let start: usize = pieces[..index].iter().map(|piece| piece.len()).sum();
                let failed = DataError::tokenizer(format!("encode the text from byte {start} on"))(reason);
                Characters::missing(self.inner(), [text], self.origin.as_deref()).unwrap_or(failed)
            })
        })?;
        Ok(ids.concat())
    }

    /// Returns the text of `ids`.
    ///
    /// With BPE, ids that end within a character give `U+FFFD` (�) in its place. Ids outside the vocabulary have no text,
    /// as in transformers: the tables of some models, such as T5 and Qwen2, have more rows than their tokenizers have
    /// tokens, and the model may choose one.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if the decoder of a tokenizer from a file fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String, DataError> {
        let text =
            guarded(|| self.inner().decode(ids, false)).map_err(DataError::tokenizer("decode the ids"))?;
        // With BPE, this would remove spaces that the text had; transformers ignores the field there from version 5 on.
        let cleans =
            self.config.clean_up == Some(true) && !matches!(self.inner().get_model(), ModelWrapper::BPE(_));
        Ok(if cleans { clean_up(text) } else { text })
    }

    /// Returns the ids of each text, as [`encode`](Self::encode) makes them, on all cores.
    ///
    /// # Errors
    ///
    /// The first error of [`encode`](Self::encode), in order.
    pub fn encode_each(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DataError> {
        on_all_cores(texts, |_, text| self.encode(text))
    }

    /// Returns the id of a token by its name in the vocabulary.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::UnknownToken`] if the vocabulary lacks the token.
    pub fn id(&self, token: &str) -> Result<u32, DataError> {
        self.inner().token_to_id(token).ok_or_else(|| {
            DataError::Tokenizer(TokenizerError::UnknownToken {
                role: "given",
                token: token.to_owned(),
                known: self.special.all.iter().filter_map(|&id| self.inner().id_to_token(id)).collect(),
            })
        })
    }

    /// Returns a token in readable form: its text, or its name in the vocabulary if the text is only part of a
    /// character. An id outside the vocabulary is shown as its number.
    pub fn piece(&self, id: u32) -> String {
        let Some(name) = self.inner().id_to_token(id) else {
            return format!("#{id}");
        };
        match self.decode(&[id]) {
            // Decoding drops the sign for a space at the beginning of a word.
            Ok(text) if !text.is_empty() && !text.contains('\u{FFFD}') && !name.starts_with('\u{2581}') => {
                text
            }
            _ => name,
        }
    }

    /// Returns the largest id plus one: the number of rows that an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns the tokens with a role.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Returns the SHA-256 of the tokenizer as JSON. A token file uses it to identify its tokenizer.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if the tokenizer cannot be written as JSON.
    pub fn fingerprint(&self) -> Result<[u8; 32], DataError> {
        if let Some(known) = self.sha256.get() {
            return Ok(*known);
        }
        let json = self.to_json()?;
        Ok(*self.sha256.get_or_init(|| Sha256::digest(json).into()))
    }

    /// Returns a hash of everything that ids depend on besides the text. Unlike [`fingerprint`](Self::fingerprint), it
    /// covers the files beside the `tokenizer.json` and the roles of tokens. `None` if the tokenizer cannot be written
    /// as JSON.
    pub fn settings(&self) -> Option<Fingerprint> {
        // What is added around a rendered conversation is the chat template's own matter.
        let TokenizerConfig { names, segments, split_special, .. } = &self.config;
        // Lengths and sides are settings of an encoder, and the others do not act on ids.
        let TokenizerConfig { max_length: _, padding: _, truncation: _, clean_up: _, chat: _, .. } =
            &self.config;
        Fingerprint::of_settings(&(
            self.fingerprint().ok()?,
            &self.special.all,
            names,
            segments,
            split_special,
        ))
    }

    /// Returns the tokenizer as JSON, the content of a `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if the tokenizer cannot be written as JSON.
    pub fn to_json(&self) -> Result<String, DataError> {
        guarded(|| self.fast.tokenizer().to_string(false))
            .map_err(DataError::tokenizer("be serialized as JSON"))
    }

    /// Reads the [JSON](Self::to_json) of a tokenizer that was [trained](Self::train_bpe_with) with these special tokens.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`] if it is no such JSON, and [`TokenizerError::UnknownToken`] if a special token
    /// is not in the vocabulary.
    pub fn from_json(json: &str, names: SpecialNames) -> Result<Self, DataError> {
        let inner =
            guarded(|| tokenizers::Tokenizer::from_bytes(json)).map_err(DataError::tokenizer("be read"))?;
        Self::new(inner).with_special(names)
    }

    /// Returns the maximum number of tokens of the tokenizer's model, including special ones.
    pub fn model_max_length(&self) -> Option<usize> {
        self.config.max_length
    }

    /// Returns the side on which the tokenizer's model expects padding.
    pub fn padding_side(&self) -> Option<Side> {
        self.config.padding
    }

    /// Returns the side at which long texts were cut for the tokenizer's model.
    pub fn truncation_side(&self) -> Option<Side> {
        self.config.truncation
    }

    /// Returns whether the tokenizer's model reads the segments of a pair, if known.
    pub fn segments(&self) -> Option<bool> {
        self.config.segments
    }

    /// Returns the fields next to the `tokenizer.json` that some version of transformers follows and this crate does
    /// not, so that ids may differ from those that a model was trained on.
    pub fn warnings(&self) -> &[TokenizerWarning] {
        &self.warnings
    }

    /// Returns the tokenizer of the `tokenizers` crate.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        self.fast.tokenizer()
    }

    /// Returns the fast encoder.
    pub(super) fn fast(&self) -> &Fast {
        &self.fast
    }
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
