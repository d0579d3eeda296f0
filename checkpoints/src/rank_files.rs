//! Writes the files of one rank and hashes them on the way.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use crate::digest::{Algorithm, Digest, Hasher};
use crate::disk::{self, Disk, at, name_of};
use crate::error::{CheckpointError, Result};
use crate::file_names::{Holds, MAX_RANKS, rank_file};
use crate::header::{Header, Part};
use crate::{FileEntry, Piece, RankState};

/// Bytes per write; smaller tensors are collected up to it.
const CHUNK: usize = 4 << 20;

/// Bytes after which a sync starts while the file is still being written.
const FLUSH: usize = 32 << 20;

/// One file to write.
struct RankFile<'a> {
    name: String,
    header: Vec<u8>,
    /// The pieces in the order of the header.
    pieces: Vec<&'a Piece>,
}

impl<'a> RankFile<'a> {
    fn new(state: &RankState, holds: Holds, pieces: &'a [Piece]) -> Result<Self> {
        let name = rank_file(holds, state.rank, state.ranks);
        let wrong = |found: String| {
            CheckpointError::state(&name, "tensors with names, dtypes and shapes that can be saved", found)
        };
        let parts = pieces.iter().map(|piece| Part {
            name: piece.name.clone(),
            dtype: piece.dtype,
            shape: piece.shape.clone(),
            rows: piece.rows.clone(),
            columns: piece.columns.clone(),
        });
        let scalars = if holds == Holds::Optimizer { state.scalars.clone() } else { Default::default() };
        let header = Header::new(parts.collect(), scalars).map_err(wrong)?;
        let encoded = header.encode().map_err(wrong)?;
        let mut sorted: Vec<&Piece> = pieces.iter().collect();
        // The header's order; the header has checked that names are unique.
        sorted.sort_by(|a, b| crate::header::file_order((a.dtype, &a.name), (b.dtype, &b.name)));
        for ((part, _), piece) in header.parts.iter().zip(&sorted) {
            let (expected, found) = (part.bytes().map_err(wrong)?, piece.bytes.len());
            if expected != found {
                let expected = format!(
                    "{expected} bytes for rows {:?} and columns {:?} of shape {:?}",
                    part.rows, part.columns, part.shape
                );
                return Err(CheckpointError::state(
                    format!("tensor `{}` in {name}", part.name),
                    expected,
                    format!("{found} bytes"),
                ));
            }
        }
        Ok(Self { name, header: encoded, pieces: sorted })
    }

    /// Writes and syncs the file. Hashes each part just before it is written, while it is still in the
    /// processor's cache, so that hashing does not read the memory a second time. Meanwhile another thread syncs the
    /// bytes written so far: the disk works while the processor hashes, and the last sync has little left to do.
    fn save(&self, disk: &dyn Disk, folder: &Path) -> Result<FileEntry> {
        let path = folder.join(&self.name);
        let mut file = disk::create_file(disk, &path)?;
        let sync = format!("sync {}", self.name);
        let early = at(&sync, &path, file.try_clone())?;
        let (bytes, sum) = thread::scope(|scope| {
            let (more, flushes) = sync_channel(1);
            let flusher = scope.spawn(move || flushes.into_iter().try_for_each(|()| early.sync_data()));
            // Ends the thread even if a write fails.
            let written = self.write(disk, &path, &mut file, more);
            // The system reports a disk error once: here, and not again in the last sync.
            let flushed = flusher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let written = written?;
            at(&sync, &path, flushed)?;
            Ok::<_, CheckpointError>(written)
        })?;
        at(&sync, &path, disk.sync_file(&sync, &file))?;
        Ok(FileEntry { name: self.name.clone(), bytes, sum })
    }

    /// Returns the bytes written and their digest. Signals `more` whenever there is something to sync.
    fn write(
        &self,
        disk: &dyn Disk,
        path: &Path,
        file: &mut File,
        more: SyncSender<()>,
    ) -> Result<(u64, Digest)> {
        let point = format!("write {}", self.name);
        let mut hasher = Hasher::new(Algorithm::Blake3);
        let (mut total, mut unsynced) = (0u64, 0);
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            total += bytes.len() as u64;
            unsynced += bytes.len();
            at(&point, path, disk.write(&point, file, bytes))?;
            // If the thread is still busy, the next signal covers these bytes.
            if unsynced >= FLUSH && more.try_send(()).is_ok() {
                unsynced = 0;
            }
            Ok(())
        };
        let mut gathered = Vec::new();
        let mut add = |run: &[u8]| {
            if gathered.len() + run.len() < CHUNK {
                gathered.extend_from_slice(run);
                return Ok(());
            }
            if !gathered.is_empty() {
                put(&gathered)?;
                gathered.clear();
            }
            run.chunks(CHUNK).try_for_each(&mut put)
        };
        add(&self.header)?;
        self.pieces.iter().try_for_each(|piece| add(&piece.content()?))?;
        if !gathered.is_empty() {
            put(&gathered)?;
        }
        Ok((total, hasher.finish()))
    }
}

/// Writes and syncs a rank's files in a folder, in parallel, and syncs the folder.
pub(crate) fn write(disk: &dyn Disk, folder: &Path, state: &RankState) -> Result<Vec<FileEntry>> {
    if !(1..=MAX_RANKS).contains(&state.ranks) || state.rank >= state.ranks {
        let found = format!("rank {} of {}", state.rank, state.ranks);
        return Err(CheckpointError::state("RankState", format!("a rank of 1 to {MAX_RANKS}"), found));
    }
    let mut files = vec![
        RankFile::new(state, Holds::Parameters, &state.parameters)?,
        RankFile::new(state, Holds::Optimizer, &state.optimizer)?,
    ];
    if let Some(average) = &state.average {
        files.push(RankFile::new(state, Holds::Average, average)?);
    }
    disk::create_folder(disk, folder)?;
    let saved: Vec<Result<FileEntry>> = thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|file| scope.spawn(|| file.save(disk, folder))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|saved| saved.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let entries = saved.into_iter().collect::<Result<_>>()?;
    let point = format!("sync the folder of rank {}, {}", state.rank, name_of(folder));
    at(&point, folder, disk.sync_dir(&point, folder))?;
    Ok(entries)
}
