//! The numbers of each sample, and their file.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::TrainError;
use crate::saving::replace;

/// The file of the answers in the output folder of a run.
pub const ANSWERS: &str = "reference.safetensors";

/// The [keys](firebrick_datasets::Compared::keys) of samples in the file, U8 `[samples, 16]`.
const SAMPLES: &str = "samples";
/// Their numbers, F32 `[samples, each]`.
const NUMBERS: &str = "numbers";

/// The numbers that reference models computed for each sample, by its [key](firebrick_datasets::Compared::keys): the same
/// count for each sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    at: HashMap<u128, usize>,
    samples: Vec<u128>,
    numbers: Vec<f32>,
}

impl Answers {
    /// The numbers of each sample.
    fn each(&self) -> usize {
        self.numbers.len() / self.samples.len().max(1)
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// Returns whether a sample is known.
    pub fn knows(&self, sample: u128) -> bool {
        self.at.contains_key(&sample)
    }

    /// Returns the numbers of a sample, if it is known.
    pub fn of(&self, sample: u128) -> Option<&[f32]> {
        let (at, each) = (*self.at.get(&sample)?, self.each());
        self.numbers.get(at * each..(at + 1) * each)
    }

    /// Adds samples, as many numbers for each. Known ones stay as they are.
    pub(super) fn add(&mut self, samples: &[u128], numbers: &[f32]) {
        let each = numbers.len() / samples.len().max(1);
        for (sample, numbers) in samples.iter().zip(numbers.chunks(each.max(1))) {
            if !self.knows(*sample) {
                self.at.insert(*sample, self.samples.len());
                self.samples.push(*sample);
                self.numbers.extend(numbers);
            }
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.add(&other.samples, &other.numbers);
    }

    /// Writes the answers as safetensors.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let samples: Vec<u8> = self.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let numbers: Vec<u8> = self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let views = [
            (SAMPLES, TensorView::new(Dtype::U8, vec![self.len(), 16], &samples)),
            (NUMBERS, TensorView::new(Dtype::F32, vec![self.len(), self.each()], &numbers)),
        ];
        let views = views.map(|(name, view)| (name, view.expect("the shapes are those of the bytes")));
        serialize(views, None).expect("the tensors have names of their own")
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has written.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
        let tensor = |name: &str, dtype| {
            let tensor = file.tensor(name).map_err(|error| error.to_string())?;
            match (tensor.dtype() == dtype, tensor.shape()) {
                (true, &[rows, _]) => Ok((rows, tensor.data())),
                _ => Err(format!("`{name}` has another dtype or shape than in files of this version")),
            }
        };
        let ((of, samples), (rows, numbers)) = (tensor(SAMPLES, Dtype::U8)?, tensor(NUMBERS, Dtype::F32)?);
        let (samples, rest) = samples.as_chunks();
        if of != rows || samples.len() != rows || !rest.is_empty() {
            return Err(format!("`{SAMPLES}` and `{NUMBERS}` are of different samples"));
        }
        let samples: Vec<u128> = samples.iter().map(|bytes| u128::from_le_bytes(*bytes)).collect();
        let numbers: Vec<f32> =
            numbers.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let mut answers = Self::default();
        answers.add(&samples, &numbers);
        Ok(answers)
    }

    /// Reads the file in a folder; without one, there are no answers.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn read(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join(ANSWERS);
        match fs::read(&path) {
            Ok(bytes) => {
                let damaged = |reason| {
                    let remedy =
                        "remove it, and it is computed again from the weights that training starts from";
                    TrainError::file(&path, "reading", format!("{reason}; {remedy}"))
                };
                Self::from_bytes(&bytes).map_err(damaged)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(TrainError::file(&path, "reading", error)),
        }
    }

    /// Writes the file into a folder.
    pub(crate) fn save(&self, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join(ANSWERS);
        replace(&path, |staged| {
            fs::write(staged, self.to_bytes()).map_err(|error| TrainError::file(&path, "writing", error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_back_from_their_file_and_known_ones_stay() {
        let mut answers = Answers::default();
        answers.add(&[7, 1 << 100], &[1.0, 2.0, 3.0, f32::NEG_INFINITY]);
        answers.add(&[9, 7], &[5.0, 6.0, 0.0, 0.0]);
        assert_eq!(answers.of(7), Some(&[1.0, 2.0][..]));
        assert_eq!(answers.of(1 << 100), Some(&[3.0, f32::NEG_INFINITY][..]));
        assert_eq!((answers.of(9), answers.of(8)), (Some(&[5.0, 6.0][..]), None));
        let folder = tempfile::tempdir().unwrap();
        assert!(Answers::read(folder.path()).unwrap().is_empty());
        answers.save(folder.path()).unwrap();
        assert_eq!(Answers::read(folder.path()).unwrap(), answers);
        assert_eq!(Answers::from_bytes(&Answers::default().to_bytes()).unwrap(), Answers::default());

        let path = folder.path().join(ANSWERS);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let error = Answers::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("reference.safetensors") && error.contains("remove it"), "{error}");
    }
}
