//! What a label is.

use serde::{Deserialize, Serialize};

/// The label of a text, which the logits of a classifier score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelKind {
    /// One class.
    #[default]
    Class,
    /// Any number of classes.
    Classes,
    /// A number.
    Number,
}
