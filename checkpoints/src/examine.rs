//! Checks a checkpoint without trusting unchecked data: opens it, or reports everything wrong with it.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use crate::digest::{Algorithm, Hasher, SEGMENT, SegmentHasher, of_segments};
use crate::disk::name_of;
use crate::error::{CheckpointError, Result};
use crate::file_names::{Holds, MANIFEST, rank_file};
use crate::header::{Header, LENGTH, MAX_HEADER};
use crate::{Checkpoint, FileEntry, Manifest, Tensors};
use crate::{
    checkpoint::VerifiedFile,
    regular::{self, Identity},
};

/// Bytes to read at once.
const CHUNK: usize = 1 << 20;

/// Returns the checkpoint, or everything wrong with it, at least one error.
///
/// Calls `progress` with the bytes checked so far and the total, and stops if it returns false.
pub(crate) fn examine(
    path: &Path,
    progress: &(impl Fn(u64, u64) -> bool + Sync),
) -> std::result::Result<Checkpoint, Vec<CheckpointError>> {
    let manifest = Manifest::read(path).map_err(|error| vec![error])?;
    let total = manifest.bytes();
    let done = AtomicU64::new(0);
    progress(0, total);
    let read = |bytes| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        match progress(before + bytes, total) {
            true => Ok(()),
            false => Err(CheckpointError::Stopped { path: path.into() }),
        }
    };
    let checked = manifest.files.par_iter().map(|entry| {
        let file = verified(path, entry, &read)?;
        let header = if entry.name == manifest.trainer_file() { None } else { Some(header(&file)?) };
        only_the_optimizer_has_numbers(&file, header.as_ref())?;
        Ok((file, header))
    });
    // In the order of the manifest, which is already checked.
    let (files, mut headers): (Vec<_>, Vec<_>) = all(checked.collect())?.into_iter().unzip();
    let files: Arc<[VerifiedFile]> = files.into();

    let mut tensors = |holds: Holds| {
        let names: Vec<String> =
            (0..manifest.world_size).map(|rank| rank_file(holds, rank, manifest.world_size)).collect();
        let of_kind = headers.iter_mut().enumerate().filter_map(|(at, header)| {
            names.binary_search(&manifest.files[at].name).ok()?;
            let (before, header) = header.take()?;
            Some((at, before, header))
        });
        let tensors = Tensors::new(path, files.clone(), of_kind.collect())?;
        match manifest.packed.clone().filter(|_| holds != Holds::Optimizer) {
            Some(packed) => tensors.unpacking(packed),
            None => Ok(tensors),
        }
    };
    let averaged = manifest.files.len() > 2 * manifest.world_size + 1;
    let assembled = (
        tensors(Holds::Parameters),
        tensors(Holds::Optimizer),
        averaged.then(|| tensors(Holds::Average)).transpose(),
        trainer(&files),
    );
    match assembled {
        (Ok(parameters), Ok(optimizer), Ok(average), Ok(trainer)) => {
            let checkpoint =
                Checkpoint { path: path.into(), manifest, trainer, parameters, optimizer, average };
            let wrong = inconsistent(&checkpoint);
            if wrong.is_empty() { Ok(checkpoint) } else { Err(wrong) }
        }
        (parameters, optimizer, average, trainer) => {
            let errors = [parameters.err(), optimizer.err(), average.err(), trainer.err()];
            Err(errors.into_iter().flatten().collect())
        }
    }
}

/// Returns all values, or all errors.
fn all<T>(results: Vec<Result<T>>) -> std::result::Result<Vec<T>, Vec<CheckpointError>> {
    let (mut values, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(values) } else { Err(errors) }
}

/// Checks a file against the size and digest of the manifest.
fn verified(
    folder: &Path,
    entry: &FileEntry,
    read: &(impl Fn(u64) -> Result<()> + Sync),
) -> Result<VerifiedFile> {
    let path = folder.join(&entry.name);
    let (file, metadata) = regular::open(&path)?;
    if metadata.len() != entry.bytes {
        return Err(CheckpointError::Size { path, expected: entry.bytes, found: metadata.len() });
    }
    let checked = VerifiedFile { path, identity: Identity::of(&metadata) };
    let algorithm = entry.sum.algorithm();
    let found = match algorithm {
        Algorithm::Blake3 if entry.bytes > SEGMENT => {
            let starts = (0..entry.bytes.div_ceil(SEGMENT)).into_par_iter().map(|index| index * SEGMENT);
            let segments = starts.map(|start| {
                // Each segment has its own handle, checked to be of the same file.
                let file = checked.open_at(start)?;
                let mut hasher = SegmentHasher::new(start);
                let bytes = SEGMENT.min(entry.bytes - start);
                each_chunk(&checked, file, start..start + bytes, read, |chunk| hasher.update(chunk))?;
                Ok(hasher.finish())
            });
            of_segments(&segments.collect::<Result<Vec<_>>>()?)
        }
        _ => {
            let mut hasher = Hasher::new(algorithm);
            each_chunk(&checked, file, 0..entry.bytes, read, |chunk| hasher.update(chunk))?;
            hasher.finish()
        }
    };
    if found != entry.sum {
        return Err(CheckpointError::Sum { path: checked.path, expected: entry.sum, found });
    }
    Ok(checked)
}

