//! Bytes of a run: parameters, gradients, optimizer state.

pub mod budget;
pub mod byte_size;
pub mod part;

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device};
use serde::{Deserialize, Serialize};

use firebrick_strategies::{Adaptation, Paths, Trained, each_distinct_param, each_param, trained};

use crate::memory::{Storages, in_use};
use crate::scratch::ScratchFile;

/// Where a run intends to keep its parts. On the CPU the device's memory is the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The master is on the host, with its average and the optimizer's state, which are kept beside it.
    pub master_on_host: bool,
    /// The replica is on the host, and parts of it are fetched.
    pub replica_on_host: bool,
    /// Gradients held over a step are on the host.
    pub held_on_host: bool,
}

/// Bytes between two steps. Each distinct storage counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParameterBytes {
    /// Number of parameters of the whole model.
    pub parameters: usize,
    /// Bytes of the master, unless a disk keeps it.
    pub master: usize,
    /// Bytes of the replica beyond the master, or of the replica that the master is a part of.
    pub replica: usize,
    /// Bytes of the averaged master beyond both.
    pub averaged: usize,
    /// Peak bytes of the gradients, over all steps so far.
    pub gradients: usize,
    /// Bytes of the optimizer's state, unless a disk keeps it.
    pub optimizer: usize,
    /// The optimizer's state and parameters on a disk, if one keeps any.
    pub disk: Option<DiskBytes>,
    /// Bytes of packed matrices, which [`replica`](Self::replica) includes.
    pub packed: usize,
    /// Where the parts are kept.
    pub placement: Placement,
}

/// The optimizer's state and parameters on a disk: see [`Offload::on`](crate::Offload::on).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskBytes {
    /// Bytes of the state.
    pub state_bytes: usize,
    /// Bytes of the parameters of blocks, if the disk keeps them too: the master, and the replica if it is in another dtype.
    pub parameter_bytes: usize,
    /// Bytes of the file: tensors in whole blocks of 4 KiB, and what checkpoints were copied from while updates went on.
    pub file_bytes: usize,
    /// Bytes read until the last update, by passes, updates and checkpoints.
    pub read_bytes: usize,
    /// Seconds that the reads took, checksums included, in parallel with the rest of the step.
    pub read_seconds: f64,
    /// Bytes written.
    pub written_bytes: usize,
    /// Seconds that the writes took, like [`read_seconds`](Self::read_seconds).
    pub write_seconds: f64,
    /// Whether the file bypasses the system's page cache.
    pub direct: bool,
}

/// The owners of storages. If several read as much of one, the first is charged.
const MASTER: usize = 0;
const REPLICA: usize = 1;
const AVERAGED: usize = 2;

impl ParameterBytes {
    /// Counts the model as given, before any part is owned.
    pub fn of<M: Module>(model: &M, adaptation: &Adaptation, placement: Placement) -> Self {
        // The model has a placeholder of one element in place of a packed matrix.
        let behind = adaptation.quantized().map(|(_, matrix)| matrix.shape().iter().product::<usize>() - 1);
        let parameters = elements(model) + behind.sum::<usize>();
        Self { parameters, packed: adaptation.quantized_bytes(), placement, ..Self::default() }
    }

    /// Counts master, replica and average as they are now.
    pub fn count<M: Module>(&mut self, master: &M, replica: &M, averaged: Option<&M>) {
        let mut storages = Storages::new();
        storages.add_model(MASTER, master);
        storages.add_model(REPLICA, replica);
        if let Some(averaged) = averaged {
            storages.add_average(AVERAGED, averaged);
        }
        [self.master, self.replica, self.averaged] =
            [MASTER, REPLICA, AVERAGED].map(|reader| storages.charged_to(reader));
        self.replica += self.packed;
    }

