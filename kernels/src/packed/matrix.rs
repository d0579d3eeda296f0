//! Packed matrices on any device.

use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use half::{bf16, f16};

use super::{Packed, Packing};
use crate::cast;
use crate::device::is_flex;

/// A packed matrix `[in, out]`, in the memory of a device. A clone shares it.
///
/// The CPU stores the codes as bytes and unpacks them on all cores. Another device stores them in 32-bit integers, which
/// all backends have, and unpacks them with tensor operations.
///
/// ```
/// use burn::tensor::{Device, FloatDType};
/// use firebrick_kernels::packed::{PackedMatrix, Packing};
///
/// let numbers: Vec<f32> = (0..64 * 8).map(|at| (at as f32).sin()).collect();
/// let packed = PackedMatrix::new(Packing::Nf4.pack(&numbers, [64, 8]));
/// assert_eq!(packed.bytes(), 64 * 8 / 2 + 8 * 4);
///
/// let dense = packed.dense(&Device::flex(), FloatDType::F32);
/// assert_eq!(dense.dims(), [64, 8]);
/// for (dense, number) in dense.into_data().iter::<f32>().zip(numbers) {
///     assert!((dense - number).abs() < 0.16); // half of the widest gap between two values
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    packing: Packing,
    shape: [usize; 2],
    stored: Storage,
}

#[expect(clippy::large_enum_variant, reason = "a program has one kind, for a few matrices of each block")]
#[derive(Clone, Debug)]
enum Storage {
    Host(Arc<Packed>),
    Device {
        /// Four bytes of codes each, the first in the lowest bits. The last block is whole.
        words: Tensor<1, Int>,
        /// `[blocks]`, f32.
        scales: Tensor<1>,
        /// The value of each code, f32.
        values: Tensor<1>,
    },
}

impl PackedMatrix {
    /// Takes a matrix in host memory.
    pub fn new(packed: Packed) -> Self {
        Self { packing: packed.packing, shape: packed.shape, stored: Storage::Host(Arc::new(packed)) }
    }

    /// Returns how it is packed.
    pub fn packing(&self) -> Packing {
        self.packing
    }

    /// Returns `[in, out]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the bytes of codes and scales, without the padding that a device may add.
    pub fn bytes(&self) -> usize {
        self.packing.bytes(self.shape.iter().product())
    }

    /// Returns the matrix in the memory of a device: this one if it is there already.
    pub fn to_device(&self, device: &Device) -> Self {
        let device = device.clone().inner();
        let stored = match &self.stored {
            Storage::Host(_) if is_flex(&device) => return self.clone(),
            Storage::Device { words, .. } if words.device() == device => return self.clone(),
            Storage::Device { .. } if is_flex(&device) => Storage::Host(self.to_host()),
            Storage::Host(packed) => Self::upload(packed, &device),
            Storage::Device { words, scales, values } => Storage::Device {
                words: words.clone().to_device(&device),
                scales: scales.clone().to_device(&device),
                values: values.clone().to_device(&device),
            },
        };
        Self { stored, ..*self }
    }

    fn upload(packed: &Packed, device: &Device) -> Storage {
        let blocks = packed.scales.len();
        let mut codes = packed.codes.clone();
        codes.resize(packed.packing.code_bytes(blocks * packed.packing.block()), 0);
        let words: Vec<i32> = codes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        let length = words.len();
        let words = TensorData::new(words, [length]);
        let floats = |floats: Vec<f32>| {
            let length = floats.len();
            Tensor::from_data(TensorData::new(floats, [length]), (device, DType::F32))
        };
        Storage::Device {
            words: Tensor::from_data(words, (device, DType::I32)),
            scales: floats(packed.scales.clone()),
            values: floats(packed.packing.values()),
        }
    }

    /// Returns codes and scales in host memory.
    pub fn to_host(&self) -> Arc<Packed> {
        let (words, scales) = match &self.stored {
            Storage::Host(packed) => return packed.clone(),
            Storage::Device { words, scales, .. } => (words.clone(), scales.clone()),
        };
        let mut codes: Vec<u8> = words.into_data().iter::<i32>().flat_map(i32::to_le_bytes).collect();
        codes.truncate(self.packing.code_bytes(self.shape.iter().product()));
        let scales = scales.into_data().iter::<f32>().collect();
        Arc::new(Packed { packing: self.packing, shape: self.shape, codes, scales })
    }

