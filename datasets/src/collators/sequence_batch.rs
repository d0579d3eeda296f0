//! Encoder inputs with a target for each row.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Inputs;
use crate::Batch;

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
