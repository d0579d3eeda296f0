//! The outcome of a field.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

/// The outcome of a field of the imported files.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The field is in the run file, in this form.
    Taken(String),
    /// The field has no effect, for this reason.
    NoEffect(String),
    /// The field is not supported.
    NotSupported {
        /// What to do, or what the import does, instead.
        instead: String,
        /// Whether the trained model differs. If not, only memory, speed or files differ.
        changes_the_result: bool,
    },
    /// The files do not determine the value. The run file has this suggestion, which you should check.
    FillIn(String),
    /// DeepSpeed and Transformers have no known field of this name; holds the nearest known name.
    Unknown(Option<String>),
}

impl Outcome {
    pub(super) fn taken(to: impl Into<String>) -> Self {
        Self::Taken(to.into())
    }

    pub(super) fn no_effect(why: impl Into<String>) -> Self {
        Self::NoEffect(why.into())
    }

    /// An unsupported field that changes the trained model.
    pub(super) fn refused(instead: impl Into<String>) -> Self {
        Self::NotSupported { instead: instead.into(), changes_the_result: true }
    }

    /// An unsupported field that does not change the trained model.
    pub(super) fn omitted(instead: impl Into<String>) -> Self {
        Self::NotSupported { instead: instead.into(), changes_the_result: false }
    }

    /// Whether a run without this field may produce a different model. For an unknown field, this is uncertain, so the
    /// answer is yes.
    pub fn may_change_the_result(&self) -> bool {
        matches!(self, Self::NotSupported { changes_the_result: true, .. } | Self::Unknown(_))
    }

    /// Returns the outcome in one or two words.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Taken(_) => "taken",
            Self::NoEffect(_) => "no effect",
            Self::NotSupported { .. } => "not supported",
            Self::FillIn(_) => "fill in",
            Self::Unknown(_) => "unknown",
        }
    }

    /// Returns the form, the reason or the alternative.
    pub(super) fn explained(&self) -> String {
        match self {
            Self::Taken(text) | Self::NoEffect(text) | Self::FillIn(text) => text.clone(),
            Self::NotSupported { instead, .. } => format!("instead: {instead}"),
            Self::Unknown(Some(nearest)) => format!("did you mean `{nearest}`?"),
            Self::Unknown(None) => "no field of this name is known: take it out".into(),
        }
    }
}

/// A field and its outcome: a line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The file that the field is in.
    pub file: String,
    /// The line of the field's name, counted from 1.
    pub line: usize,
    /// The path of the field. A list counts as a single field, and so does an empty object.
    pub path: String,
    /// The value, as JSON in one line.
    pub value: String,
    /// The outcome.
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
