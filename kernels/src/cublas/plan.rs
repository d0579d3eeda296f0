//! What the library has chosen for a product.
#![allow(unsafe_code)] // cuBLASLt is a C library.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use burn::tensor::DType;
use cubecl_runtime::client::Client;
use tracing::warn;

use super::enqueue::{self, DevicePointer};
use super::layout::{Adds, Layout, Matrix};
use super::library::{Choice, Library, Opaque, library};

/// The most memory that an algorithm may take beside its operands: what NVIDIA recommends for Hopper. Others take less.
const WORKSPACE: u64 = 32 << 20;

// Constants of the library's header, by its names.
const CUBLAS_COMPUTE_32F: c_int = 68;
const CUBLAS_COMPUTE_32F_FAST_TF32: c_int = 77;
const CUDA_R_32F: c_int = 0;
const CUDA_R_16F: c_int = 2;
const CUDA_R_16BF: c_int = 14;
const CUBLAS_OP_T: c_int = 1;
const CUBLASLT_MATMUL_DESC_TRANSA: c_int = 3;
const CUBLASLT_MATMUL_DESC_TRANSB: c_int = 4;
const CUBLASLT_MATMUL_DESC_EPILOGUE: c_int = 7;
const CUBLASLT_MATMUL_DESC_BIAS_POINTER: c_int = 8;
const CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: c_int = 17;
const CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: c_int = 18;
const CUBLASLT_EPILOGUE_BIAS: c_int = 4;
const CUBLASLT_EPILOGUE_BGRADA: c_int = 256;
const CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: c_int = 5;
const CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: c_int = 6;
const CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: c_int = 1;
const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: c_int = 5;
const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: c_int = 6;
const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: c_int = 7;
const CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: c_int = 8;

/// A product's descriptors, and the library's first choice of an algorithm. It is chosen by its own estimate, never by
/// a race, so it is the same in each run.
pub struct Plan {
    library: &'static Library,
    handle: Opaque,
    layout: Layout,
    product: Opaque,
    /// Of the right operand, the left one, and the product, which are the library's A, B, and both C and D.
    matrices: [Opaque; 3],
    choice: Choice,
}

// SAFETY: the library may be called from any thread. The descriptor of the product, which each call changes, is used on the
// thread of its device alone.
unsafe impl Send for Plan {}
// SAFETY: as above.
unsafe impl Sync for Plan {}

/// The library's handle of a device, and the products that have been planned on it.
struct DevicePlans {
    handle: Opaque,
    plans: HashMap<Layout, Result<Arc<Plan>, String>>,
}

// SAFETY: the library may be called from any thread.
unsafe impl Send for DevicePlans {}

impl Plan {
    /// Returns the plan of a product on a client's device. The first of its kind waits until the device's thread has
    /// queued what came before.
    ///
    /// # Errors
    ///
    /// The library has no algorithm for it.
    pub fn of(client: &Client, layout: Layout) -> Result<Arc<Self>, String> {
        static DEVICES: LazyLock<Mutex<HashMap<u16, DevicePlans>>> = LazyLock::new(Mutex::default);
        let device = client.service_id().device.index_id;
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = devices.get(&device).and_then(|planned| planned.plans.get(&layout)) {
            return known.clone();
        }
        let library = library()?;
        let known = devices.get(&device).map(|planned| DevicePointer(planned.handle));
        let planned = enqueue::on_thread_of(client, {
            let layout = layout.clone();
            move || {
                let handle = known.map_or_else(|| handle(library), |DevicePointer(handle)| Ok(handle))?;
                Ok((DevicePointer(handle), Self::new(library, handle, layout).map(Arc::new)))
            }
        });
        let (DevicePointer(handle), plan) = planned?;
        let plan = plan.map_err(|why| format!("{}: {why}", described(&layout)));
        let planned = devices.entry(device).or_insert_with(|| DevicePlans { handle, plans: HashMap::new() });
        if let Err(why) = &plan {
            warn!("{why}; CubeCL computes it, many times slower in half precision");
        }
        planned.plans.insert(layout, plan.clone());
        plan
    }

