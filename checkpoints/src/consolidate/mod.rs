//! Merges the files of all ranks into one safetensors file, or several with an index.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::disk::{Disk, RealDisk, at, name_of};
use crate::elements::{is_float, tensor_bytes};
use crate::error::{CheckpointError, Result, dtype_name};
use crate::header::{encoded, file_order};
use crate::{Checkpoint, Info, Tensors};

mod cast;
mod merge;
mod shards;
mod staged;

use cast::cast;
use merge::{Product, is_factor};
use shards::{Index, cut, shard_name};
use staged::Staged;
pub use staged::remove_staged;

/// Bytes of a tensor in memory at once; one row if a row is larger.
const CHUNK: usize = 16 << 20;

/// Selects the tensors to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The parameters.
    Parameters,
    /// The averaged weights, if the run averages weights.
    Average,
}

/// Options for consolidation. By default it writes tensors unchanged, in one file, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consolidate {
    /// The dtype of all floats: F32, BF16 or F16, rounded to the nearest, ties to even. Integers and booleans
    /// keep their dtype.
    pub dtype: Option<Dtype>,
    /// The maximum bytes of tensors in a file. A larger tensor gets its own file.
    pub shard_bytes: Option<u64>,
    /// Whether to write tied weights under each of their names. `transformers` needs only one.
    pub with_aliases: bool,
}

/// The result of a consolidation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consolidated {
    /// The files; the index, if any, comes last.
    pub files: Vec<PathBuf>,
    /// The number of tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// The number of finite values that became infinite in the requested dtype.
    pub infinite: u64,
}

/// One tensor to write.
struct Output<'a> {
    name: &'a str,
    /// The name it is saved under, which differs for an alias.
    saved: &'a str,
    info: &'a Info,
    dtype: Dtype,
    bytes: u64,
    /// The product to add to it.
    product: Option<Product>,
}

/// Writes the whole tensors of a checkpoint to `to`, such as `model.safetensors`. Holds at most one tensor in memory,
/// and less if the tensor has many rows.
///
/// The same tensors give the same bytes, however many ranks saved them. An existing file at `to` stays until the new
/// one is complete. If [`shard_bytes`](Consolidate::shard_bytes) requires several files, they are named
/// `model-00001-of-00003.safetensors` and so on, with `model.safetensors.index.json`, as Hugging Face names them.
/// Calls `progress` with the bytes written so far and the total. Adds the scaled product of low-rank factors to
/// their matrix, scales its columns to their magnitudes if there are any, computes in f64, rounds once, and leaves the
/// factors out.
///
/// # Errors
///
/// [`CheckpointError::Consolidate`] for an invalid request, [`CheckpointError::Io`], and the errors of
/// [`Tensors::read_rows`].
pub fn consolidate(
    checkpoint: &Checkpoint,
    what: What,
    to: &Path,
    options: &Consolidate,
    progress: impl Fn(u64, u64),
) -> Result<Consolidated> {
    let tensors = match what {
        What::Parameters => &checkpoint.parameters,
        What::Average => checkpoint.average().ok_or_else(|| {
            refused(checkpoint.path(), "averaged weights", "none", "consolidate the parameters")
        })?,
    };
    let stem = checked(checkpoint, to, options)?;
    let outputs = outputs(checkpoint, tensors, options)?;
    let sizes: Vec<u64> = outputs.iter().map(|output| output.bytes).collect();
    let total = sizes.iter().try_fold(0u64, |sum, &bytes| sum.checked_add(bytes)).ok_or_else(|| {
        refused(
            to,
            "tensors of less than 2^64 bytes in total",
            "more than 2^64 bytes",
            "leave out the aliases",
        )
    })?;
    let shards = cut(&sizes, options.shard_bytes);
    let names: Vec<String> = match shards.len() {
        1 => vec![name_of(to)],
        count => (0..count).map(|shard| shard_name(&stem, shard, count)).collect(),
    };
    if shards.len() > 1 && to.symlink_metadata().is_ok() {
        let found = "a file that would be loaded instead of them";
        return Err(refused(
            to,
            "no model in a single file next to the shards",
            found,
            "remove it, or choose another name",
        ));
    }
    let folder = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut result = Consolidated { files: Vec::new(), tensors: outputs.len(), bytes: total, infinite: 0 };
    let mut done = 0;
    let mut written = |bytes, infinite| {
        done += bytes;
        result.infinite += infinite;
        progress(done, total);
    };
    let mut staged = Vec::new();
    for (name, shard) in names.iter().zip(&shards) {
        let mut file = Staged::new(folder, name)?;
        write(&mut file, tensors, shard.iter().map(|&at| &outputs[at]).collect(), &mut written)?;
        staged.push(file);
    }
    if shards.len() > 1 {
        let files = names.iter().zip(&shards);
        let map = files.flat_map(|(name, shard)| shard.iter().map(|&at| (outputs[at].name, name.as_str())));
        let index = Index::new(total, map.collect());
        let index = serde_json::to_string_pretty(&index).map_err(io::Error::from);
        let path = to.with_file_name(format!("{stem}.safetensors.index.json"));
        let mut file = Staged::new(folder, &name_of(&path))?;
        file.write(at("write the index", &path, index)?.as_bytes())?;
        file.write(b"\n")?;
        file.sync()?;
        // Last, so that every file the index names is already in place.
        staged.push(file);
    }
    for file in staged {
        result.files.push(file.put_in_place()?);
    }
    let point = "sync the folder of the model";
    at(point, folder, RealDisk.sync_dir(point, folder))?;
    Ok(result)
}

