//! Makes one safetensors file, or a few with an index, out of the files of all ranks.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use crate::disk::{self, Disk, RealDisk, at, name_of};
use crate::dtypes::tensor_bytes;
use crate::elements::is_float;
use crate::error::{CheckpointError, Result, dtype_name};
use crate::header::{encoded, file_order};
use crate::{Checkpoint, Info, Tensors};

mod cast;
mod merge;
mod shards;

use cast::cast;
use merge::{Product, is_factor};
use shards::{Index, cut, shard_name};

/// Bytes of a tensor that are in memory at once, or one row where a row has more.
const CHUNK: usize = 16 << 20;

/// Which tensors are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The parameters as they were trained.
    Parameters,
    /// Their average, where weights were averaged.
    Average,
}

/// How tensors are written. By default: as they are, in one file, each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consolidate {
    /// The dtype of all floats, F32, BF16 or F16, rounded to the nearest, ties to even. Integers and booleans
    /// stay as they are.
    pub dtype: Option<Dtype>,
    /// The most bytes of tensors in a file. A tensor that has more stands in a file of its own.
    pub shard_bytes: Option<u64>,
    /// Whether tied weights are written under each of their names. `transformers` needs one only.
    pub with_aliases: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consolidated {
    /// The files, the index last where there is one.
    pub files: Vec<PathBuf>,
    /// How many tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Finite numbers that became infinite in the dtype that was asked for.
    pub infinite: u64,
}

/// One tensor to be written.
struct Output<'a> {
    name: &'a str,
    /// The name that it is saved under: another one for an alias.
    saved: &'a str,
    info: &'a Info,
    dtype: Dtype,
    bytes: u64,
    /// What is added to it.
    product: Option<Product>,
}

/// Writes the whole tensors of a checkpoint to `to`, as in `model.safetensors`, in little memory: at most one
/// tensor's, and less where it has many rows.
///
/// The same tensors give the same bytes, whichever number of ranks saved them. What is at `to` stays until all is
/// written. With [`shard_bytes`](Consolidate::shard_bytes), and where one file is not enough, the files are
/// `model-00001-of-00003.safetensors` and so on, with `model.safetensors.index.json`, as Hugging Face has them.
/// `progress` is told bytes written, of all. Matrices that were trained by factors of low rank are written with
/// their scaled product added, summed in f64 and rounded once, and the factors are left out.
///
/// # Errors
///
/// [`CheckpointError::Consolidate`] of what cannot be asked for, [`CheckpointError::Io`], and those of
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
        refused(to, "tensors whose bytes can be summed", "more than 2^64 bytes", "leave out the aliases")
    })?;
    let shards = cut(&sizes, options.shard_bytes);
    let names: Vec<String> = match shards.len() {
        1 => vec![name_of(to)],
        count => (0..count).map(|shard| shard_name(&stem, shard, count)).collect(),
    };
    if shards.len() > 1 && to.symlink_metadata().is_ok() {
        let found = "a file that would be read in their place";
        return Err(refused(
            to,
            "no model in one file beside the shards",
            found,
            "remove it, or name another file",
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
        // The last: what it names is there before it.
        staged.push(file);
    }
    for file in staged {
        result.files.push(file.put_in_place()?);
    }
    let point = "sync the folder of the model";
    at(point, folder, RealDisk.sync_dir(point, folder))?;
    Ok(result)
}

/// Writes one file with some tensors, and tells for each part how many bytes, and how many numbers became
/// infinite.
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
    // `transformers` refuses files that do not say so.
    let header = encoded(header, ("format", "pt".into())).map_err(|found| {
        refused(&file.place, "tensors that fit a safetensors file", found, "cut it into shards")
    })?;
    file.write(&header)?;
    for output in outputs {
        for rows in Tensors::cuts(output.info, CHUNK) {
            let mut bytes = tensors.read_rows(output.saved, rows.clone())?;
            let (mut dtype, mut infinite) = (output.info.dtype, 0);
            if let Some(product) = &output.product {
                bytes = product.added(tensors, dtype, &bytes, rows)?;
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

/// Checks the target and the options, and gives the target's name without its ending.
fn checked(checkpoint: &Checkpoint, to: &Path, options: &Consolidate) -> Result<String> {
    if let Some(dtype) = options.dtype.filter(|dtype| ![Dtype::F32, Dtype::BF16, Dtype::F16].contains(dtype))
    {
        return Err(refused(to, "the dtype F32, BF16 or F16", dtype_name(dtype), "name one of these"));
    }
    if options.shard_bytes == Some(0) {
        return Err(refused(to, "shards of at least 1 byte", "0", "name more"));
    }
    let name = name_of(to);
    let Some(stem) = name.strip_suffix(".safetensors").filter(|stem| !stem.is_empty()) else {
        return Err(refused(to, "a file named as `model.safetensors`", format!("`{name}`"), "name it so"));
    };
    if to.is_dir() {
        return Err(refused(to, "the name of a file", "a folder", "name a file in it"));
    }
    let inside = to.parent().and_then(|parent| parent.canonicalize().ok());
    if inside.is_some_and(|inside| checkpoint.path.canonicalize().is_ok_and(|path| path == inside)) {
        return Err(refused(to, "a file outside the checkpoint", "one in it", "name another folder"));
    }
    Ok(stem.into())
}

/// The tensors to be written, sorted by name.
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
        // A wider dtype may need more than the checkpoint has.
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

/// A file that is written beside its place, and removed again unless it is put there.
struct Staged {
    file: fs::File,
    path: PathBuf,
    place: PathBuf,
}

impl Staged {
    fn new(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!(".staged-{name}"));
        Ok(Self { file: disk::create_file(&RealDisk, &path)?, path, place: folder.join(name) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        at("write the model", &self.path, RealDisk.write("", &mut self.file, bytes))
    }

    fn sync(&self) -> Result<()> {
        at("sync the model", &self.path, RealDisk.sync_file("", &self.file))
    }

    fn put_in_place(self) -> Result<PathBuf> {
        at("rename the model", &self.place, RealDisk.rename("", &self.path, &self.place))?;
        Ok(self.place.clone())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Not there any more where it was put in place.
        let _ = fs::remove_file(&self.path);
    }
}
