//! A checked checkpoint, open for reading: whole tensors, or rows, from the files of all ranks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::Dtype;

use crate::elements::element_bytes;
use crate::error::{CheckpointError, Result, dtype_name};
use crate::header::{Header, Part};
use crate::regular::Identity;
use crate::{Manifest, PackedMatrices, Scalar, regular};

/// A complete checkpoint that passed all checks: every file has the size and digest of the manifest, and the slices
/// form whole tensors.
///
/// Tensors stay on the disk until you read them.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) trainer: String,
    pub(crate) parameters: Tensors,
    pub(crate) optimizer: Tensors,
    pub(crate) average: Option<Tensors>,
}

impl Checkpoint {
    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the [trainer's file](Manifest::trainer_file).
    pub fn trainer(&self) -> &str {
        &self.trainer
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &Tensors {
        &self.parameters
    }

    /// Returns the optimizer's state.
    pub fn optimizer(&self) -> &Tensors {
        &self.optimizer
    }

    /// Returns the averaged weights, if the run averages weights.
    pub fn average(&self) -> Option<&Tensors> {
        self.average.as_ref()
    }
}

/// A file whose digest was checked.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedFile {
    pub(crate) path: PathBuf,
    pub(crate) identity: Identity,
}

impl VerifiedFile {
    /// Reads at an offset, if it is still the file that was checked.
    pub(crate) fn read_at(&self, start: u64, into: &mut [u8]) -> Result<()> {
        let read = self.open_at(start)?.read_exact(into);
        read.map_err(|error| CheckpointError::io("read", &self.path, error))
    }

    /// Opens the file at an offset, if it is still the one that was checked.
    pub(crate) fn open_at(&self, start: u64) -> Result<File> {
        let (mut file, metadata) = regular::open(&self.path)?;
        if Identity::of(&metadata) != self.identity {
            return Err(CheckpointError::Changed { path: self.path.clone() });
        }
        file.seek(SeekFrom::Start(start)).map_err(|error| CheckpointError::io("read", &self.path, error))?;
        Ok(file)
    }
}

/// The dtype and shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The dtype of its elements.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
}

impl Info {
    /// Returns the length of the first axis; 1 for a tensor without axes.
    pub fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// Returns the bytes of one row. Saturates only if the whole tensor's bytes overflow.
    pub fn row_bytes(&self) -> usize {
        let others = self.shape.iter().skip(1);
        others.fold(element_bytes(self.dtype).unwrap_or(0), |bytes, &length| bytes.saturating_mul(length))
    }

    /// Returns the bytes of the whole tensor.
    pub fn bytes(&self) -> usize {
        self.row_bytes().saturating_mul(self.rows())
    }

    /// Formats it like `F32 [4, 8]`.
    pub(crate) fn shown(&self) -> String {
        format!("{} {:?}", dtype_name(self.dtype), self.shape)
    }
}

/// Some rows of a tensor, and the place of their bytes.
#[derive(Debug)]
struct RowsInFile {
    rows: Range<usize>,
    file: usize,
    start: u64,
}

#[derive(Debug)]
struct Tensor {
    info: Info,
    /// In row order, without gaps.
    places: Vec<RowsInFile>,
}

/// Tensors by name, whichever ranks hold their rows.
#[derive(Debug)]
pub struct Tensors {
    /// The checkpoint's folder, for errors.
    folder: PathBuf,
    files: Arc<[VerifiedFile]>,
    tensors: BTreeMap<String, Tensor>,
    scalars: BTreeMap<String, Scalar>,
    packed: Option<Packed>,
}

/// Matrices that are saved packed.
#[derive(Debug)]
struct Packed {
    how: PackedMatrices,
    /// The codes and the scales of each, which have names of their own in the files.
    parts: BTreeMap<String, [Tensor; 2]>,
}

impl Tensors {
    /// Combines the headers of all ranks. Each entry is the index of its file, the number of bytes before its tensors,
    /// and the header.
    pub(crate) fn new(
        folder: &Path,
        files: Arc<[VerifiedFile]>,
        headers: Vec<(usize, u64, Header)>,
    ) -> Result<Self> {
        let mut tensors = BTreeMap::<String, Tensor>::new();
        let mut scalars = BTreeMap::new();
        for (file, before, header) in headers {
            let path = &files[file].path;
            for (name, scalar) in header.scalars {
                let first = *scalars.entry(name.clone()).or_insert(scalar);
                if first != scalar {
                    return Err(wrong(
                        path,
                        &name,
                        format!("{first:?}, as on another rank"),
                        format!("{scalar:?}"),
                    ));
                }
            }
            for (part, start) in header.parts {
                let Part { name, dtype, shape, rows } = part;
                let info = Info { dtype, shape };
                let sliced = rows.is_some();
                let rows = rows.unwrap_or(0..info.rows());
                let place = RowsInFile { rows, file, start: before + start };
                let tensor = tensors
                    .entry(name.clone())
                    .or_insert_with(|| Tensor { info: info.clone(), places: Vec::new() });
                if tensor.info != info {
                    return Err(wrong(path, &name, tensor.info.shown(), info.shown()));
                }
                if !sliced && !tensor.places.is_empty() {
                    return Err(wrong(
                        path,
                        &name,
                        "a tensor that is saved once",
                        "the whole tensor, and more of it elsewhere",
                    ));
                }
                tensor.places.push(place);
            }
        }
        for (name, tensor) in &mut tensors {
            if let Some(scalar) = scalars.get(name) {
                let path = &files[tensor.places[0].file].path;
                return Err(wrong(path, name, "a tensor only", format!("{scalar:?} of the same name")));
            }
            cover(&files, name, tensor)?;
        }
        Ok(Self { folder: folder.into(), files, tensors, scalars, packed: None })
    }

