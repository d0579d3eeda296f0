//! The files next to a `tokenizer.json`, and warnings of what they ask for.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use super::SpecialNames;
use super::chat_templates::{self, ChatTemplates};
use crate::{DataError, Side, TokenizerError, strict_json, whole_file};

/// The main configuration file, which takes precedence.
pub(super) const CONFIG: &str = "tokenizer_config.json";

/// The older file, which contains only the special tokens.
const SPECIAL: &str = "special_tokens_map.json";

/// A larger file is not a configuration.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// A larger maximum means no maximum: Python's tools write 1e30.
const LONGEST: f64 = u32::MAX as f64;

/// The content of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TokenizerConfig {
    /// The special tokens.
    pub(super) names: SpecialNames,
    /// The maximum number of tokens that the model takes.
    pub(super) max_length: Option<usize>,
    /// The side on which short rows are padded.
    pub(super) padding: Option<Side>,
    /// The side at which long texts are cut.
    pub(super) truncation: Option<Side>,
    /// Whether the model reads the segments of a pair.
    pub(super) segments: Option<bool>,
    /// Whether to remove spaces before punctuation from decoded text.
    pub(super) clean_up: Option<bool>,
    /// Whether special tokens within a text are split like other text.
    pub(super) split_special: Option<bool>,
    /// The chat templates.
    pub(super) chat: ChatTemplates,
}

/// The field that says whether decoded text is cleaned up.
pub(super) const CLEAN_UP: &str = "clean_up_tokenization_spaces";

/// The field that says whether special tokens within a text are split.
const SPLIT_SPECIAL: &str = "split_special_tokens";

/// The field that lists the model's inputs.
pub(super) const INPUTS: &str = "model_input_names";

impl TokenizerConfig {
    /// Reads those files of a folder that exist. `known` returns whether a token is in the vocabulary.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and [`TokenizerError::TokenizerConfig`] if a file is broken.
    pub(super) fn read(folder: &Path, known: impl Fn(&str) -> bool) -> Result<Self, DataError> {
        let (config, special) = (folder.join(CONFIG), folder.join(SPECIAL));
        let (config, special) = (File::read(&config)?, File::read(&special)?);
        Ok(Self {
            names: config.names(&known)?.or(special.names(&known)?),
            max_length: config.max_length()?,
            padding: config.side("padding_side")?,
            truncation: config.side("truncation_side")?,
            segments: config.segments()?,
            clean_up: config.flag(CLEAN_UP)?,
            split_special: config.flag(SPLIT_SPECIAL)?,
            chat: chat(folder, &config)?,
        })
    }

    /// Writes the configuration into the folder. Other fields of an existing file are kept.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub(super) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(CONFIG);
        let mut file = File::read(&path)?;
        if *self == Self::default() && file.fields.is_empty() {
            return Ok(());
        }
        let mut set = |field: &str, value| file.set(field, value);
        for (role, name) in self.names.roles() {
            set(&format!("{role}_token"), name.as_ref().map(|name| json!(name)));
        }
        let additional = &self.names.additional;
        set("additional_special_tokens", (!additional.is_empty()).then(|| json!(additional)));
        set("extra_special_tokens", None);
        set("model_max_length", self.max_length.map(|tokens| json!(tokens)));
        let side = |side: Option<Side>| {
            side.map(|side| match side {
                Side::Left => json!("left"),
                Side::Right => json!("right"),
            })
        };
        set("padding_side", side(self.padding));
        set("truncation_side", side(self.truncation));
        if let Some(segments) = self.segments {
            set(INPUTS, Some(inputs(segments)));
        }
        for (field, flag) in [(CLEAN_UP, self.clean_up), (SPLIT_SPECIAL, self.split_special)] {
            if let Some(flag) = flag {
                set(field, Some(flag.into()));
            }
        }
        if !self.chat.is_empty() {
            self.chat.write(folder)?;
            file.set("chat_template", None);
        }
        file.write()
    }
}

