//! The devices of this machine, and the operations that each supports per number format.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{Backend, DType, DTypeUsage, Dispatch};
use burn::tensor::Device;
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue, ScaleDtype};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{BACKENDS, NumberFormat, automatic, is_cube, kernels};
use crate::memory;

/// The operations that a device supports on numbers of a format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Stores them, and converts them to and from other formats.
    pub storage: bool,
    /// Computes in them.
    pub arithmetic: bool,
    /// Has matrix units, such as tensor cores, that take or produce them.
    pub accelerated: bool,
}

impl Usage {
    /// The names of the supported operations.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names =
            [("storage", self.storage), ("arithmetic", self.arithmetic), ("accelerated", self.accelerated)];
        names.into_iter().filter_map(|(name, can)| can.then_some(name))
    }
}

/// How Burn's tensors can hold a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InBurn {
    /// As a separate dtype.
    Tensor,
    /// As the values of a quantized tensor.
    Quantized,
    /// As the scales of a quantized tensor.
    Scale,
    /// Not at all: no device supports it.
    No,
}

impl InBurn {
    /// How Burn 0.22 supports `format`.
    pub fn of(format: NumberFormat) -> Self {
        match dtype(format) {
            None => Self::No,
            Some(DType::QFloat(_)) if format.mantissa_bits == 0 => Self::Scale,
            Some(DType::QFloat(_)) => Self::Quantized,
            Some(_) => Self::Tensor,
        }
    }
}

/// The dtype for querying a device about a format: its own dtype, or a quantized tensor that holds it.
fn dtype(format: NumberFormat) -> Option<DType> {
    let native = QuantScheme::default().with_store(QuantStore::Native);
    match format.name {
        "f64" => Some(DType::F64),
        "f32" => Some(DType::F32),
        "f16" => Some(DType::F16),
        "bf16" => Some(DType::BF16),
        "fp8 e4m3" => Some(DType::QFloat(native.with_value(QuantValue::E4M3))),
        "fp8 e5m2" => Some(DType::QFloat(native.with_value(QuantValue::E5M2))),
        "fp8 e8m0" => Some(DType::QFloat(native.per_block([32], ScaleDtype::UE8M0))),
        "fp4 e2m1" => {
            let packed = native.with_store(QuantStore::PackedNative(0));
            Some(DType::QFloat(packed.with_value(QuantValue::E2M1)))
        }
        _ => None,
    }
}

/// The operations that `device` supports on `format`, according to Burn.
fn usage(device: &Device, format: NumberFormat) -> Usage {
    let how = InBurn::of(format);
    let Some(dtype) = dtype(format) else { return Usage::default() };
    // Flex accepts every quantized scheme, but stores 8-bit integers whatever the scheme says: a 448 in fp8 e4m3
    // comes back as 127.
    if how != InBurn::Tensor && !is_cube(device) {
        return Usage::default();
    }
    let usage = Dispatch::dtype_usage(device.as_dispatch(), dtype);
    // Scales are only stored; operations on the integers that they scale do not count.
    let values = how != InBurn::Scale;
    Usage {
        storage: usage.contains(DTypeUsage::Storage),
        arithmetic: values && usage.contains(DTypeUsage::Arithmetic),
        accelerated: values && usage.contains(DTypeUsage::Accelerated),
    }
}

/// A device of this machine.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// The name to request it by, such as `cuda:0`.
    pub name: String,
    /// Whether `auto` selects it.
    pub auto: bool,
    /// The hardware's own name, if known.
    pub hardware: Option<String>,
    /// Bytes of memory, if known: for the CPU, those of the machine. Burn does not report a card's memory.
    pub memory_bytes: Option<u64>,
    /// The library that multiplies matrices on a CUDA device: its name, version and file.
    pub product_library: Option<&'static str>,
    /// Why a CUDA device multiplies with CubeCL's kernels, which are many times slower.
    pub no_product_library: Option<&'static str>,
    /// The operations for each of [`NumberFormat::all`]; `None` if the device exists but cannot be opened.
    #[serde(serialize_with = "by_name")]
    pub usage: Option<Vec<Usage>>,
}

/// All devices of the compiled backends.
///
/// ```
/// let listing = firebrick::device::Listing::of_this_machine();
/// let cpu = listing.devices.iter().find(|device| device.name == "cpu:0").unwrap();
/// let f32 = listing.formats.iter().position(|format| format.numbers.name == "f32").unwrap();
/// assert!(cpu.usage.as_ref().unwrap()[f32].arithmetic);
/// println!("{listing}");
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct Listing {
    /// The devices, in the order in which `auto` tries them.
    pub devices: Vec<Listed>,
    /// The formats, from the widest to the narrowest.
    pub formats: Vec<ListedFormat>,
}

