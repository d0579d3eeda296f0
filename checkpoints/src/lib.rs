//! Checkpoints that are there whole or not at all.
//!
//! This crate is the part of Firebrick's checkpoints that is bytes and files: it knows tensors by name, dtype,
//! shape and bytes, and nothing of Burn. Ranks save what they hold, whole tensors or rows of them; whoever opens
//! the checkpoint reads whole tensors, or any rows, whichever number of ranks saved it.
//!
//! ```
//! use firebrick_checkpoints::{Checkpoint, Dtype, Folder, Keep, Manifest, Piece, RankState};
//!
//! # let output = tempfile::tempdir()?;
//! let folder = Folder::new(output.path().join("checkpoints"));
//! // When a run claims the folder: what interrupted saves left goes.
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
//!         bytes: row.map(f32::to_le_bytes).concat().into(),
//!     };
//!     let state = RankState { rank, ranks: 2, parameters: vec![weight], ..Default::default() };
//!     manifest = manifest.files(staging.write_rank(&state)?);
//! }
//! // When all have written, rank 0 publishes, and only then removes what need not be kept.
//! staging.publish(manifest, "(step: 1000)")?;
//! folder.prune(&Keep::last(2).best(1))?;
//!
//! // Every file's sum is checked before anything in it is believed.
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
//! ├── latest                                   "step-00001000" and a line's end
//! ├── step-00000500
//! └── step-00001000
//!     ├── manifest.json                        run, step, world size, aliases, whether it is sound; each file's size and BLAKE3
//!     ├── trainer.ron                          a text of the trainer
//!     ├── parameters-00000-of-00002.safetensors    of rank 0 of 2
//!     ├── parameters-00001-of-00002.safetensors
//!     ├── optimizer-00000-of-00002.safetensors
//!     ├── optimizer-00001-of-00002.safetensors
//!     └── average-...                          of each rank, where weights are averaged
//! ```
//!
//! Tensors are named by module path, `blocks.0.attention.query.weight`, and in the optimizer's files by path and
//! field, `blocks.0.weight/momentum.moment_1`. A rank may hold rows of a tensor's first axis. The files are plain
//! [safetensors](https://github.com/huggingface/safetensors): a reader that knows nothing of us sees the rows as
//! tensors. Their metadata has one entry, `firebrick`, a JSON text: for each tensor that is a slice the whole
//! shape and the first row, and the optimizer's numbers, floats as the hexadecimal digits of their bits:
//!
//! ```json
//! {"slices": {"linear.weight": {"shape": [2, 2], "start": 1}}, "scalars": {"linear.weight/momentum.time": {"UInt": 7}}}
//! ```
//!
//! The same state gives the same bytes. `manifest.json` and each header have one spelling: what is read must be,
//! byte for byte, what would be written, so that nothing is said twice, left out or hidden. The manifest also holds
//! the BLAKE3 of its own content, and a count of the checkpoints of its folder: the highest is the newest, also in
//! a run that went back to an earlier step.
//!
//! This is format 2. In format 1 the sums are SHA-256, and their fields `sha256` instead of `blake3`; all else is the
//! same, and such checkpoints are read, verified and resumed from. A checkpoint of any other format is refused with
//! its number, and no save replaces it.
//!
//! # The protocol, and why a crash at any moment harms nothing
//!
//! 1. All ranks write their files into `.staging-step-00001000-ATTEMPT`, sync each and sync the folder. A crash
//!    leaves a folder that is not named as a checkpoint: nobody reads it, and [`Folder::clean`] removes it.
//! 2. The ranks meet (the trainer's barrier). Rank 0 writes `trainer.ron`, sees that each file of each rank is
//!    there with the size that was told, writes `manifest.json` and syncs files and folder. A crash is as before.
//! 3. If the step was saved before, that checkpoint is renamed to `.replaced-step-00001000`. A crash now leaves it
//!    whole under this name, under which [`Folder::list`] and [`Folder::latest`] find it while nothing has taken
//!    its place; [`Folder::clean`] gives it back its name.
//! 4. The staging folder is renamed to `step-00001000`, and the folder above is synced. A rename is there or it is
//!    not; and what it names was on the disk before. From here on the checkpoint is complete. A crash leaves
//!    `latest` naming an older one, which is complete too, until [`Folder::clean`] makes it name the newest.
//! 5. `.staged-latest` is written, synced, and renamed over `latest`: readers see the old name or the new one.
//! 6. What was replaced is removed, and then what need not be kept ([`Folder::prune`]): each is first renamed to
//!    `.removed-step-00000500`, so that it is no checkpoint any more before its first file goes.
//!
//! An error at any of these steps is a crash from which one can go on: it is returned, what was there is still
//! there, and another attempt may follow. The tests kill a process at each of these operations, in the middle of
//! each write and removal, and at random places, and make each of them fail. That synced bytes outlive a loss of
//! power is for the disk and the file system to keep.
//!
//! # What is believed
//!
//! A checkpoint may come from anyone. It is checked before it is used: the manifest's size, spelling, version and
//! sum; that it names exactly the files that ranks write, which rules out any path; that these are plain files, not
//! links, pipes or folders; sizes, before anything is allocated for them; the sum of every file; the headers, of a
//! bounded length, with counted sizes; and that slices cover each tensor once, of one dtype and shape. Files are
//! read into memory of their own, and not any more if they were changed after the check. Nothing in a checkpoint is
//! executed.
//!
//! **What the sums do not prove.** Who made the checkpoint, and that it was this program: whoever can write the
//! folder can change a file and the manifest with it. That the weights are good, or do what they are said to do.
//! That it is the newest there ever was: an old folder put back is a sound checkpoint. And between the check and
//! the reading someone with the right to write can still change a file in place and set its time back. If it
//! matters who made it, compare a sum of `manifest.json` with one that came by a way you trust; it stands for
//! all files.
//!
//! # The files
//!
//! ```text
//! folder             the checkpoints of a run: which are complete, and which is the newest
//! ├── staging           one save: all ranks write, one rename makes it a checkpoint
//! │   ├── rank_files       writes the files of one rank, summed while they are written
//! │   └── piece            what a rank hands over
//! │       └── scalar          numbers that are no tensors
//! ├── retention         which checkpoints are kept, and the removal of the others
//! ├── disk              every operation that changes the disk, so that tests make each fail
//! └── file_names        the names of files and folders
//! checkpoint         one that was checked, and can be read
//! ├── examine           checks it, in an order in which nothing is believed before
//! ├── tensors           whole tensors, or rows, out of the files of all ranks
//! ├── verify            all that is wrong with one, for people
//! ├── consolidate       one safetensors file, or Hugging Face's shards, out of all
//! │   ├── cast             floats in another dtype
//! │   └── shards           which tensor stands in which file
//! └── diff              how two differ
//!     └── elements         the numbers in a tensor's bytes
//! manifest           the files with their sizes and sums
//! header             which rows of which tensors a file holds
//! └── dtypes            the dtypes that there are
//! regular            opens plain files to read, and nothing else
//! digest             BLAKE3, and SHA-256 of format 1
//! error              what can go wrong, and what to do
//! ```

mod checkpoint;
mod consolidate;
mod diff;
mod digest;
mod disk;
mod dtypes;
mod elements;
mod error;
mod examine;
mod file_names;
mod folder;
mod header;
mod manifest;
mod piece;
mod rank_files;
mod regular;
mod retention;
mod scalar;
mod staging;
mod tensors;
mod verify;

pub use checkpoint::Checkpoint;
pub use consolidate::{Consolidate, Consolidated, What, consolidate};
pub use diff::{Change, Diff, Section, diff};
pub use digest::{Algorithm, Digest};
pub use disk::{Disk, RealDisk};
pub use error::{CheckpointError, Result};
pub use folder::{Folder, Saved};
pub use manifest::{FileEntry, Manifest};
pub use piece::{Bytes, Piece, RankState};
pub use retention::Keep;
pub use safetensors::Dtype;
pub use scalar::Scalar;
pub use staging::Staging;
pub use tensors::{Info, Tensors};
pub use verify::{Report, verify};

/// The version of the format that is written. Version 1, whose sums are SHA-256, is read too.
pub const FORMAT: u32 = 2;