    fn new(library: &'static Library, handle: Opaque, layout: Layout) -> Result<Self, String> {
        let Layout { rows, columns, depth, .. } = layout;
        let [from, to] = layout.dtypes;
        let [of_lhs, of_rhs] = match layout.formats {
            None => [data_type(from); 2],
            Some(formats) => formats.map(|format| format as c_int),
        };
        let compute = if from == DType::F32 { CUBLAS_COMPUTE_32F_FAST_TF32 } else { CUBLAS_COMPUTE_32F };
        let mut product = null_mut();
        // SAFETY: the library writes a descriptor.
        let created = unsafe { (library.cublasLtMatmulDescCreate)(&mut product, compute, CUDA_R_32F) };
        library.check("cublasLtMatmulDescCreate", created)?;
        let matrices = [
            matrix(library, &layout.rhs, [depth, columns], of_rhs, layout.batch)?,
            matrix(library, &layout.lhs, [rows, depth], of_lhs, layout.batch)?,
            matrix(library, &layout.out, [rows, columns], data_type(to), layout.batch)?,
        ];
        let mut plan = Self { library, handle, layout, product, matrices, choice: Choice::default() };
        let turned =
            [(CUBLASLT_MATMUL_DESC_TRANSA, plan.layout.rhs), (CUBLASLT_MATMUL_DESC_TRANSB, plan.layout.lhs)];
        for (which, matrix) in turned {
            if matrix.turned {
                plan.set(which, &CUBLAS_OP_T)?;
            }
        }
        let epilogue = match plan.layout.adds {
            Adds::Nothing | Adds::Total => None,
            Adds::Bias => Some(CUBLASLT_EPILOGUE_BIAS),
            // To the library, our right operand is A, and its depth is summed.
            Adds::Sums => Some(CUBLASLT_EPILOGUE_BGRADA),
        };
        if let Some(epilogue) = epilogue {
            plan.set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            // The choice needs a place, which each call replaces.
            plan.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &WORKSPACE)?;
        }
        if plan.layout.formats.is_some() {
            plan.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &WORKSPACE)?;
            plan.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &WORKSPACE)?;
        }
        plan.choice = plan.chosen()?;
        Ok(plan)
    }

    /// Returns the library's first choice.
    fn chosen(&self) -> Result<Choice, String> {
        let library = self.library;
        let mut preference = null_mut();
        // SAFETY: the library writes a descriptor.
        let created = unsafe { (library.cublasLtMatmulPreferenceCreate)(&mut preference) };
        library.check("cublasLtMatmulPreferenceCreate", created)?;
        let bytes = |aligned: u64| (aligned as u32).to_ne_bytes();
        let Layout { lhs, rhs, out, .. } = &self.layout;
        let limits = [
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, bytes(rhs.aligned)),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, bytes(lhs.aligned)),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, bytes(out.aligned)),
            (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, bytes(out.aligned)),
        ];
        let set = |which, value: &[u8]| {
            // SAFETY: the library copies a value of this size.
            let set = unsafe {
                let set = library.cublasLtMatmulPreferenceSetAttribute;
                set(preference, which, value.as_ptr().cast(), value.len())
            };
            library.check("cublasLtMatmulPreferenceSetAttribute", set)
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE.to_ne_bytes())?;
        limits.iter().try_for_each(|(which, value)| set(*which, value))?;
        let (mut choice, mut found) = (Choice::default(), 0);
        let [a, b, d] = self.matrices;
        // SAFETY: the descriptors are live, and the library writes at most one choice.
        let asked = unsafe {
            let ask = library.cublasLtMatmulAlgoGetHeuristic;
            let asked = ask(self.handle, self.product, a, b, d, d, preference, 1, &mut choice, &mut found);
            (library.cublasLtMatmulPreferenceDestroy)(preference);
            asked
        };
        library.check("cublasLtMatmulAlgoGetHeuristic", asked)?;
        library.check("cublasLtMatmulAlgoGetHeuristic", choice.status)?;
        if found == 0 {
            return Err(format!("{} has no algorithm for it", library.name));
        }
        Ok(choice)
    }

    /// Returns the bytes that a call needs beside its operands.
    pub fn workspace(&self) -> usize {
        self.choice.workspace
    }

    /// Computes on a stream. `operands` are the left and the right one, what is added if anything is, and the scales of both
    /// operands if they are codes; `out` is the
    /// product, its sums if they are computed, and the [workspace](Self::workspace) if it needs one.
    ///
    /// # Errors
    ///
    /// The library refuses.
    pub fn call(
        &self,
        stream: DevicePointer,
        operands: &[DevicePointer],
        out: &[DevicePointer],
    ) -> Result<(), String> {
        let (lhs, rhs, to) = (operands[0], operands[1], out[0]);
        let (mut c, mut beta, mut workspace) = (to, 0.0, out.get(1));
        match self.layout.adds {
            Adds::Nothing => {}
            Adds::Bias => self.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands[2])?,
            Adds::Total => (c, beta) = (operands[2], 1.0),
            Adds::Sums => {
                self.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &out[1])?;
                workspace = out.get(2);
            }
        }
        if let (Some(_), [.., of_lhs, of_rhs]) = (self.layout.formats, operands) {
            self.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_rhs)?;
            self.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_lhs)?;
        }
        let aligned =
            [(lhs, self.layout.lhs), (rhs, self.layout.rhs), (to, self.layout.out), (c, self.layout.out)];
        if aligned.iter().any(|(place, matrix)| !(place.0 as u64).is_multiple_of(matrix.aligned)) {
            return Err(format!("{}: an operand is not aligned as CubeCL promises", described(&self.layout)));
        }
        let [of_a, of_b, of_d] = self.matrices;
        // SAFETY: the places are those of tensors that stand as the descriptors say, and live until the stream has done
        // this. The library reads both factors during the call.
        let called = unsafe {
            (self.library.cublasLtMatmul)(
                self.handle,
                self.product,
                &1.0,
                rhs.0,
                of_a,
                lhs.0,
                of_b,
                &beta,
                c.0,
                of_d,
                to.0,
                of_d,
                &self.choice.algorithm,
                workspace.map_or(null_mut(), |place| place.0),
                self.choice.workspace,
                stream.0,
            )
        };
        self.library.check("cublasLtMatmul", called).map_err(|why| {
            let off = format!("set {} to off to compute without the library", super::library::VARIABLE);
            format!("{}: {why}; {off}", described(&self.layout))
        })
    }

    /// Sets an attribute of the product.
    fn set<T: Copy>(&self, which: c_int, value: &T) -> Result<(), String> {
        // SAFETY: the library copies a value of this size.
        let set = unsafe {
            let set = self.library.cublasLtMatmulDescSetAttribute;
            set(self.product, which, from_ref(value).cast(), size_of::<T>())
        };
        self.library.check("cublasLtMatmulDescSetAttribute", set)
    }
}

