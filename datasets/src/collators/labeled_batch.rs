//! Encoder inputs with a label for each token, or a target for each row.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{Inputs, Tokens};
use crate::{Batch, DataError, IGNORE, Padding, SampleError};

/// Encoder inputs with a label for each token, as made by [`TokenClassification`](super::TokenClassification) and
/// [`MaskedLm`](super::MaskedLm).
///
/// Inputs and labels are `[batch, length]`. A label belongs to the token in its own column; it is [`IGNORE`] for
/// padding and for tokens that do not count in the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabeledBatch {
    inputs: Inputs,
    labels: Vec<i32>,
    words: Vec<i32>,
    first: Vec<bool>,
}

/// One row before padding.
pub(crate) struct LabeledRow<'a> {
    pub(crate) tokens: &'a Tokens,
    /// A label for each token.
    pub(crate) labels: &'a [i32],
    /// The word that each token scores.
    pub(crate) words: &'a [Option<u32>],
    /// Whether the row is the first of its record.
    pub(crate) first: bool,
}

impl LabeledBatch {
    /// Pads rows. Each row has one label for each token, and each labelled token is scored by itself.
    pub(crate) fn new(rows: &[(&Tokens, &[i32])], padding: &Padding, pad_id: u32) -> Result<Self, DataError> {
        let words: Vec<_> = rows.iter().map(|(_, labels)| each_label(labels)).collect();
        let rows: Vec<_> = rows
            .iter()
            .zip(&words)
            .map(|(&(tokens, labels), words)| LabeledRow { tokens, labels, words, first: true })
            .collect();
        Self::of_words(&rows, padding, pad_id)
    }

    /// Pads rows of words.
    pub(crate) fn of_words(
        rows: &[LabeledRow<'_>],
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        let tokens: Vec<_> = rows.iter().map(|row| row.tokens).collect();
        let inputs = Inputs::new(&tokens, padding, pad_id)?;
        let mut all = Vec::with_capacity(inputs.host_ids().len());
        let mut of_words = Vec::with_capacity(inputs.host_ids().len());
        for (row, LabeledRow { tokens, labels, words, .. }) in rows.iter().enumerate() {
            if tokens.len() != labels.len() {
                return Err(SampleError::LabelLength { row, ids: tokens.len(), labels: labels.len() }.into());
            }
            padding.push(&mut all, labels.iter().copied(), inputs.shape()[1], IGNORE);
            let mut words = words.iter().map(|word| word.map_or(IGNORE, |word| word as i32));
            let words: Vec<_> = labels.iter().map(|_| words.next().unwrap_or(IGNORE)).collect();
            padding.push(&mut of_words, words.into_iter(), inputs.shape()[1], IGNORE);
        }
        let first = rows.iter().map(|row| row.first).collect();
        Ok(Self { inputs, labels: all, words: of_words, first })
    }

    /// Splits the batch into batches of at most `rows` rows; 0 counts as 1.
    pub fn parts(&self, rows: usize) -> Vec<Self> {
        let [samples, length] = self.inputs.shape();
        let rows = rows.max(1);
        if samples <= rows {
            return vec![self.clone()];
        }
        let part = |start: usize| {
            let rows = start..start.saturating_add(rows).min(samples);
            let tokens = rows.start * length..rows.end * length;
            Self {
                inputs: self.inputs.rows(rows.clone()),
                labels: self.labels[tokens.clone()].to_vec(),
                words: self.words[tokens].to_vec(),
                first: self.first[rows].to_vec(),
            }
        };
        (0..samples).step_by(rows).map(part).collect()
    }

    /// Returns the model's inputs.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the labels, row by row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns the number of the word in its record that each token scores, row by row, or [`IGNORE`]. Of the tokens of a
    /// word, in all rows of a record, only the first does; of labels without words, each.
    pub fn host_words(&self) -> &[i32] {
        &self.words
    }

    /// Returns whether each row is the first of its record. The rows of a record follow each other.
    pub fn host_first(&self) -> &[bool] {
        &self.first
    }

    /// Returns the labels as an integer tensor `[batch, length]`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), self.inputs.shape()), device)
    }
}

impl Batch for LabeledBatch {
    fn items(&self) -> usize {
        self.labels.iter().filter(|&&label| label != IGNORE).count()
    }

    fn samples(&self) -> usize {
        self.inputs.shape()[0]
    }

    fn records(&self) -> usize {
        self.first.iter().filter(|&&first| first).count()
    }

    fn tokens(&self) -> usize {
        self.inputs.tokens()
    }
}

/// Returns a number for each labelled token, as if it were a word.
pub(super) fn each_label(labels: &[i32]) -> Vec<Option<u32>> {
    (0..).zip(labels).map(|(at, &label)| (label != IGNORE).then_some(at)).collect()
}

/// Encoder inputs with a target for each row.
///
/// The inputs are `[batch, length]`, see [`Inputs`]. A batch has one kind of target, given by the collator's
/// [`Target`](super::Target).
///
/// Each row counts as one item; with several classes per row, each class of each row counts, since each is a separate
/// decision.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceBatch {
    pub(super) inputs: Inputs,
    pub(super) targets: Targets,
    pub(super) first: Vec<bool>,
}