/// Reads the chat templates: those in files of their own, otherwise those of the configuration, otherwise the one of the
/// file of older folders.
fn chat(folder: &Path, config: &File<'_>) -> Result<ChatTemplates, DataError> {
    let of_files = ChatTemplates::read(folder)?;
    let older = folder.join(chat_templates::JSON);
    for file in [config, &File::read(&older)?] {
        let named = file.field(chat_templates::FIELD, chat_templates::EXPECTED, chat_templates::named)?;
        if let (true, Some(named)) = (of_files.is_empty(), named) {
            return Ok(ChatTemplates::of_field(file.path, named));
        }
    }
    Ok(of_files)
}

/// Returns the model's inputs, by their names in transformers.
fn inputs(segments: bool) -> Value {
    match segments {
        true => json!(["input_ids", "token_type_ids", "attention_mask"]),
        false => json!(["input_ids", "attention_mask"]),
    }
}

/// One of the files.
pub(super) struct File<'a> {
    path: &'a Path,
    fields: Map<String, Value>,
}

impl<'a> File<'a> {
    /// Reads the file. A missing file has no fields.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and [`TokenizerError::TokenizerConfig`] if the file is broken.
    pub(super) fn read(path: &'a Path) -> Result<Self, DataError> {
        let broken = |found: String| {
            DataError::Tokenizer(TokenizerError::TokenizerConfig {
                path: path.to_owned(),
                field: None,
                expected: "a JSON object".to_owned(),
                found,
            })
        };
        let fields = match strict_json::bytes(path, MOST_BYTES) {
            Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Map::new(),
            Err(error) => return Err(error),
            Ok(bytes) => match bytes.and_then(|bytes| strict_json::parse(&bytes)) {
                Ok(Value::Object(fields)) => fields,
                Ok(_) => return Err(broken("a different value".to_owned())),
                Err(reason) => return Err(broken(format!("something else: {reason}"))),
            },
        };
        Ok(Self { path, fields })
    }

