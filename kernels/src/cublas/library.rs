//! cuBLASLt's functions, found when they are first needed.
#![allow(unsafe_code)] // cuBLASLt is a C library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

/// The variable that names the library's file, or turns it off.
pub const VARIABLE: &str = "FIREBRICK_CUBLASLT";

/// The names of its file, the newest first. Only packages for developers have the last.
#[cfg(not(windows))]
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
#[cfg(windows)]
const NAMES: [&str; 2] = ["cublasLt64_13.dll", "cublasLt64_12.dll"];

/// The first version that is used, 12.0. The functions and constants are those of its header.
const OLDEST: usize = 120_000;

/// A descriptor or a handle of the library.
pub type Opaque = *mut c_void;

/// `cublasStatus_t`; 0 is success.
pub type Status = c_int;

/// `cublasLtMatmulHeuristicResult_t`: an algorithm, and what it takes.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Choice {
    pub algorithm: [u64; 8],
    pub workspace: usize,
    pub status: Status,
    waves: f32,
    reserved: [c_int; 4],
}

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The functions, by the library's own names.
        #[allow(non_snake_case)]
        pub struct Library {
            /// The version, and the file.
            pub name: String,
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl Library {
            fn of(file: &libloading::Library, name: String) -> Result<Self, libloading::Error> {
                // SAFETY: these are the types of the library's header since version 12.
                Ok(Self { name, $($name: *unsafe { file.get(concat!(stringify!($name), "\0").as_bytes()) }?,)* })
            }
        }
    };
}

functions! {
    cublasLtCreate(handle: *mut Opaque) -> Status;
    cublasLtGetStatusString(status: Status) -> *const c_char;
    cublasLtMatmulDescCreate(product: *mut Opaque, compute: c_int, scale: c_int) -> Status;
    cublasLtMatmulDescSetAttribute(product: Opaque, which: c_int, value: *const c_void, bytes: usize) -> Status;
    cublasLtMatrixLayoutCreate(matrix: *mut Opaque, dtype: c_int, rows: u64, columns: u64, leading: i64) -> Status;
    cublasLtMatrixLayoutSetAttribute(matrix: Opaque, which: c_int, value: *const c_void, bytes: usize) -> Status;
    cublasLtMatmulPreferenceCreate(preference: *mut Opaque) -> Status;
    cublasLtMatmulPreferenceSetAttribute(
        preference: Opaque, which: c_int, value: *const c_void, bytes: usize
    ) -> Status;
    cublasLtMatmulPreferenceDestroy(preference: Opaque) -> Status;
    cublasLtMatmulAlgoGetHeuristic(
        handle: Opaque, product: Opaque, a: Opaque, b: Opaque, c: Opaque, d: Opaque, preference: Opaque,
        wanted: c_int, choices: *mut Choice, found: *mut c_int
    ) -> Status;
    cublasLtMatmul(
        handle: Opaque, product: Opaque, alpha: *const f32, a: *const c_void, of_a: Opaque, b: *const c_void,
        of_b: Opaque, beta: *const f32, c: *const c_void, of_c: Opaque, d: *mut c_void, of_d: Opaque,
        algorithm: *const [u64; 8], workspace: *mut c_void, bytes: usize, stream: *mut c_void
    ) -> Status;
}

impl Library {
    /// Returns an error if a call failed.
    pub fn check(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a text of its own, which ends with a zero and is never freed.
        let text = unsafe {
            let text = (self.cublasLtGetStatusString)(status);
            if text.is_null() { "unknown".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(format!("{call} of {}: {text} (status {status})", self.name))
    }
}

/// Returns the library.
///
/// # Errors
///
/// It is not installed, too old, or turned off.
pub fn library() -> Result<&'static Library, &'static str> {
    static FOUND: OnceLock<Result<Library, String>> = OnceLock::new();
    FOUND.get_or_init(load).as_ref().map_err(String::as_str)
}

/// Returns the files to try, in order.
fn places() -> Result<Vec<PathBuf>, String> {
    match std::env::var_os(VARIABLE) {
        Some(value) if value == "off" => Err(format!("{VARIABLE} is off")),
        Some(path) => Ok(vec![path.into()]),
        None => {
            let toolkit = std::env::var_os("CUDA_PATH").map(PathBuf::from);
            let folders =
                toolkit.iter().flat_map(|path| ["lib64", "lib", "bin"].map(|folder| path.join(folder)));
            let in_toolkit = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
            Ok(NAMES.map(PathBuf::from).into_iter().chain(in_toolkit).collect())
        }
    }
}

fn load() -> Result<Library, String> {
    let places = places()?;
    // SAFETY: the library's initialisation does not affect this program.
    let mut opened = places.iter().map(|place| (place, unsafe { libloading::Library::new(place) }));
    let Some((place, file)) = opened.find_map(|(place, file)| Some((place, file.ok()?))) else {
        let named = std::env::var_os(VARIABLE).is_some();
        return Err(match named {
            true => format!("{VARIABLE} names no library that can be loaded: {}", places[0].display()),
            false => format!(
                "cuBLASLt is not installed as {} where libraries are looked for; {VARIABLE} can name its file",
                NAMES[0]
            ),
        });
    };
    let failed = |error: libloading::Error| format!("cuBLASLt: {error}");
    // SAFETY: the function has this type in all versions.
    let version = unsafe {
        let get = file.get::<unsafe extern "C" fn() -> usize>(b"cublasLtGetVersion\0");
        get.map_err(failed)?()
    };
    let number = format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100);
    if version < OLDEST {
        return Err(format!(
            "cuBLASLt must be of version 12 or later, found {number} in {}",
            place.display()
        ));
    }
    let library = Library::of(&file, format!("cuBLASLt {number} ({})", place.display())).map_err(failed)?;
    // It stays for as long as the program runs.
    std::mem::forget(file);
    Ok(library)
}