/// Writes one file with some tensors. Reports for each part its bytes and how many numbers became infinite.
fn write(
    file: &mut Staged,
    tensors: &Tensors,
    mut outputs: Vec<&Output>,
    written: &mut impl FnMut(u64, u64),
) -> Result<()> {
    outputs.sort_by(|a, b| file_order((a.dtype, a.name), (b.dtype, b.name)));
    let header = outputs.iter().map(|output| {
        (output.name.to_owned(), output.dtype, output.info.shape.clone(), output.bytes as usize)
    });
    // `transformers` rejects files without this entry.
    let header = encoded(header, ("format", "pt".into())).map_err(|found| {
        refused(&file.place, "tensors that fit a safetensors file", found, "cut it into shards")
    })?;
    file.write(&header)?;
    for output in outputs {
        let gains = match &output.product {
            Some(product) => product.gains(tensors, output.saved, Tensors::cuts(output.info, CHUNK))?,
            None => None,
        };
        for rows in Tensors::cuts(output.info, CHUNK) {
            let mut bytes = tensors.read_rows(output.saved, rows.clone())?;
            let (mut dtype, mut infinite) = (output.info.dtype, 0);
            if let Some(product) = &output.product {
                bytes = product.merged(tensors, dtype, &bytes, rows, gains.as_deref())?;
                dtype = Dtype::F64;
            }
            if output.dtype != dtype {
                bytes = cast(dtype, output.dtype, &bytes, &mut infinite);
            }
            file.write(&bytes)?;
            written(bytes.len() as u64, infinite);
        }
    }
    file.sync()
}

fn refused(
    place: &Path,
    expected: impl Into<String>,
    found: impl Into<String>,
    fix: &'static str,
) -> CheckpointError {
    CheckpointError::Consolidate {
        place: place.display().to_string(),
        expected: expected.into(),
        found: found.into(),
        fix,
    }
}

/// Checks the target and the options, and returns the target's stem.
fn checked(checkpoint: &Checkpoint, to: &Path, options: &Consolidate) -> Result<String> {
    if let Some(dtype) = options.dtype.filter(|dtype| ![Dtype::F32, Dtype::BF16, Dtype::F16].contains(dtype))
    {
        return Err(refused(to, "the dtype F32, BF16 or F16", dtype_name(dtype), "choose one of these"));
    }
    if options.shard_bytes == Some(0) {
        return Err(refused(to, "shards of at least 1 byte", "0", "raise the size"));
    }
    let name = name_of(to);
    let Some(stem) = name.strip_suffix(".safetensors").filter(|stem| !stem.is_empty()) else {
        return Err(refused(
            to,
            "a file name such as `model.safetensors`",
            format!("`{name}`"),
            "use such a name",
        ));
    };
    if to.is_dir() {
        return Err(refused(to, "the name of a file", "a folder", "specify a file in it"));
    }
    let inside = to.parent().and_then(|parent| parent.canonicalize().ok());
    if inside.is_some_and(|inside| checkpoint.path.canonicalize().is_ok_and(|path| path == inside)) {
        return Err(refused(to, "a file outside the checkpoint", "one in it", "choose another folder"));
    }
    Ok(stem.into())
}

/// Returns the tensors to write, sorted by name.
fn outputs<'a>(
    checkpoint: &'a Checkpoint,
    tensors: &'a Tensors,
    options: &Consolidate,
) -> Result<Vec<Output<'a>>> {
    let mut names: BTreeMap<&str, &str> = tensors.names().map(|name| (name, name)).collect();
    if options.with_aliases {
        let aliases = &checkpoint.manifest.aliases;
        names.extend(aliases.iter().map(|(alias, saved)| (alias.as_str(), saved.as_str())));
    }
    let scale = checkpoint.manifest.lora_scale;
    if scale.is_some() {
        names.retain(|_, saved| !is_factor(tensors, saved));
    }
    let outputs = names.into_iter().map(|(name, saved)| {
        let info = tensors.info(saved).ok_or_else(|| {
            let found = format!("no tensor `{saved}`, for which `{name}` is an alias");
            refused(&checkpoint.path, "tensors for all aliases", found, "leave out the aliases")
        })?;
        let dtype = options.dtype.filter(|_| is_float(info.dtype)).unwrap_or(info.dtype);
        // A wider dtype may need more bytes than the checkpoint has.
        let bytes = tensor_bytes(dtype, &info.shape).ok_or_else(|| {
            refused(&checkpoint.path, "tensors of countable bytes", format!("`{name}`"), "keep its dtype")
        })?;
        let product = match scale {
            None => None,
            Some(scale) => Product::of(tensors, saved, scale).map_err(|(expected, found)| {
                refused(&checkpoint.path, expected, found, "save the run again")
            })?,
        };
        Ok(Output { name, saved, info, dtype, bytes: bytes as u64, product })
    });
    outputs.collect()
}
