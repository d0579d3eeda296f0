//! Devices by name, the operations that they support, and the kernels that are compiled for them.
//!
//! ```text
//! listing.rs          the devices of this machine
//! check.rs            the kernels of a device, beside the CPU
//! table.rs            the listing as text
//! number_format.rs    number formats and their limits
//! peak_flops.rs       the peak rate of known devices
//! tuning.rs           how thoroughly kernels are tuned
//! kernels.rs          what is compiled and tuned before the first step
//! kernel_cache.rs     the folder that keeps it for later starts
//! kept_kernels.rs     CubeCL keeps it there, a file for each GPU
//! cubecl_settings.rs  CubeCL's settings, before its first use
//! without_tma.rs      CUDA without the tensor memory accelerator
//! ```

mod check;
#[cfg(feature = "cube")]
mod cubecl_settings;
#[cfg(all(feature = "cube", feature = "persistence"))]
mod kept_kernels;
pub mod kernel_cache;
pub mod kernels;
mod listing;
mod number_format;
mod peak_flops;
mod table;
mod tuning;
#[cfg(feature = "cuda")]
mod without_tma;

pub use check::{CheckedKernel, KernelCheck};
pub(crate) use listing::card;
pub use listing::{InBurn, Listed, ListedFormat, Listing, Usage};
pub use number_format::NumberFormat;
pub use peak_flops::{doubles_in_fp8, doubles_in_fp8_of, peak_flops, peak_flops_of};
pub use tuning::{Tuning, set_tuning};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use burn::tensor::{Device, DeviceType};
use firebrick_kernels::off::{self, Kernel, UnknownKernel};
use thiserror::Error;
use tracing::warn;

/// A device cannot be used.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DeviceError {
    /// The name is unknown.
    #[error(
        "unknown device {0:?}; expected auto, cpu, cuda, rocm, metal, vulkan or wgpu, perhaps with `:index`"
    )]
    Unknown(String),
    /// The backend is not compiled into this program.
    #[error(
        "this program was built without {backend}; it has {compiled}. Build it with `--features {backend}`"
    )]
    NotCompiled {
        /// The requested backend.
        backend: String,
        /// The compiled backends.
        compiled: String,
    },
    /// The machine has no such device.
    #[error("no {asked} here; this machine has {present}")]
    NotPresent {
        /// The requested device.
        asked: String,
        /// The available devices.
        present: String,
    },
    /// The variable that turns kernels off names one that there is not.
    #[error(transparent)]
    Kernels(#[from] UnknownKernel),
}

/// A backend: its name, and the type of its devices if it is compiled in.
struct Backend {
    name: &'static str,
    kind: Option<DeviceType>,
}

macro_rules! backend {
    ($name:literal, $feature:tt, $kind:ident) => {
        Backend {
            name: $name,
            #[cfg(feature = $feature)]
            kind: Some(DeviceType::$kind),
            #[cfg(not(feature = $feature))]
            kind: None,
        }
    };
}

/// The backends, in the order in which `auto` tries them.
const BACKENDS: [Backend; 6] = [
    backend!("cuda", "cuda", Cuda),
    backend!("rocm", "rocm", Rocm),
    backend!("metal", "metal", Metal),
    backend!("vulkan", "vulkan", Vulkan),
    backend!("wgpu", "wgpu", Wgpu),
    // Every program has it.
    Backend { name: "cpu", kind: Some(DeviceType::Flex) },
];

impl Backend {
    /// The devices that are present.
    fn devices(&self) -> Vec<Device> {
        let Some(kind) = self.kind.clone() else { return Vec::new() };
        if self.name != "cpu" {
            kernels::prepare();
        }
        // If a driver cannot be loaded, enumerating panics; then there is no device.
        catch_unwind(AssertUnwindSafe(|| Device::enumerate(kind).to_vec())).unwrap_or_default()
    }
}

