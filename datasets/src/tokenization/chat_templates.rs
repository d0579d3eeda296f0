//! The chat templates beside a `tokenizer.json`.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use crate::{ChatTemplate, DataError, TokenizerError, strict_json, whole_file};

/// The file of the template.
const JINJA: &str = "chat_template.jinja";

/// The folder of further templates, each a file with its name.
const FURTHER: &str = "additional_chat_templates";

/// The file of older folders, a JSON object with the field of [`FIELD`].
pub(super) const JSON: &str = "chat_template.json";

/// The field of the template in JSON files.
pub(super) const FIELD: &str = "chat_template";

/// What the field holds.
pub(super) const EXPECTED: &str = "a template, or a list of templates with `name` and `template`";

/// A larger file is not a template.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// Templates by name: `default`, and others such as `tool_use`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChatTemplates {
    named: Vec<(String, String)>,
    /// What errors call them.
    origin: String,
}

impl ChatTemplates {
    /// Creates a single template.
    pub(crate) fn one(origin: &str, source: &str) -> Self {
        Self { named: vec![("default".to_owned(), source.to_owned())], origin: origin.to_owned() }
    }

    /// Creates the templates of the field of a JSON file.
    pub(super) fn of_field(file: &Path, named: Vec<(String, String)>) -> Self {
        Self { named, origin: format!("`{FIELD}` of {}", file.display()) }
    }

    /// Reads the templates of a folder that are in files of their own. They are compiled when they are used.
    pub(super) fn read(folder: &Path) -> Result<Self, DataError> {
        let mut named = Vec::new();
        let jinja = folder.join(JINJA);
        named.extend(file(&jinja)?.map(|source| ("default".to_owned(), source)));
        let further = folder.join(FURTHER);
        if further.is_dir() {
            let mut paths = Vec::new();
            for entry in fs::read_dir(&further).map_err(DataError::io(&further))? {
                let path = entry.map_err(DataError::io(&further))?.path();
                paths.extend(path.extension().is_some_and(|ending| ending == "jinja").then_some(path));
            }
            paths.sort();
            for path in paths {
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                named.extend(file(&path)?.map(|source| (name, source)));
            }
        }
        Ok(match named.is_empty() {
            true => Self::default(),
            false => Self { named, origin: jinja.display().to_string() },
        })
    }

    /// Writes the templates into files of their own, as transformers 5 does. Without templates, nothing changes.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), DataError> {
        for (name, source) in &self.named {
            let path = match &**name {
                "default" => folder.join(JINJA),
                name => folder.join(FURTHER).join(format!("{name}.jinja")),
            };
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(DataError::io(parent))?;
            }
            whole_file::write(&path, source).map_err(DataError::io(&path))?;
        }
        Ok(())
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    /// Compiles the template named `default`, or the only one, and the one for tools.
    pub(crate) fn compile(&self) -> Result<Option<ChatTemplate>, DataError> {
        let of = |name: &str| self.named.iter().find(|(of, _)| of == name).map(|(_, source)| source);
        let Some(source) = of("default").or(self.named.first().map(|(_, source)| source)) else {
            return Ok(None);
        };
        let template = ChatTemplate::new(&*self.origin, source)?;
        match of("tool_use") {
            Some(source) => template.with_tools(source).map(Some),
            None => Ok(Some(template)),
        }
    }
}

fn file(path: &Path) -> Result<Option<String>, DataError> {
    let broken = |found: String| {
        DataError::Tokenizer(TokenizerError::TokenizerConfig {
            path: path.to_owned(),
            field: None,
            expected: "a Jinja template".to_owned(),
            found,
        })
    };
    match strict_json::bytes(path, MOST_BYTES) {
        Err(DataError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => {
            let bytes = bytes.map_err(broken)?;
            String::from_utf8(bytes).map(Some).map_err(|error| broken(format!("other bytes: {error}")))
        }
    }
}

/// Reads a template, or a list of named ones.
pub(super) fn named(value: &Value) -> Option<Vec<(String, String)>> {
    let named = |value: &Value| {
        let (name, source) = (value["name"].as_str()?, value["template"].as_str()?);
        // The name becomes the name of a file.
        let is_name = !name.is_empty() && name.chars().all(|one| one.is_alphanumeric() || "_-".contains(one));
        is_name.then(|| (name.to_owned(), source.to_owned()))
    };
    match value {
        Value::String(source) => Some(vec![("default".to_owned(), source.clone())]),
        Value::Array(values) => values.iter().map(named).collect(),
        _ => None,
    }
}
