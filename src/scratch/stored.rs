//! A bucket of tensors in a file.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use blake3::Hash;
use burn::tensor::{Bytes, DType, Shape};
use firebrick_kernels::memory::Inherited;

use super::file::{AlignedBuffer, Extent, Way, in_blocks};
use super::{ScratchError, ScratchFile};

/// Bytes that are read or written, and hashed, at a time.
const CHUNK: usize = 1 << 20;

/// The threads that read or write a bucket.
const THREADS: usize = 4;

/// A tensor that is not on the disk.
pub(crate) struct TensorInMemory {
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
    pub tensors: Vec<TensorInMemory>,
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
fn layout(tensors: &[TensorInMemory]) -> (Vec<StoredTensor>, usize) {
    let mut end = 0;
    let place = |TensorInMemory { name, dtype, shape, bytes }: &TensorInMemory| {
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
    work: impl Fn(&mut AlignedBuffer, J) -> Result<(), ScratchError> + Sync,
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
        let mut buffer = AlignedBuffer::new(longest);
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
mod tests {
    use super::*;

    /// Tensors of these sizes in bytes, each of other bytes.
    fn tensors(sizes: &[usize], seed: u8) -> Vec<TensorInMemory> {
        let one = |(index, size): (usize, &usize)| {
            let bytes = (0..*size).map(|at| (at / 7) as u8 ^ (at as u8) ^ seed ^ index as u8).collect();
            TensorInMemory {
                name: format!("{index}.moment"),
                dtype: DType::U8,
                shape: Shape::from([*size]),
                bytes: Bytes::from_bytes_vec(bytes),
            }
        };
        sizes.iter().enumerate().map(one).collect()
    }

    /// Writes one bucket.
    fn write(
        file: &Arc<ScratchFile>,
        name: &str,
        before: Option<Arc<Stored>>,
        tensors: Vec<TensorInMemory>,
    ) -> Result<Stored, ScratchError> {
        Ok(Stored::write(file, vec![Unwritten { name: name.into(), before, tensors }])?.remove(0))
    }

    fn bytes(tensors: &[TensorInMemory]) -> Vec<Vec<u8>> {
        tensors.iter().map(|tensor| tensor.bytes.to_vec()).collect()
    }

    /// Ends of chunks and of blocks, and a tensor without an element.
    const SIZES: [usize; 7] = [1, 4096, 4097, 0, CHUNK, CHUNK + 1, 3 * CHUNK - 5];

    #[test]
    fn what_is_read_is_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::create(folder.path(), 0).unwrap();
        let mut stored = None::<Arc<Stored>>;
        for seed in 0..3 {
            let written = tensors(&SIZES, seed);
            let expected = bytes(&written);
            let found = write(&file, "bucket 0", stored.take(), written).unwrap();
            assert_eq!(Stored::read(&[&found]).unwrap(), expected);
            for (index, expected) in expected.iter().enumerate() {
                assert_eq!(&found.read_tensor(index).unwrap(), expected);
            }
            stored = Some(Arc::new(found));
        }
        let blocks: usize = SIZES.iter().map(|size| in_blocks(*size)).sum();
        assert_eq!(file.bytes(), blocks as u64, "each is written in the place of the one before");
    }

    #[test]
    fn a_bucket_that_is_still_read_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::create(folder.path(), 0).unwrap();
        let before = tensors(&[5000], 1);
        let expected = bytes(&before);
        let first = Arc::new(write(&file, "bucket 0", None, before).unwrap());
        let second = write(&file, "bucket 0", Some(first.clone()), tensors(&[5000], 2)).unwrap();
        assert_eq!(Stored::read(&[&first]).unwrap(), expected);
        assert_ne!(Stored::read(&[&second]).unwrap(), expected);
        drop(first);
        write(&file, "bucket 1", None, tensors(&[5000], 3)).unwrap();
        assert_eq!(file.bytes(), 2 * 8192, "its place is used again");
    }

    #[test]
    fn a_bit_that_flips_is_found_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::create(folder.path(), 3).unwrap();
        let stored = write(&file, "bucket 12", None, tensors(&SIZES, 0)).unwrap();
        for (index, tensor) in stored.tensors.iter().enumerate().filter(|(_, tensor)| tensor.bytes > 0) {
            for at in [0, tensor.bytes / 2, tensor.bytes - 1] {
                let place = tensor.start + at;
                let mut block = AlignedBuffer::new(1);
                let blocks = block.first(1);
                let start = place / blocks.len() * blocks.len();
                let flip = |blocks: &mut [u8]| {
                    stored.extent.read(blocks, start).unwrap();
                    blocks[place - start] ^= 16;
                    stored.extent.write(blocks, start).unwrap();
                };
                flip(blocks);
                for error in [Stored::read(&[&stored]).unwrap_err(), stored.read_tensor(index).unwrap_err()] {
                    let text = error.to_string();
                    let ScratchError::Damaged { part, tensor: name, at: chunk, expected, found, .. } = error
                    else {
                        panic!("{text}")
                    };
                    assert_eq!((&*part, &name), ("bucket 12", &tensor.name));
                    assert_eq!(chunk, at / CHUNK * CHUNK);
                    assert!(
                        expected != found && text.contains(&*expected) && text.contains(&*found),
                        "{text}"
                    );
                    assert!(text.contains("of rank 3") && text.contains("bucket 12"), "{text}");
                }
                flip(blocks);
            }
        }
        Stored::read(&[&stored]).unwrap();
    }
}
