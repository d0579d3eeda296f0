//! What becomes of a field.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// What became of a field of the files that were imported.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is in the run file: as what.
    Taken(String),
    /// Nothing depends on it here: why.
    NoEffect(String),
    /// Nothing here does what it asks for: what to do instead.
    NotSupported {
        /// What to do, or what is done.
        instead: String,
        /// Whether the model that comes out is another one; if not, memory, speed or files differ.
        changes_the_result: bool,
    },
    /// The files do not tell its value: what the run file has in its place, to be looked at.
    FillIn(String),
    /// No field of DeepSpeed or Transformers that is known here has this name: the nearest that has.
    Unknown(Option<String>),
}

impl Outcome {
    pub(super) fn taken(to: impl Into<String>) -> Self {
        Self::Taken(to.into())
    }

    pub(super) fn no_effect(why: impl Into<String>) -> Self {
        Self::NoEffect(why.into())
    }

    /// Another model comes out without it.
    pub(super) fn refused(instead: impl Into<String>) -> Self {
        Self::NotSupported { instead: instead.into(), changes_the_result: true }
    }

    /// The same model comes out without it.
    pub(super) fn omitted(instead: impl Into<String>) -> Self {
        Self::NotSupported { instead: instead.into(), changes_the_result: false }
    }

    /// Whether a run without this field may end with another model. Of an unknown field nobody can tell.
    pub fn may_change_the_result(&self) -> bool {
        matches!(self, Self::NotSupported { changes_the_result: true, .. } | Self::Unknown(_))
    }

    /// In one or two words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Taken(_) => "taken",
            Self::NoEffect(_) => "no effect",
            Self::NotSupported { .. } => "not supported",
            Self::FillIn(_) => "fill in",
            Self::Unknown(_) => "unknown",
        }
    }

    /// As what, why, or what instead.
    pub(super) fn explained(&self) -> String {
        match self {
            Self::Taken(text) | Self::NoEffect(text) | Self::FillIn(text) => text.clone(),
            Self::NotSupported { instead, .. } => format!("instead: {instead}"),
            Self::Unknown(Some(nearest)) => format!("did you mean `{nearest}`?"),
            Self::Unknown(None) => "no field of this name is known: take it out".into(),
        }
    }
}

/// A field and what became of it: a line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The file that the field is in.
    pub file: String,
    /// The line of its name, from 1.
    pub line: usize,
    /// Its path. Lists are fields as a whole, and so are empty objects.
    pub path: String,
    /// Its value, as JSON in one line.
    pub value: String,
    /// What became of it.
    pub outcome: Outcome,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("file", &self.file)?;
        map.serialize_entry("line", &self.line)?;
        map.serialize_entry("path", &self.path)?;
        map.serialize_entry("value", &self.value)?;
        map.serialize_entry("outcome", &self.outcome.name().replace(' ', "_"))?;
        map.serialize_entry("explanation", &self.outcome.explained())?;
        map.serialize_entry("may_change_the_result", &self.outcome.may_change_the_result())?;
        map.end()
    }
}
