//! Collectives on tensors.
//!
//! A tensor may have any float dtype and be on any device; the result is on the same device, has the same dtype
//! and carries no gradient. Sums are taken in rank order, or in NCCL's order if [NCCL](crate::World::on) sums; f16 and
//! bf16 accumulate in f32 and are rounded once. All ranks get the same bits.

use burn::tensor::{Device, Tensor};

use crate::call::Call;
use crate::{Collective, Communicator, PartShape, WorldError, buffers};

impl Communicator {
    /// Sums all ranks' tensors, of any shape, and returns the sum on every rank.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_reduce<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (shape, device, dtype) = (tensor.dims(), tensor.device(), tensor.dtype());
        let elements = shape.iter().product();
        let like = [PartShape::flat(elements, dtype)];
        let flat = vec![Some(tensor.inner().reshape([elements]))];
        let sums = self.begin_all_reduce("", flat, &like, &device.clone().inner())?.wait()?;
        Ok(shaped(sums.into_iter().flatten(), shape, &device))
    }

    /// Sums all ranks' tensors and returns this rank's chunk, split along the first axis: `[n, ..]` gives
    /// `[n / size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if the first axis is not divisible by the number of ranks; and an error if a rank
    /// fails, ends, makes a different call, or is late.
    pub fn reduce_scatter<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (mut shape, device, dtype) = (tensor.dims(), tensor.device(), tensor.dtype());
        let like = [PartShape { shape: shape.to_vec(), ..PartShape::flat(0, dtype) }];
        self.check_divisible(&Call::new(Collective::ReduceScatter, "", like.to_vec()), &like[0])?;
        let elements = shape.iter().product();
        let like = [PartShape::flat(elements, dtype)];
        let flat = vec![Some(tensor.inner().reshape([elements]))];
        let sums = self.begin_reduce_scatter("", flat, &like, &device.clone().inner())?.wait()?;
        shape[0] /= self.size();
        Ok(shaped(sums.into_iter().flatten(), shape, &device))
    }

    /// Concatenates all ranks' tensors, which have the same shape, along the first axis in rank order: `[n, ..]` gives
    /// `[n * size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_gather<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (mut shape, device) = (tensor.dims(), tensor.device());
        let elements = shape.iter().product::<usize>();
        let flat = vec![tensor.inner().reshape([elements])];
        let parts = self.begin_all_gather("", flat, &device.clone().inner())?.wait()?;
        shape[0] *= self.size();
        Ok(shaped(parts.into_iter(), shape, &device))
    }

    /// Returns the tensor of rank `root` on every rank. The others' tensors must have its shape and dtype.
    ///
    /// # Errors
    ///
    /// [`WorldError::Root`] if there is no such rank; and an error if a rank fails, ends, makes a different call, or
    /// is late.
    pub fn broadcast<const D: usize>(&self, tensor: Tensor<D>, root: usize) -> Result<Tensor<D>, WorldError> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let like = PartShape { shape: tensor.dims().to_vec(), dtype, sum: dtype };
        let read = |like| buffers::read(tensor, &Call::new(Collective::Broadcast, "", vec![like]));
        let part = (self.rank() == root).then(|| read(like.clone())).transpose()?;
        Ok(Tensor::from_data(self.broadcast_part("", part, like, root)?, (&device, dtype)))
    }
}

/// Returns the one result of a collective in its shape, on the device of the tensor that went in.
fn shaped<const D: usize>(
    mut results: impl Iterator<Item = Tensor<1>>,
    shape: [usize; D],
    device: &Device,
) -> Tensor<D> {
    let result = results.next().expect("one part has one result").reshape(shape);
    if device.is_autodiff() { Tensor::from_inner(result) } else { result }
}
