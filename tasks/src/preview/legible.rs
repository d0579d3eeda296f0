//! Batches as text.

use std::sync::Arc;

use firebrick_datasets::collators::{
    Inputs, LabeledBatch, Labels, PreferenceBatch, Seq2SeqBatch, SequenceBatch,
};
use firebrick_datasets::{Batch, IGNORE, TokenBatch, Tokenizer};

use super::cells::{Cell, TokenKind};

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
    /// The grids of tokens, each with a row per sample.
    fn grids(&self) -> Vec<Grid<'_>>;

    /// The label of a token of a grid, as text; `None` if it does not count in the loss.
    fn label(&self, names: &Names, grid: usize, at: usize) -> Option<String>;

    /// What is said about a row as a whole.
    fn note(&self, _names: &Names, _row: usize) -> Option<String> {
        None
    }

    /// The tokens of each row, padding left out.
    fn lengths(&self) -> Vec<usize> {
        let mut lengths = vec![0; self.samples()];
        for Grid { mask, shape: [_, length], .. } in self.grids() {
            for (sum, row) in lengths.iter_mut().zip(mask.chunks(length.max(1))) {
                *sum += row.iter().filter(|&&is_real| is_real).count();
            }
        }
        lengths
    }

    /// The first rows, at most so many.
    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let grids = self.grids();
        let cells = |(number, grid): (usize, &Grid<'_>), row: usize| {
            let length = grid.shape[1];
            let cell = |at| names.cell(grid.ids[at], grid.mask[at], self.label(names, number, at));
            (grid.name, (row * length..(row + 1) * length).map(cell).collect())
        };
        let row = |row| Row {
            sequences: grids.iter().enumerate().map(|grid| cells(grid, row)).collect(),
            note: self.note(names, row),
        };
        (0..self.samples().min(most)).map(row).collect()
    }

    /// The tokens of all rows, padding included.
    fn positions(&self) -> usize {
        self.grids().iter().map(|grid| grid.mask.len()).sum()
    }
}

/// Tokens in rows of one length.
#[derive(Clone, Copy, Debug)]
pub struct Grid<'a> {
    /// What the tokens are, if a batch has several grids.
    pub name: &'static str,
    /// The ids, row by row.
    pub ids: &'a [i32],
    /// Whether each token is real, and not padding.
    pub mask: &'a [bool],
    /// `[batch, length]`.
    pub shape: [usize; 2],
}

impl<'a> Grid<'a> {
    fn of(name: &'static str, inputs: &'a Inputs) -> Self {
        Self { name, ids: inputs.host_ids(), mask: inputs.host_mask(), shape: inputs.shape() }
    }
}

impl Names {
    fn cell(&self, id: i32, is_real: bool, label: Option<String>) -> Cell {
        let special = self.tokenizer.special();
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        let kind = match is_real {
            false => TokenKind::Padding,
            true if special.all.contains(&id) => TokenKind::Special,
            true => TokenKind::Text,
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
}

impl Legible for TokenBatch {
    fn grids(&self) -> Vec<Grid<'_>> {
        vec![Grid { name: "", ids: self.host_ids(), mask: self.host_mask(), shape: self.shape() }]
    }

    /// A label stands under the token that it is: the model predicts it one column before.
    fn label(&self, names: &Names, _: usize, at: usize) -> Option<String> {
        match at % self.shape()[1] {
            0 => None,
            _ => names.token(self.host_labels()[at]),
        }
    }
}

impl Legible for LabeledBatch {
    fn grids(&self) -> Vec<Grid<'_>> {
        vec![Grid::of("", self.inputs())]
    }

    fn label(&self, names: &Names, _: usize, at: usize) -> Option<String> {
        names.label(self.host_labels()[at])
    }
}

impl Legible for SequenceBatch {
    fn grids(&self) -> Vec<Grid<'_>> {
        vec![Grid::of("", self.inputs())]
    }

    fn label(&self, _: &Names, _: usize, _: usize) -> Option<String> {
        None
    }

    /// The row's class, number, or classes.
    fn note(&self, names: &Names, row: usize) -> Option<String> {
        let name = |class: usize| names.label(class as i32).unwrap_or_default();
        if let Some(classes) = self.host_classes() {
            return Some(name(classes[row] as usize));
        }
        if let Some(numbers) = self.host_numbers() {
            return Some(numbers[row].to_string());
        }
        let multi_hot = self.host_multi_hot().unwrap_or_default();
        let classes = multi_hot.len() / self.samples().max(1);
        let hot = (0..classes).filter(|class| multi_hot[row * classes + class] > 0.0).map(name);
        Some(hot.collect::<Vec<_>>().join(", "))
    }
}

impl Legible for Seq2SeqBatch {
    fn grids(&self) -> Vec<Grid<'_>> {
        let (ids, mask) = (self.host_decoder_ids(), self.host_decoder_mask());
        vec![
            Grid::of("source", self.source()),
            Grid { name: "decoder", ids, mask, shape: self.target_shape() },
        ]
    }

    fn label(&self, names: &Names, grid: usize, at: usize) -> Option<String> {
        if grid == 1 { names.token(self.host_labels()[at]) } else { None }
    }
}

/// The rows of a pair stand one after the other, so a row of the grid is both.
impl Legible for PreferenceBatch {
    fn grids(&self) -> Vec<Grid<'_>> {
        let (rows, [_, length]) = (self.rows(), self.rows().shape());
        let shape = [self.samples(), 2 * length];
        vec![Grid { name: "", ids: rows.host_ids(), mask: rows.host_mask(), shape }]
    }

    fn label(&self, names: &Names, _: usize, at: usize) -> Option<String> {
        self.rows().label(names, 0, at)
    }

    fn rows(&self, names: &Names, most: usize) -> Vec<Row> {
        let rows = Legible::rows(Self::rows(self), names, most.saturating_mul(2));
        let named = |rows: &[Row]| Row {
            sequences: ["chosen", "rejected"]
                .into_iter()
                .zip(rows)
                .flat_map(|(name, row)| row.sequences.iter().map(move |(_, cells)| (name, cells.clone())))
                .collect(),
            note: None,
        };
        rows.chunks(2).map(named).collect()
    }
}