/// Names a product.
fn described(layout: &Layout) -> String {
    let Layout { rows, columns, depth, batch, dtypes: [from, to], adds, formats, .. } = layout;
    let added = match adds {
        Adds::Nothing => "",
        Adds::Bias => ", and a bias",
        Adds::Total => ", and what is there",
        Adds::Sums => ", and sums",
    };
    let many = if *batch == 1 { String::new() } else { format!("{batch} times ") };
    let from = formats.map_or_else(|| format!("{from:?}"), |[lhs, rhs]| format!("{lhs:?} and {rhs:?}"));
    format!("the product of {many}[{rows}, {depth}] and [{depth}, {columns}] in {from} to {to:?}{added}")
}

/// Creates the library's handle of the device whose context is current.
fn handle(library: &Library) -> Result<Opaque, String> {
    let mut handle = null_mut();
    // SAFETY: the library writes a handle.
    library.check("cublasLtCreate", unsafe { (library.cublasLtCreate)(&mut handle) })?;
    Ok(handle)
}

/// Returns the library's description of a matrix `[rows, columns]`, or of many.
fn matrix(
    library: &Library,
    matrix: &Matrix,
    [rows, columns]: [usize; 2],
    data_type: c_int,
    batch: usize,
) -> Result<Opaque, String> {
    // What stands row by row stands column by column when it is transposed.
    let [run, runs] =
        if matrix.turned { [rows, columns] } else { [columns, rows] }.map(|length| length as u64);
    let mut described = null_mut();
    // SAFETY: the library writes a descriptor.
    let created = unsafe {
        (library.cublasLtMatrixLayoutCreate)(&mut described, data_type, run, runs, matrix.leading as i64)
    };
    library.check("cublasLtMatrixLayoutCreate", created)?;
    let set = |which, value: *const c_void, bytes| {
        // SAFETY: the library copies a value of this size.
        let set = unsafe { (library.cublasLtMatrixLayoutSetAttribute)(described, which, value, bytes) };
        library.check("cublasLtMatrixLayoutSetAttribute", set)
    };
    if batch > 1 {
        let (count, apart) = (batch as i32, matrix.apart as i64);
        set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, from_ref(&count).cast(), size_of::<i32>())?;
        set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, from_ref(&apart).cast(), size_of::<i64>())?;
    }
    Ok(described)
}

/// Returns the library's name of a dtype.
fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => CUDA_R_32F,
        DType::F16 => CUDA_R_16F,
        DType::BF16 => CUDA_R_16BF,
        other => unreachable!("products are of f32, f16 and bf16, not {other:?}"),
    }
}
