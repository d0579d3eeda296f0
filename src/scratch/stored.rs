//! A bucket of tensors in a file.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use blake3::Hash;
use burn::tensor::{Bytes, DType, Shape};
use firebrick_kernels::memory::Inherited;

use super::aligned::{Aligned, in_blocks};
use super::file::{Extent, Way};
use super::{ScratchError, ScratchFile};

/// Bytes that are read or written, and hashed, at a time.
const CHUNK: usize = 1 << 20;

/// The threads that read or write a bucket.
const THREADS: usize = 4;

/// A tensor that is not on the disk.
pub(crate) struct Unstored {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub bytes: Bytes,
}

/// A bucket of tensors that is not on the disk.
pub(crate) struct Unwritten {
    /// The name of the bucket in errors.
    pub name: String,
    /// What it is written in the place of, if that is large enough and nothing else reads it.
    pub before: Option<Arc<Stored>>,
    pub tensors: Vec<Unstored>,
}

/// A bucket of tensors on the disk.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The name of the bucket in errors.
    name: String,
    extent: Extent,
    pub tensors: Vec<StoredTensor>,
}

/// A tensor of a bucket.
#[derive(Debug)]
pub(crate) struct StoredTensor {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub bytes: usize,
    /// Where it begins in the extent.
    start: usize,
    /// The sum of each chunk.
    sums: Vec<Hash>,
}

impl StoredTensor {
    /// Returns the bytes of a chunk in the tensor.
    fn chunk(&self, chunk: usize) -> Range<usize> {
        chunk * CHUNK..self.bytes.min((chunk + 1) * CHUNK)
    }
}

impl Stored {
    /// Writes buckets, all at the same time.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn write(file: &Arc<ScratchFile>, buckets: Vec<Unwritten>) -> Result<Vec<Self>, ScratchError> {
        let begun = Instant::now();
        let (mut all, mut contents) = (Vec::with_capacity(buckets.len()), Vec::new());
        for Unwritten { name, before, tensors } in buckets {
            let (parts, end) = layout(&tensors);
            let before = before.and_then(|before| Arc::try_unwrap(before).ok()).map(|before| before.extent);
            let extent = before.filter(|extent| extent.holds(end)).unwrap_or_else(|| file.extent(end));
            all.push(Self { name, extent, tensors: parts });
            contents.push(tensors);
        }
        let mut jobs = Vec::new();
        for (Self { name, extent, tensors }, contents) in std::iter::zip(&mut all, &contents) {
            for (part, tensor) in std::iter::zip(tensors, contents) {
                let (place, start) = ((&*name, &*extent), part.start);
                let chunks = std::iter::zip(&mut part.sums, tensor.bytes.chunks(CHUNK)).enumerate();
                jobs.extend(chunks.map(|(chunk, (sum, bytes))| (place, start + chunk * CHUNK, sum, bytes)));
            }
        }
        in_parallel(
            jobs,
            |(_, _, _, bytes)| bytes.len(),
            |buffer, ((name, extent), at, sum, bytes)| {
                *sum = blake3::hash(bytes);
                let blocks = buffer.first(bytes.len());
                blocks[..bytes.len()].copy_from_slice(bytes);
                blocks[bytes.len()..].fill(0);
                extent.write(blocks, at).map_err(|error| ScratchError::io(file.name(), "write", name, error))
            },
        )?;
        file.count(Way::Written, begun);
        Ok(all)
    }

    /// Reads all tensors of some buckets, in order and all at the same time.
    ///
    /// # Errors
    ///
    /// The disk fails, or returns other bytes than were written.
    pub fn read(buckets: &[&Self]) -> Result<Vec<Vec<u8>>, ScratchError> {
        let all =
            || buckets.iter().flat_map(|stored| stored.tensors.iter().map(move |tensor| (*stored, tensor)));
        let mut read: Vec<_> = all().map(|(_, tensor)| vec![0; tensor.bytes]).collect();
        let jobs = std::iter::zip(all(), &mut read);
        read_chunks(jobs.flat_map(|((stored, tensor), bytes)| chunks(stored, tensor, bytes)).collect())?;
        Ok(read)
    }

    /// Reads one tensor, by its place in [`tensors`](Self::tensors).
    ///
    /// # Errors
    ///
    /// The same as [`read`](Self::read).
    pub fn read_tensor(&self, index: usize) -> Result<Vec<u8>, ScratchError> {
        let tensor = &self.tensors[index];
        let mut bytes = vec![0; tensor.bytes];
        read_chunks(chunks(self, tensor, &mut bytes).collect())?;
        Ok(bytes)
    }
}

