//! What sums between the ranks' devices, without the host: NCCL, through Burn.
#![cfg_attr(feature = "cuda", allow(unsafe_code))] // Checking whether NCCL is installed loads it.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

use crate::PartShape;

/// Sums a float tensor over all ranks. Every rank calls it with its rank and the same number of elements.
type Sum = Arc<dyn Fn(usize, Tensor<1>) -> Tensor<1> + Send + Sync>;

/// A sum between the ranks' devices: NCCL's, or that of another library.
#[derive(Clone)]
pub struct DeviceSums {
    /// The devices, by rank.
    pub(crate) devices: Vec<Device>,
    pub(crate) sum: Sum,
    /// Whether it is NCCL's.
    is_nccl: bool,
}

impl fmt::Debug for DeviceSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceSums({:?})", self.devices)
    }
}

impl DeviceSums {
    /// Creates it from the ranks' devices, by rank, and `sum`, which every rank calls with its rank and a float tensor
    /// on its device, and which returns the sum of these tensors there. A tensor narrower than f32 has numbers of one
    /// rank, and negative zeros of the others. A sum that never returns ends the call at the
    /// world's [deadline](crate::World::deadline).
    pub fn new(
        devices: Vec<Device>,
        sum: impl Fn(usize, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        Self { devices, sum: Arc::new(sum), is_nccl: false }
    }

    /// Creates NCCL's sum, if NCCL can sum on these devices of the ranks.
    pub(crate) fn nccl(devices: Vec<Device>) -> Option<Self> {
        let devices: Vec<_> = devices.into_iter().map(Device::inner).collect();
        let sum = nccl(&devices)?;
        Some(Self { devices, sum, is_nccl: true })
    }

    /// Returns the sum over some of the ranks, if there is one.
    pub(crate) fn among(&self, ranks: &[usize]) -> Option<Self> {
        match self.is_nccl {
            true => Self::nccl(ranks.iter().map(|rank| self.devices[*rank].clone()).collect()),
            false => None,
        }
    }

    /// Returns whether `device` is the one on which that rank sums.
    pub(crate) fn is_of(&self, rank: usize, device: &Device) -> bool {
        self.devices.get(rank).is_some_and(|own| *own == device.clone().inner())
    }

    /// Returns whether all parts have dtypes that are summed in f32.
    pub(crate) fn takes(like: &[PartShape]) -> bool {
        let is_single = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        like.iter().all(|part| is_single(part.dtype) && is_single(part.sum))
    }
}

/// Returns NCCL's sum if NCCL is installed and each rank has its own CUDA device.
#[cfg(feature = "cuda")]
fn nccl(devices: &[Device]) -> Option<Sum> {
    use burn::backend::{CubeDevice, DispatchDevice};
    use burn::tensor::distributed::{ReduceOperation, all_reduce};

    let is_cuda = |device: &Device| matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)));
    let are_cuda = devices.iter().all(is_cuda);
    let are_apart = devices.iter().enumerate().all(|(at, device)| !devices[..at].contains(device));
    if devices.len() < 2 || !are_cuda || !are_apart {
        return None;
    }
    // SAFETY: this loads NCCL, whose initialisation does not affect this program; Burn would load it next anyway.
    if !unsafe { cudarc::nccl::sys::is_culib_present() } {
        return None;
    }
    let devices = devices.to_vec();
    Some(Arc::new(move |_, part| all_reduce(part, ReduceOperation::Sum, devices.clone()).resolve()))
}

#[cfg(not(feature = "cuda"))]
fn nccl(_: &[Device]) -> Option<Sum> {
    None
}
