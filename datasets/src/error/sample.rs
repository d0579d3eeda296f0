//! The errors of samples and batches.

use std::ops::Range;

use crate::counted;

/// An error of samples, their order or their batches.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// A text has too few tokens to train on.
    #[error("the text has {} but needs at least {needed}; provide a longer text", counted(*tokens, "token"))]
    TooShort {
        /// The number of tokens in the text.
        tokens: usize,
        /// The number of tokens required.
        needed: usize,
    },

    /// The validation fraction is out of range.
    #[error("the validation fraction is {fraction}; it must be at least 0 and below 1")]
    SplitFraction {
        /// The requested fraction.
        fraction: f64,
    },

    /// The numbers of rows of ids and of labels differ.
    #[error("there are {} of ids but {} of labels; provide labels for each row", counted(*ids, "row"), counted(*labels, "row"))]
    LabelRows {
        /// The rows of ids.
        ids: usize,
        /// The rows of labels.
        labels: usize,
    },

    /// The numbers of ids and of labels in a row differ.
    #[error("row {row} has {} but {}; provide one label for each id", counted(*ids, "id"), counted(*labels, "label"))]
    LabelLength {
        /// The row, from 0.
        row: usize,
        /// Its number of ids.
        ids: usize,
        /// Its number of labels.
        labels: usize,
    },

    /// A row has more tokens than allowed.
    #[error(
        "row {row} has {}, but rows have room for {length}; cut texts with the encoder's `max_length`, or raise the \
         length",
        counted(*tokens, "token")
    )]
    RowTooLong {
        /// The row, from 0.
        row: usize,
        /// The number of tokens in the row.
        tokens: usize,
        /// The maximum number of tokens in a row.
        length: usize,
    },

    /// A class name occurs twice.
    #[error("the label `{label}` occurs twice; list each name once")]
    DuplicateLabel {
        /// The name.
        label: String,
    },

    /// Records have no labels.
    #[error(
        "the field `{field}` has no label in {}; check that the data is not empty, and which field holds the labels",
        counted(*records, "record")
    )]
    NoLabels {
        /// The field.
        field: String,
        /// The number of records.
        records: u64,
    },

    /// Most labels occur only once.
    #[error(
        "{once} of the {labels} labels in `{field}` occur only once, as ids and texts do, and a classifier learns \
         nothing of such labels; name the field that holds the labels, or list the `names` of all labels in the task if \
         these are the labels"
    )]
    UniqueLabels {
        /// The field.
        field: String,
        /// The number of labels so far.
        labels: usize,
        /// The number of labels that occur once.
        once: usize,
    },

    /// A label that begins an entity has no matching label that continues it.
    #[error("there is a label `{begins}` but no `{continues}`; add it to the labels")]
    NoInsideLabel {
        /// The label that begins an entity.
        begins: String,
        /// The missing label.
        continues: String,
    },

    /// A sample has a different kind of label than its collator makes.
    #[error(
        "sample {index} has a different kind of label from the batch; collate samples with the \
         collator that made them"
    )]
    OtherLabel {
        /// The sample's index.
        index: u64,
    },

    /// A setting of a loss is out of range.
    #[error("{setting} must be {expected}, found {found}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its range.
        expected: &'static str,
        /// What was found.
        found: String,
    },

    /// The reference model has not been asked about a sample.
    #[error(
        "the loss compares the sample at position {position} of epoch {epoch} with a reference model, which was not \
         asked about it before the first update; resume the run from its last checkpoint, which asks about the samples \
         to come"
    )]
    NotAsked {
        /// The epoch.
        epoch: u64,
        /// The position of the sample in the epoch's order.
        position: usize,
    },

    /// An epoch does not have the requested positions.
    #[error(
        "epoch {epoch} has {}, but positions {positions:?} were requested; continue only with the data and settings \
         that the run started with",
        counted(*samples, "sample")
    )]
    OutOfRange {
        /// The epoch.
        epoch: u64,
        /// The requested positions.
        positions: Range<usize>,
        /// The number of samples in the epoch.
        samples: usize,
    },

    /// A sample has more tokens than a row or a batch can hold.
    #[error(
        "the sample at position {position} of epoch {epoch} has {tokens} tokens, more than the limit of {most}; cut \
         samples at a maximum length, or raise the limit"
    )]
    SampleTooLong {
        /// The epoch.
        epoch: u64,
        /// The position of the sample in the epoch's order.
        position: usize,
        /// The number of tokens, including padding.
        tokens: usize,
        /// The maximum number of tokens.
        most: usize,
    },

    /// Batches are cut by tokens, but the data set does not count its tokens.
    #[error(
        "this data set does not report how many tokens its samples have; size batches by samples, or \
         implement `Batches::padded_tokens`"
    )]
    NoTokenCounts,

    /// The data changed since it was opened.
    #[error(
        "part {part} of the data (counted from 0) changed: it had {counted} samples when it was opened, and differs \
         from sample {read} on; do not change the files while a run reads them"
    )]
    Changed {
        /// The part.
        part: usize,
        /// The number of samples when it was opened.
        counted: usize,
        /// The first sample that differs.
        read: usize,
    },

    /// A rank is not below the number of ranks.
    #[error("rank {rank} is not among {}, numbered from 0", counted(*ranks, "rank"))]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },

    /// The weight of a corpus in a mix is invalid.
    #[error(
        "the weight of corpus {corpus} (counted from 0) is {weight}; it must be a positive number of at least \
         {least}, a ten-thousandth of the sum of all weights"
    )]
    Weight {
        /// The corpus, from 0.
        corpus: usize,
        /// Its weight.
        weight: f64,
        /// The smallest valid weight.
        least: f64,
    },

    /// A corpus in a mix has no samples.
    #[error("corpus {corpus} (counted from 0) has no samples; provide data for it, or leave it out")]
    EmptyCorpus {
        /// The corpus, from 0.
        corpus: usize,
    },

    /// The data contains no samples.
    #[error(
        "{place} has no samples (skipped {}, left out {} with nothing to learn): its records are empty, too short, or \
         have no supervised token; check the records and the maximum length",
        counted(*skipped, "malformed record"),
        counted(*left_out, "record")
    )]
    NoSamples {
        /// Where the data is, and its purpose.
        place: String,
        /// The number of malformed records that were skipped.
        skipped: u64,
        /// The number of records that yielded no sample.
        left_out: u64,
    },

    /// No sample has an item that counts in the loss.
    #[error(
        "{} has anything to predict: nothing is masked, or the maximum length cuts off what counts; check the records and \
         the maximum length",
        match samples {
            0 => format!("no record of {place}"),
            samples => format!("none of {} of {place}", counted(*samples, "sample")),
        }
    )]
    NoItems {
        /// What the samples are, and where they come from.
        place: String,
        /// The number of samples; 0 if all records were left out.
        samples: usize,
    },

    /// An epoch has no samples, so training could never finish it.
    #[error("epoch {epoch} has no samples; use a data set with at least one")]
    EmptyEpoch {
        /// The epoch.
        epoch: u64,
    },

    /// A data set returned an error for its samples.
    #[error("the data set cannot read the samples {indices:?}: {source}")]
    Unreadable {
        /// The indices of the samples in the data set.
        indices: Vec<usize>,
        /// The error of the data set.
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The computation of a batch panicked.
    #[error(
        "computing the batch at positions {positions:?} of epoch {epoch} panicked: {message}; \
         this is a bug in the data set"
    )]
    BatchPanicked {
        /// The epoch of the batch.
        epoch: u64,
        /// The positions of its samples.
        positions: Range<usize>,
        /// The message of the panic.
        message: String,
    },
}
