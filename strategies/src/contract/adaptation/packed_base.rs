//! The packed base of a parameter, and how it is read.

use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Device, FloatDType, Shape, Tensor};
use firebrick_kernels::packed::PackedMatrix;

use crate::relift;

/// The values of a frozen matrix, if they are packed. All copies of the parameter share them, since training does not
/// change them; the parameter itself keeps a placeholder of one element.
#[derive(Clone, Debug, Default)]
pub struct PackedBase(Arc<Mutex<Option<PackedMatrix>>>);

impl PackedBase {
    /// Returns the packed matrix, if there is one.
    pub fn get(&self) -> Option<PackedMatrix> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the packed matrix for all copies of the parameter.
    pub fn set(&self, matrix: PackedMatrix) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(matrix);
    }

    /// Moves the packed matrix to a device.
    pub(crate) fn place(&self, device: &Device) {
        if let Some(matrix) = self.get() {
            self.set(matrix.to_device(device));
        }
    }

    /// Returns the unpacked matrix in this dtype on the device of its placeholder, as a constant of the placeholder's
    /// graph, or `None` if it is not packed.
    pub(crate) fn read<const D: usize>(
        &self,
        placeholder: &Tensor<D>,
        dtype: FloatDType,
    ) -> Option<Tensor<D>> {
        let matrix = self.get()?;
        let dense = matrix.dense(&placeholder.device(), dtype);
        Some(relift(dense.reshape(Shape::from(matrix.shape().to_vec())), placeholder))
    }
}
