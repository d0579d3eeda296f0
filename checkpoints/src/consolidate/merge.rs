//! Adds the products of low-rank factors (LoRA) to their matrices, and scales the columns to their magnitudes (DoRA).

use std::ops::Range;

use safetensors::Dtype;

use crate::elements::{floats, is_float};
use crate::error::Result;
use crate::{Info, Tensors};

/// The suffixes of a matrix's factors.
const FACTORS: [&str; 2] = [".lora.a", ".lora.b"];
/// The suffix of the norms of a matrix's columns.
const MAGNITUDE: &str = ".lora.magnitude";

/// The product to add to a matrix `[rows, columns]`.
pub(super) struct Product {
    /// `[rows, rank]`.
    a: String,
    /// `[rank, columns]`.
    b: String,
    scale: f64,
    /// The norms of the columns of the sum, `[columns]`.
    magnitude: Option<String>,
}

/// Returns whether a tensor is a factor of another one, or its magnitudes.
pub(super) fn is_factor(tensors: &Tensors, saved: &str) -> bool {
    let matrix = FACTORS.iter().chain([&MAGNITUDE]).find_map(|ending| saved.strip_suffix(ending));
    matrix.is_some_and(|matrix| tensors.info(matrix).is_some())
}

impl Product {
    /// Returns the product to add to a tensor, if it has factors.
    ///
    /// # Errors
    ///
    /// What was expected and what was found, if the factors do not fit the matrix.
    pub fn of(
        tensors: &Tensors,
        name: &str,
        scale: f64,
    ) -> std::result::Result<Option<Self>, (String, String)> {
        let [a, b] = FACTORS.map(|ending| format!("{name}{ending}"));
        let (Some(matrix), of_a, of_b) = (tensors.info(name), tensors.info(&a), tensors.info(&b)) else {
            return Ok(None);
        };
        let magnitude = Some(format!("{name}{MAGNITUDE}")).filter(|name| tensors.info(name).is_some());
        let of_magnitude = magnitude.as_deref().and_then(|name| tensors.info(name));
        if let Some(found) = of_magnitude
            && !(is_float(found.dtype) && matrix.shape.get(1..) == Some(found.shape.as_slice()))
        {
            let expected = format!("magnitudes of the columns of `{name}`, which is {}", matrix.shown());
            return Err((expected, found.shown()));
        }
        let shown = |info: Option<&Info>| info.map_or("nothing".into(), |info| info.shown());
        match (of_a, of_b) {
            (None, None) => Ok(None),
            (Some(of_a), Some(of_b)) if fits(matrix, of_a, of_b) => Ok(Some(Self { a, b, scale, magnitude })),
            _ => {
                let expected = format!("factors of `{name}`, which is {}", matrix.shown());
                Err((expected, format!("{} and {}", shown(of_a), shown(of_b))))
            }
        }
    }

    /// Returns the factors that scale the columns of the sum of a matrix and the product to the magnitudes, if there are
    /// any. Reads the matrix in the given parts.
    pub fn gains(
        &self,
        tensors: &Tensors,
        matrix: &str,
        parts: impl Iterator<Item = Range<usize>>,
    ) -> Result<Option<Vec<f64>>> {
        let (Some(magnitude), Some(info)) = (&self.magnitude, tensors.info(matrix)) else { return Ok(None) };
        let magnitudes = read(tensors, magnitude, None)?;
        let mut squares = vec![0.0; magnitudes.len()];
        for rows in parts {
            let bytes = tensors.read_rows(matrix, rows.clone())?;
            let sums = self.sums(tensors, info.dtype, &bytes, rows)?;
            for row in sums.chunks_exact(squares.len().max(1)) {
                squares.iter_mut().zip(row).for_each(|(square, sum)| *square += sum * sum);
            }
        }
        // A column of zeros stays one.
        let norms = squares.into_iter().map(|square| square.sqrt().max(f64::MIN_POSITIVE));
        Ok(Some(magnitudes.into_iter().zip(norms).map(|(magnitude, norm)| magnitude / norm).collect()))
    }

    /// Adds the product to some rows of the matrix, given by their bytes, and scales the columns by the
    /// [gains](Self::gains). Returns the result in f64.
    pub fn merged(
        &self,
        tensors: &Tensors,
        dtype: Dtype,
        bytes: &[u8],
        rows: Range<usize>,
        gains: Option<&[f64]>,
    ) -> Result<Vec<u8>> {
        let mut sums = self.sums(tensors, dtype, bytes, rows)?;
        if let Some(gains) = gains {
            for row in sums.chunks_exact_mut(gains.len().max(1)) {
                row.iter_mut().zip(gains).for_each(|(sum, gain)| *sum *= gain);
            }
        }
        Ok(sums.into_iter().flat_map(f64::to_le_bytes).collect())
    }

    /// Returns the sums of some rows of the matrix, given by their bytes, and of the product.
    fn sums(&self, tensors: &Tensors, dtype: Dtype, bytes: &[u8], rows: Range<usize>) -> Result<Vec<f64>> {
        let mut sums = numbers(dtype, bytes);
        let a = read(tensors, &self.a, Some(rows.clone()))?;
        let b = read(tensors, &self.b, None)?;
        let (rank, columns) = (a.len() / rows.len().max(1), sums.len() / rows.len().max(1));
        if rank > 0 && columns > 0 {
            for (sums, a) in sums.chunks_exact_mut(columns).zip(a.chunks_exact(rank)) {
                for (a, b) in a.iter().zip(b.chunks_exact(columns)) {
                    sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += self.scale * a * b);
                }
            }
        }
        Ok(sums)
    }
}

fn fits(matrix: &Info, a: &Info, b: &Info) -> bool {
    let ([rows, columns], [of_a, rank], [of_b, of_columns]) =
        (matrix.shape.as_slice(), a.shape.as_slice(), b.shape.as_slice())
    else {
        return false;
    };
    let floats = [matrix, a, b].iter().all(|info| is_float(info.dtype));
    floats && (rows, rank, columns) == (of_a, of_b, of_columns)
}

fn numbers(dtype: Dtype, bytes: &[u8]) -> Vec<f64> {
    let mut numbers = Vec::with_capacity(bytes.len() / (dtype.bitsize() / 8).max(1));
    floats(dtype, bytes, |float| numbers.push(float));
    numbers
}

fn read(tensors: &Tensors, name: &str, rows: Option<Range<usize>>) -> Result<Vec<f64>> {
    let bytes = match rows {
        None => tensors.read(name)?,
        Some(rows) => tensors.read_rows(name, rows)?,
    };
    Ok(tensors.info(name).map_or_else(Vec::new, |info| numbers(info.dtype, &bytes)))
}