    /// Replaces the codes and scales of packed matrices by the matrices.
    pub(crate) fn unpacking(mut self, how: PackedMatrices) -> Result<Self> {
        let mut parts = BTreeMap::new();
        for (path, shape) in &how.shapes {
            let names = [PackedMatrices::codes_of(path), PackedMatrices::scales_of(path)];
            let mut found = Vec::new();
            for (name, (dtype, length)) in names.iter().zip(how.parts(*shape)) {
                let expected = Info { dtype, shape: vec![length] };
                let tensor = self.tensors.remove(name).filter(|tensor| tensor.info == expected);
                found.push(tensor.ok_or_else(|| {
                    wrong(&self.folder, name, expected.shown(), "none, or of another shape")
                })?);
            }
            let (Some(scales), Some(codes)) = (found.pop(), found.pop()) else { continue };
            let info = Info { dtype: Dtype::F32, shape: shape.to_vec() };
            if self.tensors.insert(path.clone(), Tensor { info, places: Vec::new() }).is_some() {
                return Err(wrong(&self.folder, path, "a matrix that is saved once", "packed and as it is"));
            }
            parts.insert(path.clone(), [codes, scales]);
        }
        Ok(Self { packed: Some(Packed { how, parts }), ..self })
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the dtype and shape of a tensor, if it exists.
    pub fn info(&self, name: &str) -> Option<&Info> {
        self.tensors.get(name).map(|tensor| &tensor.info)
    }

    /// Returns all names with dtypes and shapes, sorted.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Info)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), &tensor.info))
    }

    /// Returns the optimizer's numbers, by name.
    pub fn scalars(&self) -> &BTreeMap<String, Scalar> {
        &self.scalars
    }

    /// Reads the bytes of a whole tensor, row-major and little-endian, into a new buffer.
    ///
    /// # Errors
    ///
    /// The same as [`read_rows`](Self::read_rows).
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        let rows = self.tensor(name)?.info.rows();
        self.read_rows(name, 0..rows)
    }

    /// Reads the bytes of some rows of a whole tensor's first axis, from whichever files hold them. A tensor
    /// without axes has a single row, 0.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoTensor`], [`CheckpointError::Rows`], [`CheckpointError::Changed`] if a file changed after
    /// its digest was checked, [`CheckpointError::Io`].
    pub fn read_rows(&self, name: &str, rows: Range<usize>) -> Result<Vec<u8>> {
        let Tensor { info, .. } = self.tensor(name)?;
        if rows.start > rows.end || rows.end > info.rows() {
            return Err(CheckpointError::Rows {
                path: self.folder.clone(),
                tensor: name.into(),
                rows: info.rows(),
                found: format!("{rows:?}"),
            });
        }
        let packed = self.packed.as_ref().and_then(|packed| Some((packed, packed.parts.get(name)?)));
        if let (Some((packed, [codes, scales])), [from, to]) = (packed, info.shape.as_slice()) {
            let [codes, scales] = [codes, scales].map(|part| self.read_places(part, 0..part.info.rows()));
            return Ok(packed.how.rows([*from, *to], rows, &codes?, &scales?));
        }
        self.read_places(self.tensor(name)?, rows)
    }

    /// Reads rows that a tensor has.
    fn read_places(&self, Tensor { info, places }: &Tensor, rows: Range<usize>) -> Result<Vec<u8>> {
        // At most the bytes in the files, which were checked.
        let mut bytes = vec![0; rows.len() * info.row_bytes()];
        let mut rest = &mut bytes[..];
        for place in places {
            let (start, end) = (place.rows.start.max(rows.start), place.rows.end.min(rows.end));
            if start >= end || rest.is_empty() {
                continue;
            }
            let (wanted, behind) = rest.split_at_mut((end - start) * info.row_bytes());
            let skipped = (start - place.rows.start) * info.row_bytes();
            self.files[place.file].read_at(place.start + skipped as u64, wanted)?;
            rest = behind;
        }
        Ok(bytes)
    }

    /// Splits a tensor's rows into ranges of about `bytes` bytes, at least one row each.
    pub(crate) fn cuts(info: &Info, bytes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = (bytes / info.row_bytes().max(1)).max(1);
        // A tensor without bytes has nothing to read, however many rows.
        let rows = if info.bytes() == 0 { 0 } else { info.rows() };
        (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        self.tensors.get(name).ok_or_else(|| CheckpointError::NoTensor {
            path: self.folder.clone(),
            tensor: name.into(),
            hint: match self.tensors.keys().next() {
                Some(first) => format!("; it has {} tensors, such as `{first}`", self.tensors.len()),
                None => "; it has none".into(),
            },
        })
    }
}

fn wrong(
    path: &Path,
    tensor: &str,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> CheckpointError {
    CheckpointError::Slices {
        path: path.into(),
        tensor: tensor.into(),
        expected: expected.into(),
        found: found.into(),
    }
}

/// Sorts a tensor's places and checks that they hold each row once.
fn cover(files: &[VerifiedFile], name: &str, tensor: &mut Tensor) -> Result<()> {
    // An empty slice goes before the slice that starts at the same row.
    tensor.places.sort_by_key(|place| (place.rows.start, place.rows.end));
    let mut next = 0;
    for place in &tensor.places {
        if place.rows.start != next {
            let path = &files[place.file].path;
            return Err(wrong(path, name, format!("rows from {next}"), format!("rows {:?}", place.rows)));
        }
        next = place.rows.end;
    }
    if next != tensor.info.rows() {
        let path = tensor.places.last().map_or(Path::new(""), |place| &files[place.file].path);
        return Err(wrong(path, name, format!("{} rows", tensor.info.rows()), format!("{next} rows")));
    }
    Ok(())
}