/// Finds a device by name: `auto`, which is the first card or else the CPU, or a backend with an optional index. Also
/// returns the device's full name.
///
/// It looks the device up on this machine, because a missing device panics only at its first use. With the feature
/// `persistence`, the first GPU found also selects the file of the [kernel cache](kernel_cache), and is opened for that.
///
/// ```
/// # fn main() -> Result<(), firebrick::device::DeviceError> {
/// let (device, name) = firebrick::device::find("cpu")?;
/// assert_eq!(name, "cpu:0");
/// assert!(firebrick::device::find("cpu:99").is_err());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The name is unknown, the backend is not compiled in, the machine has no such device, or [`off::VARIABLE`] names an
/// unknown kernel; each error lists the alternatives.
pub fn find(name: &str) -> Result<(Device, String), DeviceError> {
    warn_of_kernels_off()?;
    if name == "auto" {
        let (device, name) = automatic()?;
        kernels::keep_for(&device);
        return Ok((device, name));
    }
    let (backend, index) = name.split_once(':').unwrap_or((name, "0"));
    // Burn's name of it, which is what `BURN_DEVICE` holds where Burn itself reads it.
    let backend = if backend == "flex" { "cpu" } else { backend };
    let known = BACKENDS.iter().find(|known| known.name == backend);
    let (Some(known), Ok(index)) = (known, index.parse::<usize>()) else {
        return Err(DeviceError::Unknown(name.into()));
    };
    if known.kind.is_none() {
        return Err(DeviceError::NotCompiled {
            backend: backend.into(),
            compiled: names(|backend| backend.kind.is_some()),
        });
    }
    let found = known.devices().into_iter().nth(index);
    let device = found.ok_or_else(|| not_present(name))?;
    kernels::keep_for(&device);
    Ok((device, format!("{backend}:{index}")))
}

/// Says once which kernels the user turned off.
fn warn_of_kernels_off() -> Result<(), UnknownKernel> {
    static ONCE: Once = Once::new();
    let off: Vec<_> = off::turned_off()?.into_iter().map(Kernel::name).collect();
    if !off.is_empty() {
        let names = off.join(", ");
        ONCE.call_once(|| warn!("Burn's operations compute in place of kernels: {}={names}", off::VARIABLE));
    }
    Ok(())
}

/// The devices to distribute among ranks, of the same backend as the device that was [found](find) for `asked`: all
/// of them, unless `asked` has an index. If any is not a card, such as a software rasteriser, only the device found.
pub fn alike(asked: &str, found: &str) -> Vec<Device> {
    let (backend, index) = found.split_once(':').unwrap_or((found, "0"));
    let Some(known) = BACKENDS.iter().find(|known| known.name == backend) else { return Vec::new() };
    let devices = known.devices();
    match asked.contains(':') || !devices.iter().all(is_card) {
        true => devices.into_iter().skip(index.parse().unwrap_or(0)).take(1).collect(),
        false => devices,
    }
}

/// The first card, or else the CPU.
fn automatic() -> Result<(Device, String), DeviceError> {
    let found = BACKENDS.iter().find_map(|backend| {
        let mut devices = backend.devices().into_iter().enumerate();
        let (index, device) = devices.find(|(_, device)| backend.name == "cpu" || is_card(device))?;
        Some((device, format!("{}:{index}", backend.name)))
    });
    found.ok_or_else(|| not_present("device"))
}

/// Whether the device belongs to CubeCL, which compiles kernels at their first use.
fn is_cube(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    return matches!(device.as_dispatch(), burn::backend::DispatchDevice::Cube(_));
    #[cfg(not(feature = "cube"))]
    {
        let _ = device;
        false
    }
}

/// Whether the device is a physical card. wgpu also finds software rasterisers, which are slower than the CPU
/// backend.
fn is_card(device: &Device) -> bool {
    kernels::start(device);
    #[cfg(feature = "cube")]
    return device.identity().is_some_and(|identity| identity.physical.is_some());
    #[cfg(not(feature = "cube"))]
    {
        let _ = device;
        false
    }
}

fn not_present(asked: &str) -> DeviceError {
    DeviceError::NotPresent { asked: asked.into(), present: names(|backend| !backend.devices().is_empty()) }
}

fn names(kept: impl Fn(&Backend) -> bool) -> String {
    let names: Vec<_> = BACKENDS.iter().filter(|backend| kept(backend)).map(|backend| backend.name).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
