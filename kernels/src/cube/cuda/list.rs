//! One kernel over a list of tensors, such as all parameters of a model.
//!
//! A kernel of CubeCL repeats its body for each tensor, so that only some tensors fit into one. Here the body stands once,
//! and a block finds where its tensor is.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

use burn::backend::CubeDevice;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl_runtime::kernel::BufferIOAttr;
use cudarc::driver::sys as driver;
use cudarc::nvrtc::sys as nvrtc;

use super::{Form, launch_mixed};
use crate::cube::{PART, UNITS};

/// A buffer of each tensor, or of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Buffer {
    pub dtype: DType,
    pub is_read: bool,
    pub is_written: bool,
}

impl Buffer {
    /// One that is read.
    pub fn read(x: &CubeTensor) -> Self {
        Self { dtype: x.dtype, is_read: true, is_written: false }
    }

    /// One that is written.
    pub fn written(x: &CubeTensor) -> Self {
        Self { dtype: x.dtype, is_read: false, is_written: true }
    }

    /// One that is changed.
    pub fn changed(x: &CubeTensor) -> Self {
        Self { dtype: x.dtype, is_read: true, is_written: true }
    }

    /// Returns its type in CUDA C++.
    fn element(self) -> &'static str {
        match self.dtype {
            DType::F32 => "float",
            DType::BF16 => "__nv_bfloat16",
            DType::F16 => "__half",
            other => unreachable!("kernels over many tensors compute no {other:?}"),
        }
    }
}

/// What is done with the elements of each tensor: of CUDA C++.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    /// The first word of the kernel's name.
    pub name: &'static str,
    /// Of each tensor.
    pub buffers: Vec<Buffer>,
    /// `s0` and so on in the text: buffers that all tensors share.
    pub shared: Vec<Buffer>,
    /// Statements that come first. The numbers that [`launch`](Self::launch) is given are `constant`.
    pub before: String,
    /// Statements that change the elements `x0` and so on of the buffers, floats, and may add to `sum`. A buffer that is not
    /// read has -0.0, which changes no number that it is added to.
    pub body: String,
    /// Statements that come last, for the whole block: `sum_of_block(sum)` is the sum of its units, to the first one.
    pub after: &'static str,
}

/// A pass over so many tensors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct List {
    pass: Pass,
    count: usize,
    constants: usize,
    /// Of constants: one for all tensors, or one for each.
    sets: usize,
}

/// Returns whether the kernels compute on a device.
pub(crate) fn serves(device: &CubeDevice) -> bool {
    matches!(device, CubeDevice::Cuda(_))
}

/// Returns the most tensors of one launch, if each has so many buffers and constants: what the parameters of a kernel have room
/// for.
pub(crate) fn most(buffers: usize, constants: usize) -> usize {
    /// Bytes of parameters besides those of tensors.
    const OTHERS: usize = 256;
    /// CubeCL's limit of buffers, without those that tensors share.
    const BUFFERS: usize = 1000;
    ((parameters() - OTHERS) / (8 * (buffers + 1) + 4 * constants)).min(BUFFERS / buffers)
}

/// Returns the most bytes that the parameters of a kernel may have: more from CUDA 12.1 on, of the compiler and the driver.
#[allow(unsafe_code)] // CUDA's driver and compiler are C libraries.
fn parameters() -> usize {
    static FOUND: OnceLock<usize> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let (mut of_driver, mut major, mut minor) = (0, 0, 0);
        // SAFETY: both are asked for numbers, and the kernel runs on a device that both have served.
        let known = unsafe {
            driver::cuDriverGetVersion(&mut of_driver) == driver::CUresult::CUDA_SUCCESS
                && nvrtc::nvrtcVersion(&mut major, &mut minor) == nvrtc::nvrtcResult::NVRTC_SUCCESS
        };
        match known && of_driver >= 12_010 && (major, minor) >= (12, 1) {
            true => 32_000,
            false => 4_000,
        }
    })
}

impl Pass {
    /// Launches the pass over tensors, of which none is empty, with the buffers of each, and numbers: one set for all tensors,
    /// or one for each. `done` is `info.done`.
    pub fn launch(
        &self,
        tensors: &[Vec<&CubeTensor>],
        shared: &[&CubeTensor],
        constants: &[&[f32]],
        done: usize,
    ) {
        let lengths = tensors.iter().map(|buffers| buffers[0].meta.num_elements());
        let (mut ends, mut last, mut blocks) = (Vec::new(), Vec::new(), 0);
        for length in lengths {
            blocks += length.div_ceil(PART);
            ends.push(blocks as u32);
            last.push(((length - 1) % PART + 1) as u32);
        }
        // An array has at least one element.
        let none: &[&[f32]] = &[&[0.0]];
        let sets = if constants.iter().all(|set| set.is_empty()) { none } else { constants };
        let bits = sets.iter().copied().flatten().map(|constant| constant.to_bits());
        let all: Vec<u32> = ends.into_iter().chain(last).chain(bits).chain([done as u32]).collect();
        let words = all.chunks(2).map(|pair| {
            let high = pair.get(1).copied().unwrap_or(0);
            u64::from(pair[0]) | u64::from(high) << 32
        });
        let buffers = tensors.iter().flat_map(|tensor| tensor.iter().zip(&self.buffers));
        let arguments = buffers.chain(shared.iter().zip(&self.shared)).map(|(x, buffer)| {
            let attribute = match (buffer.is_read, buffer.is_written) {
                (_, false) => BufferIOAttr::ReadOnly,
                (false, true) => BufferIOAttr::WriteOnly,
                (true, true) => BufferIOAttr::ReadWrite,
            };
            (*x, attribute)
        });
        let list =
            List { pass: self.clone(), count: tensors.len(), constants: sets[0].len(), sets: sets.len() };
        launch_mixed(list, blocks, arguments, words.collect());
    }
}

