//! Writes the files of one rank, each summed while it is written.

use std::path::Path;
use std::thread;

use crate::digest::{Digest, Hasher};
use crate::disk::{self, Disk, at, name_of};
use crate::error::{CheckpointError, Result};
use crate::file_names::{Holds, MAX_RANKS, rank_file};
use crate::header::{Header, Part};
use crate::{FileEntry, Piece, RankState};

/// Bytes that are written at once; smaller tensors are gathered up to it.
const CHUNK: usize = 4 << 20;

/// One file that is to be written.
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
        });
        let scalars = if holds == Holds::Optimizer { state.scalars.clone() } else { Default::default() };
        let header = Header::new(parts.collect(), scalars).map_err(wrong)?;
        let encoded = header.encode().map_err(wrong)?;
        let mut sorted: Vec<&Piece> = pieces.iter().collect();
        // As in the header, which says that names come once.
        sorted.sort_by(|a, b| crate::header::file_order((a.dtype, &a.name), (b.dtype, &b.name)));
        for ((part, _), piece) in header.parts.iter().zip(&sorted) {
            let (expected, found) = (part.bytes().map_err(wrong)?, piece.bytes.as_ref().len());
            if expected != found {
                let expected = format!("{expected} bytes for {:?} of shape {:?}", part.rows, part.shape);
                return Err(CheckpointError::state(
                    format!("tensor `{}` in {name}", part.name),
                    expected,
                    format!("{found} bytes"),
                ));
            }
        }
        Ok(Self { name, header: encoded, pieces: sorted })
    }

    /// All bytes of the file, in order.
    fn runs(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(&self.header[..]).chain(self.pieces.iter().map(|piece| piece.bytes.as_ref()))
    }

    /// Sums in this thread what another writes, from the same memory.
    fn save(&self, disk: &dyn Disk, folder: &Path) -> Result<FileEntry> {
        let (written, sha256) = thread::scope(|scope| {
            let writer = scope.spawn(|| self.write(disk, folder));
            let sum = self.sum();
            (writer.join(), sum)
        });
        let bytes = written.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(FileEntry { name: self.name.clone(), bytes, sha256 })
    }

    fn sum(&self) -> Digest {
        let mut hasher = Hasher::new();
        self.runs().for_each(|run| hasher.update(run));
        hasher.finish()
    }

    /// Bytes written and synced.
    fn write(&self, disk: &dyn Disk, folder: &Path) -> Result<u64> {
        let path = folder.join(&self.name);
        let mut file = disk::create_file(disk, &path)?;
        let point = format!("write {}", self.name);
        let mut put = |bytes: &[u8]| at(&point, &path, disk.write(&point, &mut file, bytes));
        let mut total = 0u64;
        let mut gathered = Vec::new();
        for run in self.runs() {
            total += run.len() as u64;
            if gathered.len() + run.len() < CHUNK {
                gathered.extend_from_slice(run);
                continue;
            }
            if !gathered.is_empty() {
                put(&gathered)?;
                gathered.clear();
            }
            run.chunks(CHUNK).try_for_each(&mut put)?;
        }
        if !gathered.is_empty() {
            put(&gathered)?;
        }
        let point = format!("sync {}", self.name);
        at(&point, &path, disk.sync_file(&point, &file))?;
        Ok(total)
    }
}

/// Writes and syncs a rank's files in a folder, all at once, and syncs the folder.
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