    /// Returns the device, without autodiff.
    pub fn device(&self) -> Device {
        match &self.stored {
            Storage::Host(_) => Device::flex(),
            Storage::Device { words, .. } => words.device(),
        }
    }

    /// Unpacks the matrix in this dtype on a device, outside autodiff. Each element is computed in f32 and rounded once.
    /// Copies codes and scales there first if they are on another device.
    pub fn dense(&self, device: &Device, dtype: FloatDType) -> Tensor<2> {
        let device = device.clone().inner();
        match self.to_device(&device).stored {
            Storage::Host(packed) => {
                let data = match dtype {
                    FloatDType::BF16 => TensorData::new(packed.unpacked(bf16::from_f32), self.shape),
                    FloatDType::F16 => TensorData::new(packed.unpacked(f16::from_f32), self.shape),
                    FloatDType::F64 => TensorData::new(packed.unpacked(f64::from), self.shape),
                    _ => TensorData::new(packed.to_f32(), self.shape),
                };
                Tensor::from_data(data, (&device, DType::from(dtype)))
            }
            Storage::Device { words, scales, values } => {
                cast(unpacked(words, scales, values, (self.packing, self.shape)), dtype)
            }
        }
    }
}

/// Unpacks words with tensor operations.
fn unpacked(
    words: Tensor<1, Int>,
    scales: Tensor<1>,
    values: Tensor<1>,
    (packing, [from, to]): (Packing, [usize; 2]),
) -> Tensor<2> {
    let [blocks] = scales.dims();
    // Of two codes in a byte, the first is in the upper half.
    let shifts: &[i32] = match packing {
        Packing::Nf4 => &[4, 0, 12, 8, 20, 16, 28, 24],
        Packing::Int8 => &[0, 8, 16, 24],
    };
    let mask = (1 << packing.bits()) - 1;
    let codes = shifts
        .iter()
        .map(|shift| words.clone().bitwise_right_shift_scalar(*shift).bitwise_and_scalar(mask))
        .collect();
    // [words, codes of a word] -> [elements]
    let codes: Tensor<1, Int> = Tensor::stack::<2>(codes, 1).reshape([-1]);
    let numbers = values.select(0, codes).reshape([blocks, packing.block()]) * scales.reshape([blocks, 1]);
    let elements = numbers.reshape([blocks * packing.block()]).narrow(0, 0, from * to);
    elements.reshape([to, from]).swap_dims(0, 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Stores a matrix as a device other than the CPU does.
    fn as_on_a_device(packed: &Packed) -> PackedMatrix {
        let stored = PackedMatrix::upload(packed, &testing::device());
        PackedMatrix { packing: packed.packing, shape: packed.shape, stored }
    }

    #[test]
    fn tensor_operations_unpack_what_the_cpu_unpacks() {
        for packing in [Packing::Nf4, Packing::Int8] {
            for [from, to] in [[64, 3], [7, 5], [130, 1], [1, 65]] {
                let numbers: Vec<f32> = (0..from * to).map(|at| (at as f32 * 1.7).sin()).collect();
                let packed = packing.pack(&numbers, [from, to]);
                let there = as_on_a_device(&packed);
                let Storage::Device { words, scales, values } = there.stored.clone() else { panic!("there") };
                let dense = unpacked(words, scales, values, (packing, [from, to]));
                assert_eq!(dense.dims(), [from, to]);
                let dense: Vec<f32> = dense.into_data().iter().collect();
                assert_eq!(dense, packed.to_f32(), "{packing:?} {from} {to}");
                assert_eq!(*there.to_host(), packed);
            }
        }
    }

    #[test]
    fn each_dtype_is_rounded_once() {
        let numbers: Vec<f32> = (0..130).map(|at| (at as f32).cos()).collect();
        let packed = PackedMatrix::new(Packing::Nf4.pack(&numbers, [65, 2]));
        let device = testing::device();
        let exact = packed.dense(&device, FloatDType::F32);
        for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16, FloatDType::F64] {
            let dense = packed.dense(&device, dtype);
            assert_eq!(dense.into_data(), exact.clone().cast(dtype).into_data());
        }
    }
}