impl Form for List {
    const UNITS: u32 = UNITS;

    fn entrypoint(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{}_{}_{:08x}", self.pass.name, self.count, hasher.finish() as u32)
    }

    fn text(&self) -> String {
        let Self { pass: Pass { buffers, shared, before, body, after, .. }, count, constants, sets } = self;
        let each = |one: &dyn Fn(usize, &Buffer) -> String| -> Vec<String> {
            buffers.iter().enumerate().map(|(at, buffer)| one(at, buffer)).collect()
        };
        let lines = |one: &dyn Fn(usize, &Buffer) -> String| each(one).join(" ");
        let has = |dtype| u8::from(buffers.iter().chain(shared).any(|buffer| buffer.dtype == dtype));
        let mut parameters = Vec::new();
        let mut places = String::new();
        for tensor in 0..*count {
            parameters.extend(each(&|at, buffer| format!("{} *p{tensor}_{at}", buffer.element())));
            let found = lines(&|at, _| format!("b{at} = p{tensor}_{at};"));
            // The last one is for every other number too, so that the compiler sees that all have a place.
            let label = if tensor + 1 == *count { "default".into() } else { format!("case {tensor}") };
            let _ = writeln!(places, "{label}: {found} break;");
        }
        let shared = shared.iter().enumerate();
        parameters.extend(shared.map(|(at, buffer)| format!("{} *s{at}", buffer.element())));
        let replaced = [
            ("KERNEL", self.entrypoint()),
            ("PARAMETERS", parameters.join(", ")),
            ("BUFFERS", lines(&|at, buffer| format!("{} *b{at};", buffer.element()))),
            ("PLACES", places),
            ("BEGINS", lines(&|at, _| format!("b{at} += begin;"))),
            ("BEFORE", before.clone()),
            ("NUMBERS", each(&|at, _| format!("float &x{at}")).join(", ")),
            ("BODY", body.clone()),
            ("ADDRESSES", each(&|at, _| format!("(u64)b{at}")).join(" | ")),
            (
                "READS",
                lines(&|at, buffer| match buffer.is_read {
                    true => format!("float x{at}[TOGETHER]; read(x{at}, b{at} + at);"),
                    false => format!("float x{at}[TOGETHER]; for (float &x : x{at}) x = -0.0f;"),
                }),
            ),
            ("EACH", each(&|at, _| format!("x{at}[i]")).join(", ")),
            ("WRITES", written(buffers, |at| format!("write(b{at} + at, x{at});"))),
            (
                "READS_ONE",
                lines(&|at, buffer| match buffer.is_read {
                    true => format!("float x{at} = wide(b{at}[at]);"),
                    false => format!("float x{at} = -0.0f;"),
                }),
            ),
            ("ONE", each(&|at, _| format!("x{at}")).join(", ")),
            ("WRITES_ONE", written(buffers, |at| format!("narrow(b{at}[at], x{at});"))),
            ("AFTER", (*after).into()),
        ];
        let mut text = String::new();
        for (dtype, header) in [(DType::BF16, "cuda_bf16.h"), (DType::F16, "cuda_fp16.h")] {
            if has(dtype) != 0 {
                let _ = writeln!(text, "#include <{header}>");
            }
        }
        let defined = [
            ("COUNT", *count),
            ("CONSTANTS", *constants),
            ("SETS", *sets),
            ("PART", PART),
            ("HAS_BF16", has(DType::BF16).into()),
            ("HAS_F16", has(DType::F16).into()),
        ];
        for (name, value) in defined {
            let _ = writeln!(text, "#define {name} {value}");
        }
        text + &with_replaced(include_str!("list.cu"), &replaced)
    }
}

/// Returns statements for the buffers that are written.
fn written(buffers: &[Buffer], one: impl Fn(usize) -> String) -> String {
    let written = buffers.iter().enumerate().filter(|(_, buffer)| buffer.is_written);
    written.map(|(at, _)| one(at)).collect::<Vec<_>>().join(" ")
}

/// Returns the text with whole words replaced.
fn with_replaced(text: &str, replaced: &[(&str, String)]) -> String {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = String::with_capacity(text.len());
    for part in text.split_inclusive(|letter| !is_of_word(letter)) {
        let end = part.find(|letter| !is_of_word(letter)).unwrap_or(part.len());
        let (word, rest) = part.split_at(end);
        let new = replaced.iter().find(|(old, _)| *old == word);
        found.push_str(new.map_or(word, |(_, new)| new));
        found.push_str(rest);
    }
    found
}