/// Reads a range of a file from the handle's position and reports the bytes to `read`.
fn each_chunk(
    of: &VerifiedFile,
    mut file: File,
    range: Range<u64>,
    read: &impl Fn(u64) -> Result<()>,
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    let mut left = range.end - range.start;
    let mut buffer = vec![0; CHUNK.min(left as usize)];
    while left > 0 {
        let wanted = &mut buffer[..CHUNK.min(left as usize)];
        match file.read(wanted) {
            Ok(0) => {
                let (path, expected) = (of.path.clone(), of.identity.bytes());
                return Err(CheckpointError::Size { path, expected, found: range.end - left });
            }
            Ok(bytes) => {
                take(&wanted[..bytes]);
                left -= bytes as u64;
                read(bytes as u64)?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => (),
            Err(error) => return Err(CheckpointError::io("read", &of.path, error)),
        }
    }
    Ok(())
}

/// Reads a file's header. Returns the number of bytes before the tensors, and the header.
fn header(file: &VerifiedFile) -> Result<(u64, Header)> {
    let wrong =
        |found: String| CheckpointError::damaged(&file.path, "a safetensors file of firebrick", found);
    let bytes = file.identity.bytes();
    if bytes < LENGTH {
        return Err(wrong(format!("{bytes} bytes")));
    }
    let mut length = [0; LENGTH as usize];
    file.read_at(0, &mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER || length > bytes - LENGTH {
        return Err(wrong(format!("a header of {length} bytes in a file of {bytes}")));
    }
    let before = LENGTH + length;
    let mut text = vec![0; before as usize];
    file.read_at(0, &mut text)?;
    Ok((before, Header::decode(&text, bytes).map_err(wrong)?))
}

fn only_the_optimizer_has_numbers(file: &VerifiedFile, header: Option<&(u64, Header)>) -> Result<()> {
    let number = header.and_then(|(_, header)| header.scalars.keys().next());
    match number {
        Some(number) if !name_of(&file.path).starts_with(&Holds::Optimizer.to_string()) => {
            Err(CheckpointError::damaged(&file.path, "tensors only", format!("the number `{number}`")))
        }
        _ => Ok(()),
    }
}

fn trainer(files: &[VerifiedFile]) -> Result<String> {
    let Some(file) = files.last() else { return Ok(String::new()) };
    // The size is bounded, because the manifest is already checked.
    let mut text = vec![0; file.identity.bytes() as usize];
    file.read_at(0, &mut text)?;
    String::from_utf8(text)
        .map_err(|error| CheckpointError::damaged(&file.path, "a text in UTF-8", error.to_string()))
}

/// Finds problems across files that no single file shows.
fn inconsistent(checkpoint: &Checkpoint) -> Vec<CheckpointError> {
    let manifest = checkpoint.path.join(MANIFEST);
    let parameters = &checkpoint.parameters;
    let mut wrong = Vec::new();
    for (alias, saved) in &checkpoint.manifest.aliases {
        if parameters.info(saved).is_none() {
            let expected = format!("the tensor `{saved}`, for which `{alias}` is an alias");
            wrong.push(CheckpointError::damaged(&manifest, expected, "no tensor of this name"));
        }
        if parameters.info(alias).is_some() {
            let expected = format!("`{alias}` as an alias of `{saved}` only");
            wrong.push(CheckpointError::damaged(&manifest, expected, "a tensor of this name"));
        }
    }
    wrong
}

impl Checkpoint {
    /// Opens a checkpoint's folder and checks all of it. Reads each byte once, on all cores, in little
    /// memory.
    ///
    /// Ignores files that the manifest does not name; [`verify`] lists them.
    ///
    /// # Errors
    ///
    /// The first problem found, with the file's path.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_showing(path, |_, _| ())
    }

    /// Like [`open`](Self::open), and calls `progress` with the bytes checked so far and the total.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open).
    pub fn open_showing(path: impl Into<PathBuf>, progress: impl Fn(u64, u64) + Sync) -> Result<Self> {
        Self::open_while(path, |done, all| {
            progress(done, all);
            true
        })
    }

    /// Like [`open_showing`](Self::open_showing), but stops as soon as `progress` returns false.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open), and [`CheckpointError::Stopped`].
    pub fn open_while(path: impl Into<PathBuf>, progress: impl Fn(u64, u64) -> bool + Sync) -> Result<Self> {
        examine(&path.into(), &progress).map_err(|mut errors| errors.swap_remove(0))
    }
}

/// The result of [`verify`].
#[derive(Debug)]
pub struct Report {
    /// The manifest, if it is valid.
    pub manifest: Option<Manifest>,
    /// The errors of single files, or of all files together.
    pub problems: Vec<CheckpointError>,
    /// Entries of the folder that the manifest does not name. They are never read.
    pub strays: Vec<PathBuf>,
}

impl Report {
    /// Returns whether the checkpoint can be opened.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks a checkpoint like [`Checkpoint::open`](crate::Checkpoint::open), but reports every wrong file,
/// not only the first. Calls `progress` with the bytes checked so far and the total.
pub fn verify(path: &Path, progress: impl Fn(u64, u64) + Sync) -> Report {
    let show = |done, all| {
        progress(done, all);
        true
    };
    let problems = examine(path, &show).err().unwrap_or_default();
    let manifest = Manifest::read(path).ok();
    let known = |name: &std::ffi::OsStr| {
        let files = manifest.iter().flat_map(|manifest| &manifest.files);
        name == MANIFEST || files.into_iter().any(|file| name == file.name.as_str())
    };
    // Without a manifest, no other file can be judged.
    let entries = manifest.as_ref().and_then(|_| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let mut strays: Vec<PathBuf> =
        entries.filter(|entry| !known(&entry.file_name())).map(|entry| entry.path()).collect();
    strays.sort();
    Report { manifest, problems, strays }
}
