//! Atomic checkpoints: a checkpoint is complete, or it does not exist.
//!
//! This crate handles the bytes and files of Firebrick's checkpoints. It knows tensors by name, dtype,
//! shape and bytes, and does not depend on Burn. Each rank saves the tensors, rows or columns that it holds. A reader of
//! the checkpoint gets whole tensors, or any rows and columns, however many ranks saved it.
//!
//! ```
//! use firebrick_checkpoints::{Checkpoint, Dtype, Folder, Keep, Manifest, Piece, RankState};
//!
//! # let output = tempfile::tempdir()?;
//! let folder = Folder::new(output.path().join("checkpoints"));
//! // When a run claims the folder, remove what interrupted saves left.
//! folder.clean()?;
//!
//! // Two ranks, each with a row of one weight, write into the same staging folder.
//! let staging = folder.staging(1000, "first-try");
//! let mut manifest = Manifest::new("run-1", 1000, 2, "0.1.0").metric(3.21);
//! for (rank, row) in [[1.0f32, 2.0], [3.0, 4.0]].into_iter().enumerate() {
//!     let weight = Piece {
//!         name: "linear.weight".into(),
//!         dtype: Dtype::F32,
//!         shape: vec![2, 2],
//!         rows: Some(rank..rank + 1),
//!         columns: None,
//!         bytes: row.map(f32::to_le_bytes).concat().into(),
//!     };
//!     let state = RankState { rank, ranks: 2, parameters: vec![weight], ..Default::default() };
//!     manifest = manifest.files(staging.write_rank(&state)?);
//! }
//! // When all have written, rank 0 publishes, and only then removes old checkpoints.
//! staging.publish(manifest, r#"{"step": 1000}"#)?;
//! folder.prune(&Keep::last(2).best(1))?;
//!
//! // Opening checks every file's digest before it uses the content.
//! let latest = folder.latest()?.expect("one was saved");
//! let checkpoint = Checkpoint::open(latest.path)?;
//! let weight = checkpoint.parameters().read("linear.weight")?;
//! assert_eq!(weight, [1.0f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The format
//!
//! ```text
//! OUTPUT/checkpoints
//! ├── latest                                   "step-00001000" and a newline
//! ├── step-00000500
//! └── step-00001000
//!     ├── manifest.json                        run, step, world size, aliases, soundness; each file's size and BLAKE3
//!     ├── trainer.json                         the trainer's state
//!     ├── parameters-00000-of-00002.safetensors    rank 0 of 2
//!     ├── parameters-00001-of-00002.safetensors
//!     ├── optimizer-00000-of-00002.safetensors
//!     ├── optimizer-00001-of-00002.safetensors
//!     └── average-...                          one per rank, if weights are averaged
//! ```
//!
//! Tensors are named by module path, `blocks.0.attention.query.weight`, and in the optimizer's files by path and field,
//! `blocks.0.weight/momentum.moment_1`. A rank may hold rows of a tensor's first axis. Of a matrix, it may hold some columns
//! of its rows, in one or several ranges, and of a tensor with one axis, several ranges of elements. The files are plain
//! [safetensors](https://github.com/huggingface/safetensors): other readers see the rows and columns as tensors. Their
//! metadata has one entry, `firebrick`, with JSON text: the whole shape, the first row and the ranges of columns of each
//! tensor slice, and the optimizer's numbers, with floats as the hexadecimal digits of their bits:
//!
//! ```json
//! {"slices": {"linear.weight": {"shape": [2, 2], "start": 1}}, "scalars": {"linear.weight/momentum.time": {"UInt": 7}}}
//! ```
//!
//! A slice of whole rows has no ranges of columns. The second half of each third of a joint projection and of its bias has
//! three, and each range ends before its second number:
//!
//! ```json
//! {"slices": {"joint.bias": {"shape": [12], "start": 0, "columns": [[2, 4], [6, 8], [10, 12]]},
//!   "joint.weight": {"shape": [8, 12], "start": 4, "columns": [[2, 4], [6, 8], [10, 12]]}}, "scalars": {}}
//! ```
//!
//! A matrix may be saved packed, as codes and scales that the manifest describes: see [`PackedMatrices`]. Readers of this
//! crate see the matrix itself.
//!
//! The same state gives the same bytes. `manifest.json` and each header have a single valid encoding: a reader
//! accepts exactly the bytes that the writer would produce, so duplicates, omissions and hidden data are errors. The
//! manifest also holds the BLAKE3 digest of its own content, and a sequence number, counted in its folder. The highest
//! number is the newest checkpoint, even after a run went back to an earlier step.
//!
//! This is format 3. Formats 1 and 2 have the trainer's state in RON, as `trainer.ron`. Format 1 used SHA-256, in
//! fields named `sha256` instead of `blake3`. Otherwise the three are the same. This version reads and verifies all
//! three. It rejects a checkpoint of any other format with an error that gives the format's number, and never replaces
//! it.
//!
//! # The protocol, and why a crash at any moment is harmless
//!
//! 1. All ranks write their files into `.staging-step-00001000-ATTEMPT`, sync each and sync the folder. A crash
//!    leaves a folder without a checkpoint's name: nobody reads it, and [`Folder::clean`] removes it.
//! 2. The ranks meet (the trainer's barrier). Rank 0 writes `trainer.json`, checks that each rank's files
//!    exist with the reported sizes, writes `manifest.json`, and syncs files and folder. A crash has the same effect
//!    as in step 1.
//! 3. If the step was saved before, rank 0 renames that checkpoint to `.replaced-step-00001000`. A crash now leaves it
//!    whole under this name. [`Folder::list`] and [`Folder::latest`] find it there until another checkpoint takes
//!    its place, and [`Folder::clean`] restores its name.
//! 4. Rank 0 renames the staging folder to `step-00001000` and syncs the parent folder. The rename is atomic, and the
//!    files were already on the disk, so the checkpoint is complete from here on. A crash leaves
//!    `latest` naming an older checkpoint, also complete, until [`Folder::clean`] updates it.
//! 5. Rank 0 writes `.staged-latest`, syncs it, and renames it over `latest`: readers see the old name or the new one.
//! 6. Rank 0 removes the replaced checkpoint, then those that are not kept ([`Folder::prune`]). It renames each to
//!    `.removed-step-00000500` first, so that a partly removed checkpoint never has a checkpoint's name.
//!
//! An error at any of these steps leaves the same state as a crash: the call returns it, the existing checkpoints
//! remain, and you may try again. The tests kill a process at each of these operations, in the middle of
//! each write and removal, and at random places, and make each operation fail. Whether synced bytes survive a loss of
//! power is up to the disk and the file system.
//!
//! # What is checked
//!
//! A checkpoint may come from an untrusted source. Opening checks, before it uses anything: the manifest's size,
//! encoding, version and digest; that the manifest names exactly the files that ranks write, which rules out other
//! paths; that these are plain files, not links, pipes or folders; sizes, before it allocates memory for them; the
//! digest of every file; the headers, of bounded length, with sizes that do not overflow; and that slices cover each
//! tensor once, with one dtype and shape. Reads copy into fresh memory, and fail if a file changed after the check.
//! Nothing in a checkpoint is executed.
//!
//! **The digests do not prove** who made the checkpoint, or that this program did: anyone who can write to the folder
//! can change a file and the manifest with it. They do not prove that the weights are good, or do what is claimed, or
//! that the checkpoint is the newest: an old folder put back is still valid. Between the check and the read, someone
//! with write access can also change a file in place and reset its modification time. If the origin matters, compare a
//! digest of `manifest.json` with one from a source you trust; it covers all files.
//!
//! # The files
//!
//! ```text
//! folder             the checkpoints of a run: which are complete, and which is the newest
//! ├── staging           one save: all ranks write, one rename publishes
//! │   ├── rank_files       writes the files of one rank and hashes them on the way
//! │   └── piece            the data a rank saves
//! │       └── scalar          numbers outside tensors
//! ├── retention         which checkpoints are kept, and the removal of the others
//! ├── disk              every operation that changes the disk, so that tests can make each fail
//! └── file_names        the names of files and folders
//! checkpoint         a checked checkpoint, open for reading: whole tensors, or rows and columns, from all ranks' files
//! ├── examine           checks a checkpoint, without trusting unchecked data: opens it, or reports everything wrong
//! ├── packed            matrices that are saved as codes of a few bits, and read as f32
//! ├── consolidate       merges all ranks' files into one safetensors file or Hugging Face shards
//! │   ├── cast             converts floats to another dtype
//! │   ├── merge            adds LoRA products to their matrices
//! │   └── shards           assigns tensors to files
//! └── diff              compares two checkpoints
//!     └── elements         the dtypes a checkpoint can hold, and the numbers in a tensor's bytes
//! manifest           the files with their sizes and digests
//! header             which rows and columns of which tensors a file holds
//! columns            ranges of a tensor's last axis
//! regular            opens plain files for reading, and nothing else
//! digest             BLAKE3, and SHA-256 for format 1
//! error              the errors, with advice
//! ```

mod checkpoint;
mod columns;
mod consolidate;
mod diff;
mod digest;
mod disk;
mod elements;
mod error;
mod examine;
mod file_names;
mod folder;
mod header;
mod manifest;
mod packed;
mod piece;
mod rank_files;
mod regular;
mod retention;
mod scalar;
mod staging;

pub use checkpoint::{Checkpoint, Info, Tensors};
pub use consolidate::{Consolidate, Consolidated, What, consolidate, remove_staged};
pub use diff::{Change, Diff, Section, diff};
pub use digest::{Algorithm, Digest};
pub use disk::{Disk, RealDisk};
pub use error::{CheckpointError, Result};
pub use examine::{Report, verify};
pub use file_names::{TRAINER, TRAINER_IN_RON};
pub use folder::{Folder, Saved};
pub use manifest::{FileEntry, Manifest};
pub use packed::PackedMatrices;
pub use piece::{Bytes, Piece, RankState};
pub use retention::Keep;
pub use safetensors::Dtype;
pub use scalar::Scalar;
pub use staging::Staging;

/// The format version that this crate writes. It also reads versions 1 and 2.
pub const FORMAT: u32 = 3;