/// The targets of all rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Targets {
    Class(Vec<i32>),
    Classes { flags: Vec<f32>, classes: usize },
    Numbers(Vec<f32>),
}

impl SequenceBatch {
    /// Returns the model's inputs.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns whether each row is the first of its record, and so the one that is scored.
    pub fn host_first(&self) -> &[bool] {
        &self.first
    }

    /// Splits the batch into batches of at most `rows` rows; 0 counts as 1.
    pub fn parts(&self, rows: usize) -> Vec<Self> {
        let (samples, rows) = (self.samples(), rows.max(1));
        if samples <= rows {
            return vec![self.clone()];
        }
        let part = |start: usize| {
            let rows = start..start.saturating_add(rows).min(samples);
            let targets = match &self.targets {
                Targets::Class(all) => Targets::Class(all[rows.clone()].to_vec()),
                Targets::Numbers(all) => Targets::Numbers(all[rows.clone()].to_vec()),
                &Targets::Classes { ref flags, classes } => {
                    let flags = flags[rows.start * classes..rows.end * classes].to_vec();
                    Targets::Classes { flags, classes }
                }
            };
            Self { inputs: self.inputs.rows(rows.clone()), targets, first: self.first[rows].to_vec() }
        };
        (0..samples).step_by(rows).map(part).collect()
    }

    /// Returns the class of each row.
    pub fn host_classes(&self) -> Option<&[i32]> {
        if let Targets::Class(classes) = &self.targets { Some(classes) } else { None }
    }

    /// Returns 1 for each row and class if the row has the class, else 0.
    pub fn host_multi_hot(&self) -> Option<&[f32]> {
        if let Targets::Classes { flags, .. } = &self.targets { Some(flags) } else { None }
    }

    /// Returns the number of each row.
    pub fn host_numbers(&self) -> Option<&[f32]> {
        if let Targets::Numbers(numbers) = &self.targets { Some(numbers) } else { None }
    }

    /// Returns the class of each row as an integer tensor `[batch]`.
    pub fn classes(&self, device: &Device) -> Option<Tensor<1, Int>> {
        let classes = self.host_classes()?.to_vec();
        let shape = [classes.len()];
        Some(Tensor::from_data(TensorData::new(classes, shape), device))
    }

    /// Returns 1.0 for each row and class if the row has the class, else 0.0, as a float tensor `[batch, classes]`.
    pub fn multi_hot(&self, device: &Device) -> Option<Tensor<2>> {
        let Targets::Classes { flags, classes } = &self.targets else { return None };
        let shape = [self.samples(), *classes];
        Some(Tensor::from_data(TensorData::new(flags.clone(), shape), device))
    }

    /// Returns the number of each row as a float tensor `[batch]`.
    pub fn numbers(&self, device: &Device) -> Option<Tensor<1>> {
        let numbers = self.host_numbers()?.to_vec();
        let shape = [numbers.len()];
        Some(Tensor::from_data(TensorData::new(numbers, shape), device))
    }
}

impl Batch for SequenceBatch {
    fn items(&self) -> usize {
        match &self.targets {
            Targets::Class(classes) => classes.len(),
            Targets::Classes { flags, .. } => flags.len(),
            Targets::Numbers(numbers) => numbers.len(),
        }
    }

    fn samples(&self) -> usize {
        self.inputs.shape()[0]
    }

    fn records(&self) -> usize {
        self.first.iter().filter(|&&first| first).count()
    }

    fn tokens(&self) -> usize {
        self.inputs.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn counts() {
        let short = Tokens { ids: vec![5], type_ids: vec![0] };
        let long = Tokens { ids: vec![6, 7], type_ids: vec![0, 0] };
        let rows: [(&Tokens, &[i32]); 2] = [(&short, &[1]), (&long, &[IGNORE, 2])];
        let batch = LabeledBatch::new(&rows, &Padding::default(), 0).unwrap();
        assert_eq!(batch.host_labels(), [1, IGNORE, IGNORE, 2]);
        assert_eq!((batch.items(), batch.samples(), batch.tokens()), (2, 2, 3));
        assert_eq!(batch.labels(&testing::device()).dims(), [2, 2]);

        // Each label is scored by itself, and each row is a record.
        assert_eq!(batch.host_words(), [0, IGNORE, IGNORE, 1]);
        assert_eq!((batch.host_first(), batch.records()), (&[true, true][..], 2));
        let parts = batch.parts(1);
        let labels: Vec<_> = parts.iter().map(|part| part.host_labels().to_vec()).collect();
        assert_eq!(labels, [[1, IGNORE], [IGNORE, 2]]);
        assert_eq!(parts[1].inputs().host_ids(), [6, 7]);
        assert_eq!(batch.parts(2), std::slice::from_ref(&batch));

        let error = LabeledBatch::new(&[(&long, &[1])], &Padding::default(), 0).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::LabelLength { row: 0, ids: 2, labels: 1 })));
    }
}
