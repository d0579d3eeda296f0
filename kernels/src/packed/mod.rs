//! Frozen matrices in 4 or 8 bits.
//!
//! Dettmers et al., *QLoRA: Efficient Finetuning of Quantized LLMs*, 2023 (arXiv:2305.14314).
//!
//! ```text
//! mod.rs     the values, the blocks, and packed matrices in host memory
//! matrix.rs  packed matrices on any device
//! ```

mod matrix;
#[cfg(test)]
mod tests;

use std::hash::{DefaultHasher, Hash, Hasher};

use rayon::prelude::*;

pub use matrix::PackedMatrix;

/// How numbers are packed: each as a code for one of some values from -1 to 1, in blocks that are each divided by their
/// largest magnitude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// 4-bit NormalFloat in blocks of 64, as QLoRA uses it (Dettmers et al., 2023, arXiv:2305.14314): 4.5 bits for each
    /// element. Codes and scales are those of bitsandbytes' `nf4` without double quantization.
    Nf4,
    /// Integers from -127 to 127 in blocks of 64: 8.5 bits for each element.
    Int8,
}

/// Elements of a block.
const BLOCK: usize = 64;

/// The values of [`Packing::Nf4`]: the quantiles of a normal distribution, scaled to -1 to 1 (appendix E of Dettmers et
/// al., 2023, arXiv:2305.14314).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

impl Packing {
    /// Returns the bits of a code.
    pub fn bits(self) -> usize {
        match self {
            Self::Nf4 => 4,
            Self::Int8 => 8,
        }
    }

    /// Returns the elements of a block.
    pub fn block(self) -> usize {
        BLOCK
    }

    /// Returns the values in ascending order. The code of a value is its index.
    pub fn values(self) -> Vec<f32> {
        match self {
            Self::Nf4 => NF4.to_vec(),
            Self::Int8 => (-127i16..=127).map(|code| f32::from(code) / 127.0).collect(),
        }
    }

    /// Returns the bytes of the codes of so many elements. Two codes of 4 bits share a byte, the first in its upper
    /// half.
    pub fn code_bytes(self, elements: usize) -> usize {
        (elements * self.bits()).div_ceil(8)
    }

    /// Returns the number of blocks of so many elements. The last one may be shorter.
    pub fn blocks(self, elements: usize) -> usize {
        elements.div_ceil(self.block())
    }

    /// Returns the bytes of codes and f32 scales of so many elements.
    pub fn bytes(self, elements: usize) -> usize {
        self.code_bytes(elements) + 4 * self.blocks(elements)
    }

    /// Packs a matrix `[in, out]`, in row-major order. Its elements are packed in the order of its transpose, `[out, in]`,
    /// which is that of PyTorch's linear layers.
    ///
    /// Each element is divided by the largest magnitude of its block and rounded to the nearest value, the lower one of
    /// two. A block of zeros stays zero. Packing the [unpacked](Packed::to_f32) matrix again gives the same codes and
    /// scales.
    ///
    /// # Panics
    ///
    /// If the matrix does not have `in · out` elements.
    pub fn pack(self, matrix: &[f32], [from, to]: [usize; 2]) -> Packed {
        assert_eq!(matrix.len(), from * to, "a matrix of this shape");
        let values = self.values();
        let middles: Vec<f32> = values.windows(2).map(|pair| f32::midpoint(pair[0], pair[1])).collect();
        let elements = from * to;
        let mut codes = vec![0u8; self.code_bytes(elements)];
        let mut scales = vec![0f32; self.blocks(elements)];
        let of_block = self.code_bytes(BLOCK);
        codes.par_chunks_mut(of_block).zip(scales.par_iter_mut()).enumerate().for_each(
            |(at, (codes, scale))| {
                let first = at * BLOCK;
                let block = first..(first + BLOCK).min(elements);
                // Element `at` of the transpose.
                let element = |at: usize| matrix[at % from * to + at / from];
                *scale = block.clone().fold(0f32, |most, at| most.max(element(at).abs()));
                let factor = 1.0 / scale.max(f32::MIN_POSITIVE);
                for (place, at) in block.enumerate() {
                    let scaled = (element(at) * factor).clamp(-1.0, 1.0);
                    let code = middles.partition_point(|middle| *middle < scaled) as u8;
                    match self {
                        Self::Nf4 => codes[place / 2] |= if place % 2 == 0 { code << 4 } else { code },
                        Self::Int8 => codes[place] = code,
                    }
                }
            },
        );
        Packed { packing: self, shape: [from, to], codes, scales }
    }
}

/// A packed matrix, in host memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed {
    /// How it is packed.
    pub packing: Packing,
    /// `[in, out]`.
    pub shape: [usize; 2],
    /// The [codes](Packing::code_bytes), in the order of the transpose.
    pub codes: Vec<u8>,
    /// The largest magnitude of each block.
    pub scales: Vec<f32>,
}

/// Rows of the result that are written together.
const TILE: usize = 64;

impl Packed {
    /// Returns the matrix `[in, out]`, in row-major order.
    pub fn to_f32(&self) -> Vec<f32> {
        self.unpacked(|number| number)
    }

    /// Returns the matrix `[in, out]`, in row-major order, with each f32 converted.
    pub fn unpacked<T: Copy + Default + Send + Sync>(&self, convert: impl Fn(f32) -> T + Sync) -> Vec<T> {
        let [from, to] = self.shape;
        let values = self.packing.values();
        let mut matrix = vec![T::default(); from * to];
        if matrix.is_empty() {
            return matrix;
        }
        // The codes of a column are neighbours.
        matrix.par_chunks_mut(TILE * to).enumerate().for_each(|(tile, rows)| {
            let (first, count) = (tile * TILE, rows.len() / to);
            let mut numbers = [0f32; TILE];
            for column in 0..to {
                let start = column * from + first;
                self.read(&values, start, &mut numbers[..count]);
                for (row, number) in numbers[..count].iter().enumerate() {
                    rows[row * to + column] = convert(*number);
                }
            }
        });
        matrix
    }

    /// Reads elements of the transpose from `start` on.
    fn read(&self, values: &[f32], start: usize, numbers: &mut [f32]) {
        for (at, number) in (start..).zip(numbers.iter_mut()) {
            let code = match self.packing {
                Packing::Nf4 => self.codes[at / 2] >> (4 - at % 2 * 4) & 15,
                Packing::Int8 => self.codes[at],
            };
            *number = values[usize::from(code)] * self.scales[at / BLOCK];
        }
    }

    /// Returns a number that differs, but for chance, from that of a matrix with another code, scale or shape.
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.shape, &self.codes).hash(&mut hasher);
        self.scales.iter().for_each(|scale| hasher.write_u32(scale.to_bits()));
        hasher.finish()
    }

    /// Returns the bytes of codes and scales.
    pub fn bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }
}
