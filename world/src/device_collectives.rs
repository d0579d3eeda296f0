//! What exchanges between the ranks' devices, without the host: NCCL, or what a program brings.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{DType, Device, Tensor};

#[cfg(feature = "nccl")]
use crate::nccl::Nccl;
use crate::{Collective, PartShape};

/// A collective of a program's own: each rank calls it with its rank, the kind of the collective, and its tensor.
type ProgramCollective = Arc<dyn Fn(usize, Collective, Tensor<1>) -> Tensor<1> + Send + Sync>;

/// Collectives between the ranks' devices: NCCL's, or those of another library.
#[derive(Clone)]
pub struct DeviceCollectives {
    /// The devices, by rank. NCCL's are those of one rank, which knows no other device than its own.
    devices: Devices,
    pub(crate) by: By,
}

#[derive(Clone, Debug)]
enum Devices {
    OfRanks(Vec<Device>),
    #[cfg(feature = "nccl")]
    Own(Device),
}

/// Who exchanges.
#[derive(Clone)]
pub(crate) enum By {
    Program(ProgramCollective),
    #[cfg(feature = "nccl")]
    Nccl(Arc<Nccl>),
}

impl fmt::Debug for DeviceCollectives {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceCollectives({:?})", self.devices)
    }
}

impl DeviceCollectives {
    /// Creates them from the ranks' devices, by rank, and `collective`, which every rank calls with its rank, the kind of
    /// the collective, and a flat float tensor on its device. It returns, on that device:
    ///
    /// - for [`Collective::AllReduce`], the sum of the ranks' tensors;
    /// - for [`Collective::ReduceScatter`], this rank's chunk of the sum, whose elements the number of ranks divides;
    /// - for [`Collective::AllGather`], the ranks' tensors, concatenated in rank order.
    ///
    /// There are no other kinds. Tensors that are summed are f32. The collective may read the tensors of other ranks. It
    /// returns a tensor that it gives to no other rank. A collective that never returns ends the call at
    /// the world's [deadline](crate::World::deadline).
    pub fn new(
        devices: Vec<Device>,
        collective: impl Fn(usize, Collective, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
    ) -> Self {
        Self { devices: Devices::OfRanks(devices), by: By::Program(Arc::new(collective)) }
    }

    /// Returns what distinguishes each of these devices from all others in the world, and NCCL's collectives for a rank on
    /// each, or says why NCCL does not serve them.
    #[cfg(feature = "nccl")]
    pub(crate) fn nccl(devices: &[Device]) -> Result<(Vec<String>, Vec<Self>), String> {
        let on = |device: Device| {
            let (place, nccl) = Nccl::on(&device)?;
            Ok((place, Self { devices: Devices::Own(device), by: By::Nccl(Arc::new(nccl)) }))
        };
        devices.iter().map(|device| on(device.clone().inner())).collect()
    }

    /// Says that NCCL was left out.
    #[cfg(not(feature = "nccl"))]
    pub(crate) fn nccl(_: &[Device]) -> Result<(Vec<String>, Vec<Self>), String> {
        Err("this program was built without the feature `cuda`".into())
    }

    /// Returns the collectives of a group of the ranks, if there are any.
    pub(crate) fn of_group(&self) -> Option<Self> {
        match &self.by {
            By::Program(_) => None,
            #[cfg(feature = "nccl")]
            By::Nccl(nccl) => Some(Self { by: By::Nccl(Arc::new(nccl.of_group())), ..self.clone() }),
        }
    }

    /// Returns the device of a rank.
    pub(crate) fn device(&self, rank: usize) -> Option<&Device> {
        match &self.devices {
            Devices::OfRanks(devices) => devices.get(rank),
            #[cfg(feature = "nccl")]
            Devices::Own(device) => Some(device),
        }
    }

    /// Returns the device of a rank that exchanges with it.
    pub(crate) fn own(&self, rank: usize) -> &Device {
        self.device(rank).expect("a rank exchanges on its device")
    }

    /// Returns whether NCCL exchanges: it takes room for the results, and knows [`Collective::Shift`].
    pub(crate) fn are_of_nccl(&self) -> bool {
        !matches!(self.by, By::Program(_))
    }

    /// Returns whether `device` is the one with which that rank exchanges.
    pub(crate) fn is_of(&self, rank: usize, device: &Device) -> bool {
        self.device(rank).is_some_and(|own| *own == device.clone().inner())
    }

    /// Returns whether all parts have dtypes that are summed in f32.
    pub(crate) fn takes(like: &[PartShape]) -> bool {
        let is_single = |dtype| matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
        like.iter().all(|part| is_single(part.dtype) && is_single(part.sum))
    }
}
