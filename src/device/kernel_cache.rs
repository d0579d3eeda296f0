//! The folder that keeps compiled kernels and the results of tuning for later starts.
//!
//! A file of the folder holds what one GPU needs with one version of its driver and one [level of tuning](super::Tuning):
//! `kernels_nvidia-h100-80gb-hbm3_550.54.15_balanced.db`, with CubeCL's `-wal` and `-tshm` beside it. CubeCL writes them,
//! and keeps entries of its own versions and of each build of the program apart. Several processes can share the folder.
//!
//! Programs without the feature `persistence` keep nothing, but they can list and clear the folder.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

/// The kernel cache cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelCacheError {
    /// No variable names the folder.
    #[error(
        "no folder for kernels: none of FIREBRICK_CACHE, XDG_CACHE_HOME and HOME is set. Set FIREBRICK_CACHE"
    )]
    NoFolder,
    /// The folder, or a file in it, cannot be read, written or removed.
    #[error("{path}: {reason}. FIREBRICK_CACHE names another folder")]
    Files {
        /// The folder or the file.
        path: PathBuf,
        /// The operating system's reason.
        reason: io::Error,
    },
}

/// What the files of all names begin with. Other files in the folder are none of this module's.
const PREFIX: &str = "kernels_";

/// The name of an empty file: CubeCL opens one before it knows the GPU.
const UNOPENED: &str = "unopened";

/// The kernels of a GPU, with one version of its driver and one level of tuning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptKernels {
    /// The GPU, the version of the driver if it is known, and the level of tuning.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
}

/// The contents of the folder.
#[derive(Clone, Debug, Serialize)]
pub struct KernelCache {
    /// The folder, which may not exist.
    pub folder: PathBuf,
    /// The kernels in it, by name.
    pub kernels: Vec<KeptKernels>,
}

impl KernelCache {
    /// Reads the [folder] of this user.
    ///
    /// # Errors
    ///
    /// No folder is set, or it cannot be read. A missing folder is an empty one.
    pub fn read() -> Result<Self, KernelCacheError> {
        let folder = folder()?;
        let mut bytes = BTreeMap::<String, u64>::new();
        for (path, name) in files(&folder)?.into_iter().filter(|(_, name)| name != UNOPENED) {
            // A process that runs may have removed it.
            *bytes.entry(name).or_default() += fs::metadata(path).map_or(0, |file| file.len());
        }
        let kernels = bytes.into_iter().map(|(name, bytes)| KeptKernels { name, bytes }).collect();
        Ok(Self { folder, kernels })
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.kernels.iter().map(|kept| kept.bytes).sum()
    }

