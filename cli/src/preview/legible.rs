//! Batches as text.

use std::sync::Arc;

use firebrick_datasets::{
    Batch, IGNORE, Inputs, LabeledBatch, Labels, Seq2SeqBatch, SequenceBatch, TokenBatch, Tokenizer,
};

use super::cells::{Cell, Kind};

/// What ids are called.
#[derive(Clone, Debug)]
pub struct Names {
    /// Calls token ids by their text.
    pub tokenizer: Arc<Tokenizer>,
    /// Calls labels by their names, where they are classes.
    pub labels: Option<Labels>,
}

/// A row of a batch.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is read and written, by name.
    pub sequences: Vec<(&'static str, Vec<Cell>)>,
    /// What is said about the row as a whole.
    pub note: Option<String>,
}

impl Row {
    /// The columns of its longest name.
    pub(super) fn widest_name(&self) -> usize {
        self.sequences.iter().map(|(name, _)| name.len()).max().unwrap_or(0)
    }
}

/// A batch that can be shown as text.
pub trait Legible: Batch {
    /// `[batch, length]` of each grid of tokens.
    fn shapes(&self) -> Vec<[usize; 2]>;

    /// The tokens of each row, padding left out.
    fn lengths(&self) -> Vec<usize>;

    /// The first rows, at most so many.
    fn rows(&self, names: &Names, most: usize) -> Vec<Row>;

    /// The tokens of all rows, padding included.
    fn positions(&self) -> usize {
        self.shapes().iter().map(|[rows, length]| rows * length).sum()
    }
}

impl Names {
    fn cell(&self, id: i32, is_real: bool, label: Option<String>) -> Cell {
        let special = self.tokenizer.special();
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        let kind = match is_real {
            false => Kind::Padding,
            true if special.all.contains(&id) => Kind::Special,
            true => Kind::Text,
        };
        Cell { token: self.tokenizer.piece(id), label, kind }
    }

    /// A label that is a token.
    fn token(&self, label: i32) -> Option<String> {
        u32::try_from(label).ok().map(|id| self.tokenizer.piece(id))
    }

    /// A label that is a class, or else a token.
    fn label(&self, label: i32) -> Option<String> {
        if label == IGNORE {
            return None;
        }
        match &self.labels {
            Some(labels) => Some(labels.name(label).map_or_else(|| label.to_string(), str::to_owned)),
            None => self.token(label),
        }
    }

    /// The cells of one row of a grid.
    fn cells(
        &self,
        row: usize,
        length: usize,
        ids: &[i32],
        mask: &[bool],
        label: impl Fn(usize) -> Option<String>,
    ) -> Vec<Cell> {
        (row * length..(row + 1) * length).map(|at| self.cell(ids[at], mask[at], label(at))).collect()
    }
}

/// The real tokens of each row.
fn lengths(mask: &[bool], [_, length]: [usize; 2]) -> Vec<usize> {
    mask.chunks(length.max(1)).map(|row| row.iter().filter(|&&is_real| is_real).count()).collect()
}

impl Legible for TokenBatch {
    fn shapes(&self) -> Vec<[usize; 2]> {
        vec![self.shape()]
    }

    fn lengths(&self) -> Vec<usize> {
        lengths(self.host_mask(), self.shape())
    }

    /// A label stands under the token that it is: the model predicts it one column before.
    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let [rows, length] = self.shape();
        let row = |row: usize| {
            let label = |at: usize| match at % length {
                0 => None,
                _ => names.token(self.host_labels()[at]),
            };
            let cells = names.cells(row, length, self.host_ids(), self.host_mask(), label);
            Row { sequences: vec![("", cells)], note: None }
        };
        (0..rows.min(most)).map(row).collect()
    }
}

impl Legible for LabeledBatch {
    fn shapes(&self) -> Vec<[usize; 2]> {
        vec![self.inputs().shape()]
    }

    fn lengths(&self) -> Vec<usize> {
        lengths(self.inputs().host_mask(), self.inputs().shape())
    }

    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let row = |row: usize| {
            let cells = inputs(self.inputs(), names, row, |at| names.label(self.host_labels()[at]));
            Row { sequences: vec![("", cells)], note: None }
        };
        (0..self.samples().min(most)).map(row).collect()
    }
}

fn inputs(inputs: &Inputs, names: &Names, row: usize, label: impl Fn(usize) -> Option<String>) -> Vec<Cell> {
    names.cells(row, inputs.shape()[1], inputs.host_ids(), inputs.host_mask(), label)
}

impl Legible for SequenceBatch {
    fn shapes(&self) -> Vec<[usize; 2]> {
        vec![self.inputs().shape()]
    }

    fn lengths(&self) -> Vec<usize> {
        lengths(self.inputs().host_mask(), self.inputs().shape())
    }

    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let row = |row: usize| Row {
            sequences: vec![("", inputs(self.inputs(), names, row, |_| None))],
            note: Some(describe_label(self, row, names)),
        };
        (0..self.samples().min(most)).map(row).collect()
    }
}

fn describe_label(batch: &SequenceBatch, row: usize, names: &Names) -> String {
    let name = |class: usize| names.label(class as i32).unwrap_or_default();
    if let Some(classes) = batch.host_classes() {
        return name(classes[row] as usize);
    }
    if let Some(numbers) = batch.host_numbers() {
        return numbers[row].to_string();
    }
    let multi_hot = batch.host_multi_hot().unwrap_or_default();
    let classes = multi_hot.len() / batch.samples().max(1);
    let hot = (0..classes).filter(|class| multi_hot[row * classes + class] > 0.0).map(name);
    hot.collect::<Vec<_>>().join(", ")
}

impl Legible for Seq2SeqBatch {
    fn shapes(&self) -> Vec<[usize; 2]> {
        vec![self.source().shape(), self.target_shape()]
    }

    /// Those of source and target together.
    fn lengths(&self) -> Vec<usize> {
        let sources = lengths(self.source().host_mask(), self.source().shape());
        let targets = lengths(self.host_decoder_mask(), self.target_shape());
        sources.into_iter().zip(targets).map(|(source, target)| source + target).collect()
    }

    /// Under what the decoder reads stands what it is to write next.
    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let [_, length] = self.target_shape();
        let row = |row: usize| {
            let label = |at: usize| names.token(self.host_labels()[at]);
            let target = names.cells(row, length, self.host_decoder_ids(), self.host_decoder_mask(), label);
            let source = inputs(self.source(), names, row, |_| None);
            Row { sequences: vec![("source", source), ("decoder", target)], note: None }
        };
        (0..self.samples().min(most)).map(row).collect()
    }
}
