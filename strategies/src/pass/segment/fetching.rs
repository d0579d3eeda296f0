//! Parameters of a block on their way from host memory or a disk, while the device computes the blocks before.

use std::sync::Arc;

use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor};
use firebrick_kernels::Upload;
use firebrick_world::{host_device, is_host};

use super::offloaded::OffloadedRead;
use super::plan::SegmentPlan;
use crate::StrategyError;
use crate::moving::Moving;

/// Parameters of a block, or this rank's shards of them, each flat: in memory, or being read from where they wait.
pub(super) struct Source {
    pub ids: Vec<ParamId>,
    /// The elements and dtype of each.
    pub kinds: Vec<(usize, DType)>,
    /// Those that are in memory.
    pub values: Vec<Option<Tensor<1>>>,
    /// The others.
    pub reading: Option<OffloadedRead>,
    pub plan: Arc<SegmentPlan>,
}

impl Source {
    /// Returns whether all of them are on a device.
    pub fn is_on(&self, device: &Device) -> bool {
        let is_there = |value: &Tensor<1>| value.device() == *device;
        self.values.iter().all(|value| value.as_ref().is_some_and(is_there))
    }

    /// Waits for what is read. If it cannot be read, returns zeros, and the pass reports the error when it is over: until
    /// then the other ranks wait for this rank in each gather and sum of the pass.
    pub fn wait(self) -> Vec<Tensor<1>> {
        let read = self.reading.map_or_else(|| Ok(Vec::new()), OffloadedRead::wait);
        let mut read = read.unwrap_or_else(|error| {
            self.plan.report(error);
            Vec::new()
        });
        read.reverse();
        let values = std::iter::zip(self.values, self.kinds);
        values.map(|(value, kind)| value.or_else(|| read.pop()).unwrap_or_else(|| zeros(kind))).collect()
    }
}

/// Returns what stands in for a parameter that is not there, in host memory.
pub(super) fn zeros((elements, dtype): (usize, DType)) -> Tensor<1> {
    Tensor::zeros([elements], (&host_device(), dtype))
}

/// Parameters that were sent to the device where the pass computes.
///
/// On a GPU they are copied in a queue of their own. On the CPU, where they are already, they are copied too, so that a
/// pass takes the memory that it would take there.
pub(super) struct Fetching {
    ids: Vec<ParamId>,
    state: FetchState,
}

type Read = Box<dyn FnOnce() -> Vec<Tensor<1>> + Send>;

enum FetchState {
    Uploading(Upload),
    /// To be moved to the device, if there is one.
    Reading(Read, Option<Device>),
}

impl Fetching {
    /// Begins to copy parameters to a device. If no copy can begin there beside the computation, at most `most` bytes go at
    /// once, unless a tensor alone has more.
    ///
    /// # Errors
    ///
    /// A device has failed.
    pub fn begin(mut source: Source, to: &Device, most: usize) -> Result<Self, StrategyError> {
        let (ids, kinds) = (source.ids.clone(), source.kinds.clone());
        if is_host(to) {
            let here = source.values.iter().flatten().cloned().collect();
            let mut copies = Moving::begin(here, to, most)?.wait()?.into_iter();
            source
                .values
                .iter_mut()
                .flatten()
                .for_each(|value| *value = copies.next().expect("one for each"));
            return Ok(Self::there(source));
        }
        let state = match Upload::begin(kinds, to, || source.wait()) {
            Ok(upload) => FetchState::Uploading(upload),
            Err(read) => FetchState::Reading(Box::new(read), Some(to.clone())),
        };
        Ok(Self { ids, state })
    }

    /// Leaves parameters where they are, but in memory.
    pub fn there(source: Source) -> Self {
        Self { ids: source.ids.clone(), state: FetchState::Reading(Box::new(|| source.wait()), None) }
    }

    /// Waits until the device's copies are queued, or, where no copy goes to a device, for what is read.
    ///
    /// # Errors
    ///
    /// A device has failed.
    pub fn wait(self, most: usize) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        let there = match self.state {
            FetchState::Uploading(upload) => upload.wait().map_err(StrategyError::Read)?,
            FetchState::Reading(read, None) => read(),
            FetchState::Reading(read, Some(to)) => Moving::begin(read(), &to, most)?.wait()?,
        };
        Ok(std::iter::zip(self.ids, there).collect())
    }
}
