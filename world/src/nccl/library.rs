//! NCCL's library, which is found when it is first needed.
#![allow(unsafe_code)] // NCCL is a C library.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

/// The names of its file. Every installation has the first; only packages for developers have the second.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The first version whose calls need not block, 2.14, which is also the version of the settings that ranks join with.
pub const OLDEST: c_int = 21400;

/// The first version that lets ranks share a device, 2.30, if [`SHARES`] is 1.
const FIRST_TO_SHARE: c_int = 23000;

/// NCCL's own variable for that.
const SHARES: &str = "NCCL_MULTI_RANK_GPU_ENABLE";

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// NCCL's functions, by its own names.
        #[allow(non_snake_case)]
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
        }

        impl Library {
            fn of(file: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: these are the types of NCCL's header since version 2.14.
                Ok(Self { $($name: *unsafe { file.get(concat!(stringify!($name), "\0").as_bytes()) }?,)* })
            }
        }
    };
}

functions! {
    ncclGetErrorString(error: ncclResult_t) -> *const c_char;
    ncclGetLastError(comm: ncclComm_t) -> *const c_char;
    ncclGetUniqueId(id: *mut ncclUniqueId) -> ncclResult_t;
    ncclCommInitRankConfig(
        comm: *mut ncclComm_t, size: c_int, id: ncclUniqueId, rank: c_int, settings: *mut ncclConfig_t
    ) -> ncclResult_t;
    ncclCommGetAsyncError(comm: ncclComm_t, state: *mut ncclResult_t) -> ncclResult_t;
    ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
    ncclAllReduce(
        from: *const c_void, to: *mut c_void, count: usize, dtype: ncclDataType_t, sum: ncclRedOp_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t;
    ncclReduceScatter(
        from: *const c_void, to: *mut c_void, count: usize, dtype: ncclDataType_t, sum: ncclRedOp_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t;
    ncclAllGather(
        from: *const c_void, to: *mut c_void, count: usize, dtype: ncclDataType_t, comm: ncclComm_t,
        stream: cudaStream_t
    ) -> ncclResult_t;
    ncclGroupStart() -> ncclResult_t;
    ncclGroupEnd() -> ncclResult_t;
    ncclSend(
        from: *const c_void, count: usize, dtype: ncclDataType_t, to: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t;
    ncclRecv(
        to: *mut c_void, count: usize, dtype: ncclDataType_t, from: c_int, comm: ncclComm_t, stream: cudaStream_t
    ) -> ncclResult_t;
}

/// Returns NCCL's functions.
///
/// # Errors
///
/// NCCL is not installed, or it is too old.
pub fn library() -> Result<&'static Library, String> {
    found().as_ref().map(|(library, _)| library).map_err(Clone::clone)
}

/// Returns whether the user lets ranks share a device, and NCCL does.
pub fn shares_devices() -> bool {
    let asked = std::env::var(SHARES).is_ok_and(|value| value == "1");
    asked && found().as_ref().is_ok_and(|(_, version)| *version >= FIRST_TO_SHARE)
}

fn found() -> &'static Result<(Library, c_int), String> {
    static FOUND: OnceLock<Result<(Library, c_int), String>> = OnceLock::new();
    FOUND.get_or_init(load)
}

fn load() -> Result<(Library, c_int), String> {
    // SAFETY: NCCL's initialisation does not affect this program.
    let mut opened = NAMES.iter().map(|name| unsafe { libloading::Library::new(*name) });
    let Some(file) = opened.find_map(Result::ok) else {
        return Err(format!("NCCL is not installed as {} where libraries are looked for", NAMES[0]));
    };
    let failed = |error: libloading::Error| format!("NCCL: {error}");
    let mut version = 0;
    // SAFETY: the function has this type in all versions, and writes to `version`, which outlives the call.
    let asked = unsafe {
        let get = file.get::<unsafe extern "C" fn(*mut c_int) -> ncclResult_t>(b"ncclGetVersion\0");
        get.map_err(failed)?(&mut version)
    };
    if asked != ncclResult_t::ncclSuccess || version < OLDEST {
        return Err(format!("NCCL must be of version 2.14 or later, found number {version}"));
    }
    let library = Library::of(&file).map_err(failed)?;
    // It stays for as long as the program runs.
    std::mem::forget(file);
    Ok((library, version))
}
