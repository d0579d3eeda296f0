//! Errors of metrics.

use std::fmt;

use thiserror::Error;

/// An error in adding to, merging or creating a metric.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum MetricError {
    /// The numbers of references and predictions differ.
    #[error(
        "expected as many references as predictions, found {predictions} predictions and {references} references: \
         add each prediction together with its reference"
    )]
    Pairs {
        /// The number of predictions in the call.
        predictions: usize,
        /// The number of references in the call.
        references: usize,
    },
    /// The numbers of predicted and reference tags of a sequence differ.
    #[error(
        "sequence {sequence}: expected as many predicted tags as reference tags, found {predicted} predicted and \
         {reference} reference tags: give each word one tag in both, and cut both at the same word"
    )]
    SequenceLength {
        /// The index of the sequence in the call, from 0.
        sequence: usize,
        /// The number of its predicted tags.
        predicted: usize,
        /// The number of its reference tags.
        reference: usize,
    },
    /// A tag is not valid in its scheme.
    #[error("{side} of sequence {sequence}: {fault}")]
    Tag {
        /// Whether the tag is from a prediction or a reference.
        side: Side,
        /// The index of the sequence in the call, from 0.
        sequence: usize,
        /// The tag and its position.
        fault: TagFault,
    },
    /// An entity has a type that the metric does not count.
    #[error(
        "{side} of sequence {sequence}, tag {position}: expected an entity of type {known}, found type \
         {found:?}: list all types of the predictions and the references when creating the metric"
    )]
    EntityType {
        /// Whether the entity is from a prediction or a reference.
        side: Side,
        /// The index of the sequence in the call, from 0.
        sequence: usize,
        /// The index of the entity's first tag, from 0.
        position: usize,
        /// Its type.
        found: String,
        /// The types that the metric counts.
        known: String,
    },
    /// A setting has an unknown name.
    #[error("expected {expected} as the {setting}, found {found:?}: use one of these names")]
    Name {
        /// The setting.
        setting: &'static str,
        /// The valid names.
        expected: &'static str,
        /// The name that was given.
        found: String,
    },
    /// A setting has an invalid value.
    #[error("{setting}: expected {expected}, found {found}: choose another value")]
    Value {
        /// The setting.
        setting: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The value that was given.
        found: f64,
    },
    /// The number of a class is too large.
    #[error(
        "{side} {position}: expected a class from 0 to below {classes}, found {found}: leave out ignored items, and \
         list all classes when creating the metric"
    )]
    Class {
        /// Whether the class is from a prediction or a reference.
        side: Side,
        /// The index of the item in the call, from 0.
        position: usize,
        /// Its class.
        found: usize,
        /// The number of classes.
        classes: usize,
    },
    /// A prediction has no reference.
    #[error(
        "prediction {segment}: expected at least one reference, found none: leave out predictions without a reference"
    )]
    NoReference {
        /// The index of the prediction in the call, from 0.
        segment: usize,
    },
    /// There are more correct items than items.
    #[error(
        "expected at most {items} correct items of {items}, found {correct}: count both over the same mask"
    )]
    Correct {
        /// The number of correct items.
        correct: u64,
        /// The number of all items.
        items: u64,
    },
    /// Two metrics have different settings.
    #[error(
        "{metric}: expected two metrics of the same settings, found different ones: use the same settings on all \
         ranks"
    )]
    Settings {
        /// The metric.
        metric: &'static str,
    },
    /// Some numbers are not the counts of a metric.
    #[error(
        "counts of {metric}: expected {expected}, found {found}: exchange them in f64, between metrics of the same \
         settings"
    )]
    Counts {
        /// The metric.
        metric: &'static str,
        /// What the counts must be.
        expected: String,
        /// The counts that were given.
        found: String,
    },
}

/// Predictions or references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The output of the model.
    Prediction,
    /// The data's target.
    Reference,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Self::Prediction => "prediction",
            Self::Reference => "reference",
        })
    }
}

/// A tag that is not valid in its scheme.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "tag {position}: expected `O`, or `B-` or `I-` and a type, found {found:?}: convert the tags to IOB2"
)]
pub struct TagFault {
    /// The index of the tag in the sequence, from 0.
    pub position: usize,
    /// The tag, cut to 40 characters.
    pub found: String,
}
