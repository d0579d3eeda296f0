//! Compares two checkpoints, tensor by tensor.

use crate::elements::Difference;
use crate::error::Result;
use crate::{Checkpoint, Info, Scalar, Tensors};

/// Bytes of each tensor to compare at once.
const CHUNK: usize = 16 << 20;

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The parameters.
    Parameters,
    /// The optimizer's state.
    Optimizer,
    /// The averaged weights.
    Average,
}

/// The difference in one tensor or number.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The second checkpoint lacks it.
    OnlyInFirst,
    /// The first checkpoint lacks it.
    OnlyInSecond,
    /// Its dtype or shape differs, so its elements were not compared.
    Info {
        /// In the first checkpoint.
        first: Info,
        /// In the second.
        second: Info,
    },
    /// Elements differ in their bits.
    Values {
        /// The number of elements that differ.
        elements: u64,
        /// The number of elements of the tensor.
        of: u64,
        /// The largest absolute difference of two values: 0 between 0 and -0, NaN if either value is NaN.
        largest: f64,
    },
    /// A number differs.
    Scalar {
        /// In the first checkpoint.
        first: Scalar,
        /// In the second.
        second: Scalar,
    },
}

/// The differences between two checkpoints. Bit-identical items are only counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diff {
    /// The differences: in the parameters, the optimizer's state and the average, by name.
    pub changes: Vec<(Section, String, Change)>,
    /// The number of equal tensors and numbers.
    pub equal: usize,
}

impl Diff {
    /// Returns whether everything is bit-identical.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn add(&mut self, section: Section, name: &str, change: Option<Change>) {
        match change {
            Some(change) => self.changes.push((section, name.into(), change)),
            None => self.equal += 1,
        }
    }
}

/// Compares the tensors and numbers of two checkpoints, however many ranks saved each, in little memory.
/// Calls `progress` with the bytes compared so far and the total in the first.
///
/// # Errors
///
/// The errors of [`Tensors::read_rows`].
pub fn diff(first: &Checkpoint, second: &Checkpoint, progress: impl Fn(u64, u64)) -> Result<Diff> {
    let sections = [
        (Section::Parameters, Some(&first.parameters), Some(&second.parameters)),
        (Section::Optimizer, Some(&first.optimizer), Some(&second.optimizer)),
        (Section::Average, first.average.as_ref(), second.average.as_ref()),
    ];
    let all = sections.iter().flat_map(|(_, first, _)| first.iter()).flat_map(|tensors| tensors.iter());
    let total = all.map(|(_, info)| info.bytes() as u64).sum();
    let mut done = 0;
    let mut diff = Diff::default();
    for (section, first, second) in sections {
        for (name, info) in first.iter().flat_map(|tensors| tensors.iter()) {
            let change = match (first, second.filter(|second| second.info(name).is_some())) {
                (Some(first), Some(second)) => tensor(first, second, name)?,
                _ => Some(Change::OnlyInFirst),
            };
            diff.add(section, name, change);
            done += info.bytes() as u64;
            progress(done, total);
        }
        for name in second.iter().flat_map(|tensors| tensors.names()) {
            if first.is_none_or(|first| first.info(name).is_none()) {
                diff.add(section, name, Some(Change::OnlyInSecond));
            }
        }
        scalars(&mut diff, section, first, second);
    }
    Ok(diff)
}

/// Compares a tensor that both have.
fn tensor(first: &Tensors, second: &Tensors, name: &str) -> Result<Option<Change>> {
    let (Some(a), Some(b)) = (first.info(name), second.info(name)) else { return Ok(None) };
    if a != b {
        return Ok(Some(Change::Info { first: a.clone(), second: b.clone() }));
    }
    let mut difference = Difference::default();
    for rows in Tensors::cuts(a, CHUNK) {
        let (ours, theirs) = (first.read_rows(name, rows.clone())?, second.read_rows(name, rows)?);
        if ours != theirs {
            difference.compare(a.dtype, &ours, &theirs);
        }
    }
    let Difference { elements, largest } = difference;
    let of = (a.bytes() / (a.dtype.bitsize() / 8)) as u64;
    Ok((elements > 0).then_some(Change::Values { elements, of, largest }))
}

fn scalars(diff: &mut Diff, section: Section, first: Option<&Tensors>, second: Option<&Tensors>) {
    let of = |tensors: Option<&Tensors>, name: &str| {
        tensors.and_then(|tensors| tensors.scalars().get(name).copied())
    };
    for (name, &ours) in first.iter().flat_map(|tensors| tensors.scalars()) {
        let change = match of(second, name) {
            None => Some(Change::OnlyInFirst),
            Some(theirs) if ours == theirs => None,
            Some(theirs) => Some(Change::Scalar { first: ours, second: theirs }),
        };
        diff.add(section, name, change);
    }
    for name in second.iter().flat_map(|tensors| tensors.scalars().keys()) {
        if of(first, name).is_none() {
            diff.add(section, name, Some(Change::OnlyInSecond));
        }
    }
}
