//! Fingerprints of the data, taken while it is read.

use std::cell::RefCell;

use firebrick_datasets::{Fingerprint, Fingerprinted, Reader};

use firebrick::data::Fingerprints;

/// What the data is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Train,
    Valid,
}

/// The fingerprints of a load in progress.
#[derive(Debug, Default)]
pub(crate) struct Prints {
    train: RefCell<Vec<Print>>,
    valid: RefCell<Vec<Print>>,
}

#[derive(Debug)]
enum Print {
    Known(Fingerprint),
    /// The fingerprint of a reader, known once the reader has read everything.
    OfReader(Fingerprinted),
}

impl Prints {
    /// Adds data with a known fingerprint.
    pub fn add(&self, part: Part, print: Fingerprint) {
        self.of(part).borrow_mut().push(Print::Known(print));
    }

    /// Wraps a reader so that its fingerprint is taken.
    pub fn reader(&self, part: Part, reader: Box<dyn Reader>) -> Fingerprinted {
        let reader = Fingerprinted::new(reader);
        self.of(part).borrow_mut().push(Print::OfReader(reader.clone()));
        reader
    }

    /// Forgets the fingerprints of a part, because its data is about to be read again.
    pub fn forget(&self, part: Part) {
        self.of(part).borrow_mut().clear();
    }

    /// Returns all known fingerprints.
    pub fn all(&self) -> Fingerprints {
        let all = |part| {
            let prints = self.of(part).borrow();
            let known = prints.iter().map(|print| match print {
                Print::Known(print) => Some(*print),
                Print::OfReader(reader) => reader.fingerprint(),
            });
            let known: Option<Vec<_>> = known.collect();
            known.filter(|known| !known.is_empty()).map(Fingerprint::of_all)
        };
        Fingerprints { train: all(Part::Train), valid: all(Part::Valid), tokenizer: None }
    }

    fn of(&self, part: Part) -> &RefCell<Vec<Print>> {
        match part {
            Part::Train => &self.train,
            Part::Valid => &self.valid,
        }
    }
}

#[cfg(test)]
#[path = "prints_tests.rs"]
mod tests;