/// Returns the places of tensors in an extent, each in whole blocks, and the bytes of all of them.
fn layout(tensors: &[Unstored]) -> (Vec<StoredTensor>, usize) {
    let mut end = 0;
    let place = |Unstored { name, dtype, shape, bytes }: &Unstored| {
        let (start, bytes) = (end, bytes.len());
        end += in_blocks(bytes);
        let sums = vec![Hash::from_bytes([0; 32]); bytes.div_ceil(CHUNK)];
        StoredTensor { name: name.clone(), dtype: *dtype, shape: shape.clone(), bytes, start, sums }
    };
    let parts = tensors.iter().map(place).collect();
    (parts, end)
}

/// A chunk to read: its bucket and tensor, its number, and the memory for it.
type Chunk<'a> = (&'a Stored, &'a StoredTensor, usize, &'a mut [u8]);

fn read_chunks(jobs: Vec<Chunk<'_>>) -> Result<(), ScratchError> {
    let Some(file) = jobs.first().map(|(stored, ..)| stored.extent.file().clone()) else { return Ok(()) };
    let begun = Instant::now();
    let read = in_parallel(
        jobs,
        |(.., bytes)| bytes.len(),
        |buffer, (stored, tensor, chunk, bytes)| {
            let (expected, at) = (tensor.sums[chunk], tensor.chunk(chunk).start);
            let blocks = buffer.first(bytes.len());
            let read = stored.extent.read(blocks, tensor.start + at);
            read.map_err(|error| ScratchError::io(file.name(), "read", &stored.name, error))?;
            bytes.copy_from_slice(&blocks[..bytes.len()]);
            let found = blake3::hash(bytes);
            if found == expected {
                return Ok(());
            }
            Err(ScratchError::Damaged {
                file: file.name().into(),
                part: stored.name.clone(),
                tensor: tensor.name.clone(),
                at,
                expected: expected.to_string().into(),
                found: found.to_string().into(),
            })
        },
    );
    file.count(Way::Read, begun);
    read
}

/// Splits the memory of a tensor into its chunks, each with its number.
fn chunks<'a>(
    stored: &'a Stored,
    tensor: &'a StoredTensor,
    bytes: &'a mut [u8],
) -> impl Iterator<Item = Chunk<'a>> {
    bytes.chunks_mut(CHUNK).enumerate().map(move |(chunk, bytes)| (stored, tensor, chunk, bytes))
}

/// Does jobs on a few threads, each of which has a buffer for the bytes of any of them. After an error, no further job
/// begins.
fn in_parallel<J: Send>(
    jobs: Vec<J>,
    bytes: impl Fn(&J) -> usize,
    work: impl Fn(&mut Aligned, J) -> Result<(), ScratchError> + Sync,
) -> Result<(), ScratchError> {
    let threads = THREADS.min(jobs.len());
    let longest = jobs.iter().map(bytes).max().unwrap_or(0);
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let (next, has_failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let take = || {
        let job = jobs.get(next.fetch_add(1, Relaxed))?;
        job.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let one = || {
        let mut buffer = Aligned::new(longest);
        while !has_failed.load(Relaxed)
            && let Some(job) = take()
        {
            work(&mut buffer, job).inspect_err(|_| has_failed.store(true, Relaxed))?;
        }
        Ok(())
    };
    let account = Inherited::of_this_thread();
    thread::scope(|scope| {
        let run = || {
            let _on_it = account.enter();
            one()
        };
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let own = one();
        let results = others
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        results.fold(own, Result::and)
    })
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