    /// Removes the kernels from the folder, and nothing else. Processes that run keep what they have read.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn clear(&self) -> Result<(), KernelCacheError> {
        for (path, _) in files(&self.folder)? {
            match fs::remove_file(&path) {
                Err(reason) if reason.kind() != io::ErrorKind::NotFound => {
                    return Err(KernelCacheError::Files { path, reason });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The folder of this user: `$FIREBRICK_CACHE`, otherwise `$XDG_CACHE_HOME/firebrick/kernels`, otherwise
/// `~/.cache/firebrick/kernels`, and on Windows `%LOCALAPPDATA%\firebrick\kernels`.
///
/// # Errors
///
/// [`KernelCacheError::NoFolder`] if none of these variables is set.
pub fn folder() -> Result<PathBuf, KernelCacheError> {
    let folder = folder_from(|name| env::var_os(name)).ok_or(KernelCacheError::NoFolder)?;
    std::path::absolute(&folder).map_err(|reason| KernelCacheError::Files { path: folder, reason })
}

fn folder_from(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = || {
        // A relative path has no meaning here, says the XDG specification.
        let named = set("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
        let windows = || if cfg!(windows) { set("LOCALAPPDATA") } else { None };
        named.or_else(windows).or_else(|| Some(set("HOME")?.join(".cache")))
    };
    set("FIREBRICK_CACHE").or_else(|| Some(user()?.join("firebrick").join("kernels")))
}

/// The files of the folder that hold kernels, with the names of what they hold.
fn files(folder: &Path) -> Result<Vec<(PathBuf, String)>, KernelCacheError> {
    let failed = |reason| KernelCacheError::Files { path: folder.into(), reason };
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let file = entry.file_name().into_string().unwrap_or_default();
        let Some((name, rest)) = file.strip_prefix(PREFIX).and_then(|name| name.rsplit_once(".db")) else {
            continue;
        };
        if rest.is_empty() || rest.starts_with('-') {
            files.push((entry.path(), name.replace('_', " ")));
        }
    }
    files.sort();
    Ok(files)
}

/// The name, without `.db`, of the file before the GPU is known.
#[cfg(all(feature = "cube", feature = "persistence"))]
pub(super) fn unopened() -> String {
    format!("{PREFIX}{UNOPENED}")
}

/// The name of the file, without `.db`, for the kernels of this hardware.
#[cfg(any(test, all(feature = "cube", feature = "persistence")))]
pub(super) fn file_stem(hardware: &str, driver: Option<&str>, tuning: super::Tuning) -> String {
    let plain = |text: &str| -> String {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-").to_lowercase()
    };
    let driver = driver.map(|driver| plain(driver) + "_").unwrap_or_default();
    format!("{PREFIX}{}_{driver}{tuning}", plain(hardware))
}

/// Makes the folder and checks that files can be written there.
///
/// # Errors
///
/// No folder is set, it cannot be made, or the disk is full or read-only.
#[cfg(any(test, all(feature = "cube", feature = "persistence")))]
pub(super) fn made(folder: PathBuf) -> Result<PathBuf, KernelCacheError> {
    let written = || {
        fs::create_dir_all(&folder)?;
        let probe = folder.join(format!(".{PREFIX}{}", std::process::id()));
        let written = fs::write(&probe, [0; 4096]);
        let _ = fs::remove_file(&probe);
        written
    };
    match written() {
        Ok(()) => Ok(folder),
        Err(reason) => Err(KernelCacheError::Files { path: folder, reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tuning;
    use super::*;

    #[test]
    fn variables_name_the_folder() {
        let folder = |set: &[(&str, &str)]| {
            folder_from(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
        };
        let (own, home) = (("FIREBRICK_CACHE", "mine"), ("HOME", "/home/me"));
        assert_eq!(folder(&[own, home]), Some("mine".into()));
        assert_eq!(
            folder(&[("FIREBRICK_CACHE", ""), home]),
            Some("/home/me/.cache/firebrick/kernels".into())
        );
        assert_eq!(folder(&[("XDG_CACHE_HOME", "here"), home]), folder(&[home]));
        if cfg!(unix) {
            let xdg = ("XDG_CACHE_HOME", "/scratch");
            assert_eq!(folder(&[xdg, home]), Some("/scratch/firebrick/kernels".into()));
        }
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn a_file_is_named_for_what_its_kernels_depend_on() {
        let stem = file_stem("NVIDIA H100 80GB HBM3", Some("550.54.15"), Tuning::Quick);
        assert_eq!(stem, "kernels_nvidia-h100-80gb-hbm3_550.54.15_quick");
        assert_eq!(
            file_stem("llvmpipe (LLVM 15.0.7)", None, Tuning::Full),
            "kernels_llvmpipe-llvm-15.0.7_full"
        );
    }

    #[test]
    fn only_kernels_are_listed_and_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let made = made(folder.path().join("a/b")).unwrap();
        assert_eq!(fs::read_dir(&made).unwrap().count(), 0);
        for file in
            ["kernels_a_1.5_full.db", "kernels_a_1.5_full.db-wal", "a.db", "kernels_a.dbx", "kernels_a"]
        {
            fs::write(made.join(file), "1234").unwrap();
        }
        let names: Vec<_> = files(&made).unwrap().into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["a 1.5 full", "a 1.5 full"]);
        KernelCache { folder: made.clone(), kernels: Vec::new() }.clear().unwrap();
        assert_eq!(fs::read_dir(&made).unwrap().count(), 3);
        assert!(files(&made.join("missing")).unwrap().is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let error = made(folder.path().join("file/kernels")).unwrap_err().to_string();
        assert!(error.contains("file/kernels: ") && error.contains("FIREBRICK_CACHE"), "{error}");
    }
}
