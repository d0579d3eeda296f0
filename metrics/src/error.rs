//! What can go wrong with metrics.

use std::fmt;

use thiserror::Error;

/// Something that cannot be scored.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum MetricError {
    /// There are not as many references as predictions.
    #[error(
        "expected as many references as predictions, found {predictions} predictions and {references} references: \
         add each prediction together with its reference"
    )]
    Pairs {
        /// The predictions of the call.
        predictions: usize,
        /// The references of the call.
        references: usize,
    },
    /// A sequence has not as many predicted tags as reference tags.
    #[error(
        "sequence {sequence}: expected as many predicted tags as reference tags, found {predicted} predicted and \
         {reference} reference tags: give each word one tag in both, and cut both at the same word"
    )]
    SequenceLength {
        /// Which sequence of the call, from 0.
        sequence: usize,
        /// Its predicted tags.
        predicted: usize,
        /// Its reference tags.
        reference: usize,
    },
    /// A tag cannot be one of its scheme.
    #[error("{side} of sequence {sequence}: {fault}")]
    Tag {
        /// Whether it was predicted.
        side: Side,
        /// Which sequence of the call, from 0.
        sequence: usize,
        /// The tag, and what is wrong with it.
        fault: TagFault,
    },
    /// An entity has a type that the metric was not told of.
    #[error(
        "{side} of sequence {sequence}, tag {position}: expected an entity of type {known}, found type \
         {found:?}: name all types of the predictions and the references when making the metric"
    )]
    EntityType {
        /// Whether it was predicted.
        side: Side,
        /// Which sequence of the call, from 0.
        sequence: usize,
        /// The entity's first tag, from 0.
        position: usize,
        /// Its type.
        found: String,
        /// The types that are known.
        known: String,
    },
    /// A setting has a name that there is not.
    #[error("expected {expected} as the {setting}, found {found:?}: use one of these names")]
    Name {
        /// The setting.
        setting: &'static str,
        /// The names that there are.
        expected: &'static str,
        /// What was named.
        found: String,
    },
    /// A setting has a value that it cannot have.
    #[error("{setting}: expected {expected}, found {found}: choose another value")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What it can be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// A class has a number that is too large.
    #[error(
        "{side} {position}: expected a class from 0 to below {classes}, found {found}: leave out ignored items, and \
         name all classes when making the metric"
    )]
    Class {
        /// Whether it was predicted.
        side: Side,
        /// Which item of the call, from 0.
        position: usize,
        /// Its class.
        found: usize,
        /// How many classes there are.
        classes: usize,
    },
    /// A prediction has nothing to be compared with.
    #[error(
        "prediction {segment}: expected at least one reference, found none: leave out what has no reference"
    )]
    NoReference {
        /// Which prediction of the call, from 0.
        segment: usize,
    },
    /// More items are right than there are items.
    #[error(
        "expected at most {items} correct items of {items}, found {correct}: count both over the same mask"
    )]
    Correct {
        /// The items that are right.
        correct: u64,
        /// All items.
        items: u64,
    },
    /// Two metrics count different things.
    #[error(
        "{metric}: expected two metrics of the same settings, found different ones: make them alike on all ranks"
    )]
    Settings {
        /// The metric.
        metric: &'static str,
    },
    /// Numbers are not the counts of a metric.
    #[error(
        "counts of {metric}: expected {expected}, found {found}: exchange them in f64, between metrics of the same \
         settings"
    )]
    Counts {
        /// The metric.
        metric: &'static str,
        /// What the counts must be.
        expected: String,
        /// What was given.
        found: String,
    },
}

/// Predictions or references.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// What the model says.
    Prediction,
    /// What the data say.
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

/// A tag that cannot be one of its scheme.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "tag {position}: expected `O`, or `B-` or `I-` and a type, found {found:?}: convert the tags to IOB2"
)]
pub struct TagFault {
    /// Which tag of the sequence, from 0.
    pub position: usize,
    /// The tag, cut to 40 characters.
    pub found: String,
}