    /// Counts the optimizer's state and the parameters of so many bytes in a file.
    pub(crate) fn count_disk(&mut self, [state, parameters]: [usize; 2], file: &ScratchFile) {
        let [(read, read_seconds), (written, write_seconds)] = file.moved();
        let [file_bytes, read_bytes, written_bytes] =
            [file.bytes(), read, written].map(|bytes| bytes as usize);
        self.disk = Some(DiskBytes {
            state_bytes: state,
            parameter_bytes: parameters,
            file_bytes,
            read_bytes,
            read_seconds,
            written_bytes,
            write_seconds,
            direct: file.is_direct(),
        });
    }

    /// Returns the bytes in the host's memory and on the device, without the gradients.
    pub fn by_place(&self) -> (usize, usize) {
        let Placement { master_on_host, replica_on_host, .. } = self.placement;
        let of_master = self.master + self.averaged + self.optimizer;
        let on_host = |bytes: usize, is_there: bool| if is_there { bytes } else { 0 };
        let host = on_host(of_master, master_on_host) + on_host(self.replica, replica_on_host);
        (host, of_master + self.replica - host)
    }
}

/// Returns the path and dtype of each float parameter and running state.
pub fn dtypes<M: Module>(model: &M) -> Vec<(String, DType)> {
    let mut dtypes = Vec::new();
    each_param(model, |param| dtypes.push(param.dtype()));
    Paths::of(model).places().iter().map(|place| place.path.clone()).zip(dtypes).collect()
}

/// Measures an optimizer's state as the bytes that its first update leaves in use, because counting the state would
/// copy it.
pub(crate) struct FirstUpdate {
    /// Bytes in use before the update, beyond the master and its gradients.
    before: Option<usize>,
}

impl FirstUpdate {
    /// Call before an update; only the first is measured. There must be no replica.
    pub fn begins<M: Module>(is_first: bool, master: &M, grads: &GradientsParams, device: &Device) -> Self {
        let in_use = if is_first { in_use(device) } else { None };
        let beyond = |in_use: usize| {
            let mut storages = Storages::new();
            storages.add_model(MASTER, master);
            storages.add_gradients(REPLICA, master, grads);
            in_use.saturating_sub(storages.bytes())
        };
        Self { before: in_use.map(beyond) }
    }

    /// Returns whether this update is measured.
    pub fn measures(&self) -> bool {
        self.before.is_some()
    }

    /// Call after the update: returns the bytes of the optimizer's state, if they were measured. The update has freed
    /// the gradients and created the replica again.
    pub fn ends<M: Module>(self, master: &M, replica: &M, device: &Device) -> Option<usize> {
        let before = self.before?;
        let after = in_use(device)?;
        let mut storages = Storages::new();
        storages.add_model(MASTER, master);
        storages.add_model(REPLICA, replica);
        Some(after.saturating_sub(before + storages.bytes()))
    }
}

/// Returns the bytes of the trained parameters. A tied parameter counts once.
pub(crate) fn trainable_bytes<M: Module>(model: &M) -> usize {
    let bytes = |one: &Trained| one.shape.iter().product::<usize>() * one.dtype.size();
    trained(model).iter().map(bytes).sum()
}

/// Returns the number of a model's float parameters. A tied parameter counts once.
fn elements<M: Module>(model: &M) -> usize {
    let mut elements = 0;
    each_distinct_param(model, |param| elements += param.shape().iter().product::<usize>());
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_on_the_host_is_not_on_the_device() {
        let bytes = ParameterBytes {
            master: 4000,
            replica: 2000,
            averaged: 400,
            optimizer: 8000,
            gradients: 20_000,
            ..Default::default()
        };
        let by_place = |master_on_host, replica_on_host| {
            let placement = Placement { master_on_host, replica_on_host, held_on_host: false };
            ParameterBytes { placement, ..bytes }.by_place()
        };
        assert_eq!(by_place(false, false), (0, 14_400));
        assert_eq!(by_place(true, false), (12_400, 2000));
        assert_eq!(by_place(true, true), (14_400, 0));
        assert_eq!(by_place(false, true), (2000, 12_400));
    }
}