    /// Returns all fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.fields.iter()
    }

    /// Returns whether the file has a value for a field.
    pub(super) fn has(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|value| !value.is_null())
    }

    /// Creates a warning about a field.
    pub(super) fn warning(&self, field: &str, message: String) -> TokenizerWarning {
        TokenizerWarning::new(self.path, field, message)
    }

    /// Returns a field that `read` accepts; `null` counts as missing.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerConfig`] if `read` returns `None`.
    pub(super) fn field<'f, T>(
        &'f self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'f Value) -> Option<T>,
    ) -> Result<Option<T>, DataError> {
        let Some(value) = self.fields.get(field).filter(|value| !value.is_null()) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.error(field, expected, value))
    }

    /// Returns the texts of the special tokens, whether the tokenizer has them or not.
    pub(super) fn special_texts(&self) -> Vec<&str> {
        let roles = self.fields.iter().filter(|(field, _)| field.ends_with("_token")).map(|(_, token)| token);
        let lists = ["additional_special_tokens", "extra_special_tokens"]
            .iter()
            .filter_map(|field| self.fields.get(*field));
        let listed = lists.filter_map(Value::as_array).flatten();
        roles.chain(listed).filter_map(|token| token.get("content").unwrap_or(token).as_str()).collect()
    }

    /// Sets or removes a field.
    pub(super) fn set(&mut self, field: &str, value: Option<Value>) {
        match value {
            Some(value) => self.fields.insert(field.to_owned(), value),
            None => self.fields.remove(field),
        };
    }

    /// Replaces the file that was read.
    pub(super) fn write(&self) -> Result<(), DataError> {
        let text = serde_json::to_string_pretty(&self.fields)
            .map_err(|error| DataError::io(self.path)(error.into()))?;
        whole_file::write(self.path, text + "\n").map_err(DataError::io(self.path))
    }

    pub(super) fn error(&self, field: &str, expected: &str, found: &Value) -> DataError {
        let mut found = found.to_string();
        if let Some((end, _)) = found.char_indices().nth(80) {
            found.truncate(end);
            found.push('…');
        }
        DataError::Tokenizer(TokenizerError::TokenizerConfig {
            path: self.path.to_owned(),
            field: Some(field.to_owned()),
            expected: expected.to_owned(),
            found,
        })
    }

    fn names(&self, known: impl Fn(&str) -> bool) -> Result<SpecialNames, DataError> {
        let token = |field: &str, value: &Value| -> Result<Option<String>, DataError> {
            let text = match value {
                Value::Null => return Ok(None),
                Value::Object(token) => token.get("content").and_then(Value::as_str),
                other => other.as_str(),
            };
            match text {
                Some("") => Ok(None),
                Some(text) if known(text) => Ok(Some(text.to_owned())),
                Some(_) => Err(self.error(field, "a token that the tokenizer.json next to it has", value)),
                None => Err(self.error(field, "a token: a text, or an object with `content`", value)),
            }
        };
        let mut names = SpecialNames::default();
        for (role, name) in names.roles_mut() {
            let field = format!("{role}_token");
            *name = self.fields.get(&field).map_or(Ok(None), |value| token(&field, value))?;
        }
        for field in ["additional_special_tokens", "extra_special_tokens"] {
            let tokens: Vec<&Value> = match self.fields.get(field) {
                None | Some(Value::Null) => Vec::new(),
                Some(Value::Array(tokens)) => tokens.iter().collect(),
                Some(Value::Object(tokens)) => tokens.values().collect(),
                Some(other) => return Err(self.error(field, "a list of tokens", other)),
            };
            for value in tokens {
                names.additional.extend(token(field, value)?);
            }
        }
        Ok(names)
    }

    /// Returns a Boolean field.
    pub(super) fn flag(&self, field: &str) -> Result<Option<bool>, DataError> {
        self.field(field, "true or false", Value::as_bool)
    }

    /// Returns a text field.
    pub(super) fn text(&self, field: &str) -> Result<Option<&str>, DataError> {
        self.field(field, "a text", Value::as_str)
    }

    /// Creates the error for a field that the class in transformers follows and the `tokenizer.json` contradicts.
    pub(super) fn disagrees(&self, field: &str, asked: bool, part: &str) -> DataError {
        let expected = format!(
            "{}, as in the {part} of the tokenizer.json next to it (transformers follows the field, so its tokens \
             would differ; save the folder again with its `save_pretrained`)",
            !asked
        );
        self.error(field, &expected, &asked.into())
    }

    /// Returns whether segments are among the model's inputs.
    fn segments(&self) -> Result<Option<bool>, DataError> {
        let expected = "a list with `attention_mask`, since a model here never attends to padding";
        self.field(INPUTS, expected, |value| {
            let names = value.as_array()?;
            let has = |input: &str| names.iter().any(|name| name == input);
            has("attention_mask").then(|| has("token_type_ids"))
        })
    }

    fn max_length(&self) -> Result<Option<usize>, DataError> {
        let length = self.field("model_max_length", "a whole number of at least 1", |value| {
            let tokens = value.as_f64()?;
            match tokens > LONGEST {
                true => Some(None),
                false => (tokens >= 1.0 && tokens.fract() == 0.0).then_some(Some(tokens as usize)),
            }
        });
        length.map(Option::flatten)
    }

    fn side(&self, field: &str) -> Result<Option<Side>, DataError> {
        self.field(field, "\"left\" or \"right\"", |value| match value.as_str()? {
            "left" => Some(Side::Left),
            "right" => Some(Side::Right),
            _ => None,
        })
    }
}

/// The file name of a tokenizer in a folder.
pub(super) const FILE: &str = "tokenizer.json";

/// Returns the folder with the other files of a tokenizer. A tokenizer with another file name may be one of several, so
/// the files next to it may not be its own.
pub(super) fn config_folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|_| path.file_name().is_some_and(|name| name == FILE))
}

/// A field next to a `tokenizer.json` that some version of transformers follows and this crate does not.
///
/// The tokenizer works, but its ids may differ from those that a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizerWarning {
    /// The file.
    pub path: PathBuf,
    /// The field.
    pub field: String,
    /// What transformers does, what happens instead, and what to do.
    pub message: String,
}

impl TokenizerWarning {
    pub(super) fn new(path: &Path, field: impl Into<String>, message: String) -> Self {
        Self { path: path.to_owned(), field: field.into(), message }
    }
}

impl fmt::Display for TokenizerWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, field `{}`: {}", self.path.display(), self.field, self.message)
    }
}

#[cfg(test)]
#[path = "tokenizer_config_tests.rs"]
mod tests;
