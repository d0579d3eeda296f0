//! The device of a run.

use burn::tensor::Device;

use super::Run;
use firebrick::device::{self, DeviceError};

impl Run {
    /// Finds the device, with kernels tuned as the run asks for. Reports through `say` if none are kept from an earlier
    /// start. Also returns the device's full name.
    ///
    /// # Errors
    ///
    /// The device is not available.
    pub(crate) fn find_device(&self, say: impl Fn(&str)) -> Result<(Device, String), DeviceError> {
        device::set_tuning(self.tuning);
        let found = device::find(&self.device)?;
        if let Some(line) = device::kernels::first_start() {
            say(&line);
        }
        Ok(found)
    }
}
