//! Kernels of CUDA C++ as CubeCL launches them: it compiles the text with NVRTC, keeps what is compiled as it keeps that of
//! its own kernels, and queues the launches in the same order.
//!
//! ```text
//! list.rs  one kernel over a list of tensors
//! list.cu  its text
//! ```

mod list;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::OnceLock;

use burn::backend::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::ir::UIntKind;
use cubecl::ir::metadata::Info as Metadata;
use cubecl::prelude::*;
use cubecl::{CubeKernel, PrecompiledSource};
use cubecl_runtime::kernel::BufferIOAttr;
use cubecl_runtime::server::{KernelArguments, MetadataBindingInfo};
use cudarc::driver::result::{device, init};
use cudarc::driver::sys::CUdevice_attribute;

pub(crate) use list::{Buffer, Pass, most, serves};

/// Returns the compute capability of a CUDA device: major and minor.
#[allow(unsafe_code)] // CUDA's driver is a C library.
pub(crate) fn capability(device: &CubeDevice) -> Option<(i32, i32)> {
    /// Of the devices of this machine, by number.
    static FOUND: OnceLock<Vec<Option<(i32, i32)>>> = OnceLock::new();
    let CubeDevice::Cuda(device) = device else { return None };
    let of = |index| {
        let device = device::get(index).ok()?;
        // SAFETY: the handle is a device's.
        let number = |of| unsafe { device::get_attribute(device, of) }.ok();
        Some((
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    };
    let found = FOUND.get_or_init(|| {
        let count = init().and_then(|()| device::get_count()).unwrap_or(0);
        (0..count).map(of).collect()
    });
    found.get(device.index).copied().flatten()
}

/// What a kernel's text is made from: the program decides the text of a form, and CubeCL keeps what each program compiled
/// apart.
pub(crate) trait Form: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    /// The units of a block.
    const UNITS: u32;

    /// Returns the kernel's name, as a profile shows it. No other text has it.
    fn entrypoint(&self) -> String;

    /// Returns the text. Its parameters are the tensors, then the words of a struct.
    fn text(&self) -> String;
}

/// A kernel that is queued.
#[derive(Clone)]
struct Kernel<F>(F);

impl<F: Form> KernelMetadata for Kernel<F> {
    fn name(&self) -> &'static str {
        std::any::type_name::<F>()
    }

    fn id(&self) -> KernelId {
        KernelId::new::<Self>().cube_dim(CubeDim::new_1d(F::UNITS).into()).info(self.0.clone())
    }

    fn address_type(&self) -> ElemType {
        UIntKind::U64.into()
    }
}

impl<F: Form> CubeKernel for Kernel<F> {
    /// Nothing: CubeCL asks for it, and compiles the text.
    fn define(&self) -> KernelDefinition {
        let units = CubeDim::new_1d(F::UNITS).into();
        let settings = KernelSettings::new(units, ExecutionMode::Unchecked, AddressType::U64);
        KernelDefinition { body: Scope::root(settings.clone()), settings, info: Metadata::default() }
    }

    fn source(&self) -> Option<PrecompiledSource> {
        let (source, entrypoint_name) = (self.0.text(), self.0.entrypoint());
        Some(PrecompiledSource { source, entrypoint_name, lang: "cuda" })
    }
}

/// Launches a kernel of so many blocks, with tensors that it reads and then others that it writes.
///
/// # Panics
///
/// If it writes nothing.
pub(crate) fn launch<F: Form>(
    form: F,
    blocks: usize,
    reads: &[CubeTensor],
    writes: &[&CubeTensor],
    words: Vec<u64>,
) {
    let reads = reads.iter().map(|x| (x, BufferIOAttr::ReadOnly));
    launch_mixed(form, blocks, reads.chain(writes.iter().map(|x| (*x, BufferIOAttr::WriteOnly))), words);
}

/// Launches a kernel of so many blocks, with tensors in any order.
///
/// # Panics
///
/// If there are no tensors.
fn launch_mixed<'a, F: Form>(
    form: F,
    blocks: usize,
    tensors: impl IntoIterator<Item = (&'a CubeTensor, BufferIOAttr)>,
    words: Vec<u64>,
) {
    let blocks = u32::try_from(blocks).expect("a device's memory holds fewer blocks of rows");
    let mut arguments = KernelArguments::new();
    let mut client = None;
    for (x, attribute) in tensors {
        arguments = arguments.with_buffer_io(x.handle.clone().binding(), attribute);
        client = Some(&x.client);
    }
    // None of them is dynamic: all are a parameter of the kernel.
    let all = words.len();
    let arguments = arguments.with_info(MetadataBindingInfo::new(words, all));
    let client = client.expect("a kernel has tensors");
    client.launch(Box::new(Kernel(form)), CubeCount::Static(blocks, 1, 1), arguments);
}
