//! Matrices that are saved as codes of a few bits, and read as f32.

use std::collections::BTreeMap;
use std::ops::Range;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

/// The packed matrices of a checkpoint: how they are packed, and their shapes.
///
/// A matrix `[in, out]` is saved as two tensors, its [codes](Self::codes_of) and its [scales](Self::scales_of), in the
/// order of its transpose. Element `i` of the transpose is `values[code i] * scales[i / block]`, in f32. A reader sees the
/// matrix itself, in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackedMatrices {
    /// Bits of a code: 4 or 8. Two codes of 4 bits share a byte, the first in its upper half.
    pub bits: usize,
    /// Elements that share a scale.
    pub block: usize,
    /// The value of each code.
    pub values: Vec<f32>,
    /// The shape `[in, out]` of each matrix, by its path.
    pub shapes: BTreeMap<String, [usize; 2]>,
}

impl PackedMatrices {
    /// Returns the name of a matrix's codes, U8.
    pub fn codes_of(path: &str) -> String {
        format!("{path}.packed.codes")
    }

    /// Returns the name of a matrix's scales, F32 `[blocks]`.
    pub fn scales_of(path: &str) -> String {
        format!("{path}.packed.scales")
    }

    /// Checks the fields. The error says what was expected and what was found.
    pub(crate) fn check(&self) -> Result<(), (String, String)> {
        let Self { bits, block, ref values, ref shapes } = *self;
        let wrong = |expected: &str, found: String| Err((expected.to_owned(), found));
        if ![4, 8].contains(&bits) {
            return wrong("packed matrices in 4 or 8 bits", bits.to_string());
        }
        if block == 0 || !values.iter().all(|value| value.is_finite()) || values.len() > 1 << bits {
            return wrong("packed matrices in blocks, with a finite value for each code", {
                format!("blocks of {block} and {} values", values.len())
            });
        }
        let bits = |[from, to]: &[usize; 2]| from.checked_mul(*to)?.checked_mul(8);
        match shapes.iter().find(|(_, shape)| bits(shape).is_none()) {
            Some((path, shape)) => wrong("packed matrices that can be counted", format!("{path} {shape:?}")),
            None => Ok(()),
        }
    }

    /// Returns the dtype and length that the codes and the scales of a matrix must have.
    pub(crate) fn parts(&self, [from, to]: [usize; 2]) -> [(Dtype, usize); 2] {
        let elements = from * to;
        [(Dtype::U8, (elements * self.bits).div_ceil(8)), (Dtype::F32, elements.div_ceil(self.block))]
    }

    /// Unpacks some columns of some rows of a matrix, as the bytes of f32. A code without a value is read as NaN.
    pub(crate) fn rows(
        &self,
        [from, _]: [usize; 2],
        rows: Range<usize>,
        columns: &[Range<usize>],
        codes: &[u8],
        scales: &[u8],
    ) -> Vec<u8> {
        let scales: Vec<f32> = scales.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let number = |at: usize| {
            let code = match self.bits {
                4 => codes[at / 2] >> (4 - at % 2 * 4) & 15,
                _ => codes[at],
            };
            self.values.get(usize::from(code)).copied().unwrap_or(f32::NAN) * scales[at / self.block]
        };
        let columns = || columns.iter().cloned().flatten();
        let elements = rows.flat_map(|row| columns().map(move |column| column * from + row));
        elements.flat_map(|at| number(at).to_le_bytes()).collect()
    }
}