/// A format, and how Burn supports it.
#[derive(Clone, Debug, Serialize)]
pub struct ListedFormat {
    /// The format's numeric limits, the same on all devices.
    #[serde(flatten)]
    pub numbers: NumberFormat,
    /// How tensors can hold it.
    pub in_burn: InBurn,
}

impl Listing {
    /// Lists the devices of this machine, opening each one.
    pub fn of_this_machine() -> Self {
        let auto = automatic().ok().map(|(_, name)| name);
        let mut devices = Vec::new();
        for backend in BACKENDS {
            for (index, device) in backend.devices().iter().enumerate() {
                let name = format!("{}:{index}", backend.name);
                devices.push(Listed::new(device, auto.as_deref() == Some(&*name), name));
            }
        }
        let formats = NumberFormat::all().iter();
        let formats = formats.map(|&numbers| ListedFormat { numbers, in_burn: InBurn::of(numbers) });
        Self { devices, formats: formats.collect() }
    }
}

impl Listed {
    fn new(device: &Device, auto: bool, name: String) -> Self {
        // A failing driver panics here, when the device is opened.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            kernels::start(device);
            let usage = NumberFormat::all().iter().map(|&format| usage(device, format)).collect();
            (hardware(device), usage)
        }));
        let (hardware, usage) = opened.map_or((None, None), |(name, usage)| (name, Some(usage)));
        let memory_bytes = (!is_cube(device)).then(memory::of_machine).flatten();
        let library = firebrick_kernels::product_library(device);
        let product_library = library.and_then(Result::ok);
        let no_product_library = library.and_then(Result::err);
        Self { name, auto, hardware, memory_bytes, product_library, no_product_library, usage }
    }
}

/// The hardware's own name.
pub(super) fn hardware(device: &Device) -> Option<String> {
    #[cfg(feature = "cube")]
    if let Some(identity) = device.identity() {
        return Some(identity.name);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    (!is_cube(device)).then(|| format!("{}, {threads} threads", processor()))
}

/// The card behind the device, as all processes of a machine name it; empty if it is none or is not known.
pub(crate) fn card(device: &Device) -> String {
    #[cfg(feature = "cube")]
    if let Some(card) = device.identity().and_then(|identity| identity.physical) {
        return format!("{card:?}");
    }
    let _ = device;
    String::new()
}

/// The processor's name, if the system reports it.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name"));
    name.map_or(std::env::consts::ARCH, |name| name.trim_start_matches([' ', '\t', ':'])).into()
}

/// Serializes the usage as an object with the formats' names as keys.
fn by_name<S: Serializer>(usage: &Option<Vec<Usage>>, serializer: S) -> Result<S::Ok, S::Error> {
    let Some(usage) = usage else { return serializer.serialize_none() };
    let mut map = serializer.serialize_map(Some(usage.len()))?;
    for (format, usage) in NumberFormat::all().iter().zip(usage) {
        map.serialize_entry(format.name, &usage.names().collect::<Vec<_>>())?;
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;

    #[test]
    fn the_cpu_computes_in_what_burn_has_tensors_of() {
        let listing = Listing::of_this_machine();
        let cpu = listing.devices.iter().find(|device| device.name == "cpu:0").unwrap();
        for (format, usage) in listing.formats.iter().zip(cpu.usage.as_ref().unwrap()) {
            let tensor = format.in_burn == InBurn::Tensor;
            let expected = Usage { storage: tensor, arithmetic: tensor, accelerated: false };
            assert_eq!(*usage, expected, "{}", format.numbers.name);
        }
        assert_eq!(listing.devices.iter().filter(|device| device.auto).count(), 1);
    }

    /// Why Flex's own report on quantized formats is not used. If this test fails, it can be.
    #[test]
    fn flex_holds_integers_in_place_of_fp8() {
        let Some(DType::QFloat(scheme)) = dtype(NumberFormat::named("fp8 e4m3").unwrap()) else {
            panic!("fp8 is held by a quantized tensor")
        };
        let values = [448.0, 1.125];
        let held = Tensor::<1>::from_data(values, &Device::flex()).quantize_dynamic(&scheme).dequantize();
        let held: Vec<f32> = held.into_data().iter().collect();
        assert!(values.iter().zip(&held).any(|(value, held)| (value - held).abs() > 0.1), "{held:?}");
    }
}
