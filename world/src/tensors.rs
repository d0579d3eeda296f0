//! Collectives on tensors.
//!
//! A tensor may have any float dtype and be on any device; the result is on the same device, has the same dtype
//! and carries no gradient. Sums are taken in rank order, or in NCCL's order if [NCCL](crate::World::on) sums; f16 and
//! bf16 accumulate in f32 and are rounded once. All ranks get the same bits.

use burn::tensor::{Tensor, TensorData};

use crate::call::Call;
use crate::{Communicator, Kind, PartShape, WorldError, buffers};

impl Communicator {
    /// Sums all ranks' tensors, of any shape, and returns the sum on every rank.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_reduce<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        let (shape, dtype) = (tensor.dims(), tensor.dtype());
        let like = [PartShape { shape: shape.to_vec(), dtype, sum: dtype }];
        if let Some(on_devices) = self.on_devices(&like).filter(|_| !tensor.is_autodiff()) {
            // A distinct name: a rank that took the path through the host is in another call.
            let what = "a tensor on the devices";
            let sums = on_devices.all_reduce(what, vec![Some(tensor.reshape([-1]))], &like)?;
            let sum = sums.into_iter().flatten().next();
            return Ok(sum.expect("one part has one result").reshape(shape));
        }
        self.on_host(Kind::AllReduce, tensor, |part, like| {
            Ok(self.all_reduce_parts("", vec![Some(part)], &[like])?.into_iter().flatten())
        })
    }

    /// Sums all ranks' tensors and returns this rank's chunk, split along the first axis: `[n, ..]` gives
    /// `[n / size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if the first axis is not divisible by the number of ranks; and an error if a rank
    /// fails, ends, makes a different call, or is late.
    pub fn reduce_scatter<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        self.on_host(Kind::ReduceScatter, tensor, |part, like| {
            Ok(self.reduce_scatter_parts("", vec![Some(part)], &[like])?.into_iter().flatten())
        })
    }

    /// Concatenates all ranks' tensors, which have the same shape, along the first axis in rank order: `[n, ..]` gives
    /// `[n * size, ..]`.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn all_gather<const D: usize>(&self, tensor: Tensor<D>) -> Result<Tensor<D>, WorldError> {
        self.on_host(Kind::AllGather, tensor, |part, _| {
            Ok(self.start_all_gather("", vec![part])?.wait()?.into_iter())
        })
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
        let read = |like| buffers::read(tensor, &Call::new(Kind::Broadcast, "", vec![like]));
        let part = (self.rank() == root).then(|| read(like.clone())).transpose()?;
        Ok(Tensor::from_data(self.broadcast_part("", part, like, root)?, (&device, dtype)))
    }

    /// Runs a collective on one tensor's data and returns the result on the tensor's device.
    fn on_host<const D: usize, I: Iterator<Item = TensorData>>(
        &self,
        kind: Kind,
        tensor: Tensor<D>,
        collective: impl FnOnce(TensorData, PartShape) -> Result<I, WorldError>,
    ) -> Result<Tensor<D>, WorldError> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let like = PartShape { shape: tensor.dims().to_vec(), dtype, sum: dtype };
        let data = buffers::read(tensor, &Call::new(kind, "", vec![like.clone()]))?;
        let result = collective(data, like)?.next();
        // One part goes in, and every rank has it.
        Ok(Tensor::from_data(result.expect("one part has one result"), (&device, dtype)))
    }
}
