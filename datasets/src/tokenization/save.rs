//! Saves a tokenizer, for this crate and for transformers.

use std::path::Path;

use super::{
    Tokenizer,
    tokenizer_config::{FILE, TokenizerConfig, config_folder},
    tokenizer_file::guarded,
    transformers_class,
};
use crate::{DataError, whole_file};

impl Tokenizer {
    /// Saves the tokenizer as a `tokenizer.json`.
    ///
    /// If `path` has that file name, this also writes `tokenizer_config.json` next to it, with the special tokens,
    /// lengths and sides, if there are any. The configuration names the class `PreTrainedTokenizerFast`, which uses a
    /// `tokenizer.json` as it is, unless it already names a class: without one, transformers uses the class of the
    /// model in the same folder, which may make different tokens. Other fields of an existing configuration are kept.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if a file cannot be written,
    /// [`TokenizerError::TokenizerConfig`](crate::TokenizerError::TokenizerConfig) if an existing
    /// `tokenizer_config.json` is broken.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), DataError> {
        let path = path.as_ref();
        let json = guarded(|| self.inner().to_string(true))
            .map_err(DataError::tokenizer("be serialized as JSON"))?;
        whole_file::write(path, json).map_err(DataError::io(path))?;
        let Some(folder) = config_folder(path) else {
            return Ok(());
        };
        let split_special = self.inner().get_encode_special_tokens().then_some(true);
        TokenizerConfig { split_special, ..self.config.clone() }.write(folder)?;
        transformers_class::name(folder, self.inner())
    }

    /// Saves into a folder that transformers' `AutoTokenizer` opens with the same tokens.
    ///
    /// In addition to what [`save`](Self::save) writes, `tokenizer_config.json` gets the model's maximum number of
    /// tokens and its inputs.
    ///
    /// # Errors
    ///
    /// Those of [`save`](Self::save).
    pub fn save_for_model(&self, folder: impl AsRef<Path>, model: &ForModel) -> Result<(), DataError> {
        let folder = folder.as_ref();
        let ForModel { max_length, segments } = *model;
        let mut for_model = self.clone();
        for_model.config.max_length = self.model_max_length().into_iter().chain(max_length).min();
        for_model.config.segments = Some(segments && self.segments() != Some(false));
        for_model.save(folder.join(FILE))
    }
}

/// The model's settings in a tokenizer's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForModel {
    /// The maximum number of tokens that it reads, including special ones.
    pub max_length: Option<usize>,
    /// Whether it reads the segments of a pair.
    pub segments: bool,
}
