//! The fingerprints of the data that is loaded, taken while it is read.

use std::cell::RefCell;

use firebrick_datasets::{Fingerprint, Fingerprinted, Reader};

use crate::data::Fingerprints;

/// What data is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::run) enum Part {
    Train,
    Valid,
}

/// The fingerprints of a loading under way.
#[derive(Debug, Default)]
pub(super) struct Prints {
    train: RefCell<Vec<Print>>,
    valid: RefCell<Vec<Print>>,
}

#[derive(Debug)]
enum Print {
    Known(Fingerprint),
    /// Known once all of it was read.
    OfReader(Fingerprinted),
}

impl Prints {
    /// Data whose fingerprint is known.
    pub fn add(&self, part: Part, print: Fingerprint) {
        self.of(part).borrow_mut().push(Print::Known(print));
    }

    /// A reader that takes its fingerprint.
    pub fn reader(&self, part: Part, reader: Box<dyn Reader>) -> Box<dyn Reader> {
        let reader = Fingerprinted::new(reader);
        self.of(part).borrow_mut().push(Print::OfReader(reader.clone()));
        Box::new(reader)
    }

    /// The same data is read once more.
    pub fn forget(&self, part: Part) {
        self.of(part).borrow_mut().clear();
    }

    /// All that is known.
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
