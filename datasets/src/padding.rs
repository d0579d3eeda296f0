//! Pads rows of different lengths to a rectangle.

use serde::{Deserialize, Serialize};

use crate::{DataError, SampleError};

/// The beginning or the end of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Side {
    /// The beginning.
    Left,
    /// The end.
    #[default]
    Right,
}

/// The length that rows are padded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PadTo {
    /// The longest row of the batch.
    #[default]
    Longest,
    /// A fixed number of tokens. A longer row is an error: let the encoder cut it first.
    Length(usize),
}

/// How rows are padded: the side, the length, and a multiple to round up to.
///
/// The default pads on the right to the longest row. In a run file, omitted settings have their default.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{PadTo, Padding, Side};
///
/// let padding = Padding::default().side(Side::Left).multiple_of(8)?;
/// assert_eq!(padding.length(13), 16);
/// assert_eq!(Padding::default().to(PadTo::Length(20))?.length(13), 20);
/// assert!(Padding::default().multiple_of(0).is_err());
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Padding {
    side: Side,
    multiple_of: Option<usize>,
    to: PadTo,
}

impl Padding {
    /// Sets the side on which padding is added. Default: the right.
    pub fn side(self, side: Side) -> Self {
        Self { side, ..self }
    }

    /// Rounds the length up to a multiple of `tokens`, which suits tensor cores. Default: no rounding.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if it is 0.
    pub fn multiple_of(mut self, tokens: usize) -> Result<Self, DataError> {
        if tokens == 0 {
            return Err(DataError::Zero { setting: "multiple_of" });
        }
        self.multiple_of = Some(tokens);
        Ok(self)
    }

    /// Sets the length that rows are padded to, before it is rounded up. Default: the longest row's.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if it is a length of 0.
    pub fn to(mut self, to: PadTo) -> Result<Self, DataError> {
        if to == PadTo::Length(0) {
            return Err(DataError::Zero { setting: "to" });
        }
        self.to = to;
        Ok(self)
    }

    /// Returns the padded length of all rows if the longest has `longest` tokens. It is never less than `longest`.
    pub fn length(&self, longest: usize) -> usize {
        let least = match self.to {
            PadTo::Longest => longest,
            PadTo::Length(length) => length.max(longest),
        };
        self.multiple_of.map_or(least, |multiple| least.checked_next_multiple_of(multiple).unwrap_or(least))
    }

    /// Returns whether padding comes before the tokens.
    pub(crate) fn is_left(&self) -> bool {
        self.side == Side::Left
    }

    /// Returns the number of tokens, including padding, of a batch with rows of these lengths.
    pub fn area(&self, lengths: impl ExactSizeIterator<Item = usize>) -> usize {
        let rows = lengths.len();
        rows * lengths.max().map_or(0, |longest| self.length(longest))
    }

    /// Returns the shape of a batch with rows of these lengths: `[batch, length]`.
    pub(crate) fn shape(&self, lengths: &[usize]) -> Result<[usize; 2], DataError> {
        let Some(longest) = lengths.iter().copied().max() else { return Ok([0, 0]) };
        if let PadTo::Length(length) = self.to {
            let length = self.length(length.min(longest));
            if let Some(row) = lengths.iter().position(|&tokens| tokens > length) {
                return Err(SampleError::RowTooLong { row, tokens: lengths[row], length }.into());
            }
        }
        Ok([lengths.len(), self.length(longest)])
    }

    /// Adds a row to `grid`, padded to `length`. The row must not be longer.
    pub(crate) fn push<T: Copy>(
        &self,
        grid: &mut Vec<T>,
        row: impl ExactSizeIterator<Item = T>,
        length: usize,
        fill: T,
    ) {
        let padding = length.saturating_sub(row.len());
        let end = grid.len() + length;
        if self.is_left() {
            grid.resize(grid.len() + padding, fill);
        }
        grid.extend(row);
        grid.resize(end, fill);
    }
}

/// The settings as they appear in a file.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields, rename = "Padding")]
#[derive(Default)]
struct Unchecked {
    side: Side,
    multiple_of: Option<usize>,
    to: PadTo,
}

impl TryFrom<Unchecked> for Padding {
    type Error = DataError;

    fn try_from(Unchecked { side, multiple_of, to }: Unchecked) -> Result<Self, DataError> {
        let padding = Self::default().side(side).to(to)?;
        multiple_of.map_or(Ok(padding), |tokens| padding.multiple_of(tokens))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_sides() {
        for (side, expected) in
            [(Side::Right, [1, 2, 0, 0, 3, 0, 0, 0]), (Side::Left, [0, 0, 1, 2, 0, 0, 0, 3])]
        {
            let padding = Padding::default().side(side);
            let mut grid = vec![];
            padding.push(&mut grid, [1, 2].into_iter(), 4, 0);
            padding.push(&mut grid, [3].into_iter(), 4, 0);
            assert_eq!(grid, expected);
        }
    }

    #[test]
    fn a_row_beyond_a_fixed_length() {
        let padding = Padding::default().to(PadTo::Length(4)).unwrap();
        assert_eq!(padding.shape(&[1, 4]).unwrap(), [2, 4]);
        let error = padding.shape(&[1, 5]).unwrap_err();
        assert!(
            matches!(error, DataError::Sample(SampleError::RowTooLong { row: 1, tokens: 5, length: 4 })),
            "{error}"
        );
        // The rounded length leaves enough room.
        assert_eq!(padding.multiple_of(8).unwrap().shape(&[1, 5]).unwrap(), [2, 8]);
    }

    #[test]
    fn no_rows() {
        let padding = Padding::default().to(PadTo::Length(4)).unwrap();
        assert_eq!(padding.shape(&[]).unwrap(), [0, 0]);
        assert_eq!(padding.area([].into_iter()), 0);
    }

    #[test]
    fn in_a_file() {
        let read = |json: &str| serde_json::from_str::<Padding>(json);
        assert_eq!(read("{}").unwrap(), Padding::default());
        let padding = read(r#"{"side":"Left","multiple_of":8,"to":{"Length":30}}"#).unwrap();
        assert_eq!((padding.length(3), padding.is_left()), (32, true));
        assert_eq!(read(&serde_json::to_string(&padding).unwrap()).unwrap(), padding);
        let error = read(r#"{"multiple_of":0}"#).unwrap_err().to_string();
        assert!(error.starts_with("`multiple_of` is 0"), "{error}");
        assert!(read(r#"{"to":{"Length":0}}"#).is_err());
        assert!(read(r#"{"sides":"Left"}"#).is_err());
    }

    proptest! {
        #[test]
        fn shape_and_area_agree(
            lengths in prop::collection::vec(0_usize..50, 0..6),
            multiple in prop::option::of(1_usize..9),
            to in prop_oneof![Just(PadTo::Longest), (50_usize..60).prop_map(PadTo::Length)],
        ) {
            let padding = Padding { side: Side::Right, multiple_of: multiple, to };
            let [rows, length] = padding.shape(&lengths).unwrap();
            prop_assert_eq!(rows * length, padding.area(lengths.iter().copied()));
            prop_assert!(lengths.iter().all(|&tokens| tokens <= length));
            prop_assert_eq!(length % multiple.unwrap_or(1), 0);
        }
    }
}
