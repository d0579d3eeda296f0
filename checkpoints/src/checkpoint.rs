//! A checked checkpoint, open for reading: whole tensors, or rows and columns, from the files of all ranks.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;

use safetensors::Dtype;

use crate::elements::element_bytes;
use crate::error::{CheckpointError, Result, dtype_name};
use crate::header::{Header, Part};
use crate::regular::Identity;
use crate::{Manifest, PackedMatrices, Scalar, columns, regular};

/// Bytes of rows to read at once where only some of their columns are wanted, or where other files hold the others.
const CHUNK: usize = 16 << 20;

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

/// Some rows of a tensor, or some columns of these rows, and the place of their bytes.
#[derive(Debug)]
struct TensorRange {
    rows: Range<usize>,
    /// The columns of a matrix, or `None` for all. A tensor with one axis has rows only.
    columns: Option<Vec<Range<usize>>>,
    file: usize,
    start: u64,
}

#[derive(Debug)]
struct Tensor {
    info: Info,
    /// In row order, without gaps. Places with columns of the same rows are side by side.
    places: Vec<TensorRange>,
}

/// Groups sorted places into bands: a place with whole rows, or all that hold columns of the same rows.
fn bands(places: &[TensorRange]) -> impl Iterator<Item = &[TensorRange]> {
    places.chunk_by(|a, b| a.columns.is_some() && b.columns.is_some() && a.rows == b.rows)
}

/// Tensors by name, whichever ranks hold their rows and columns.
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
                let Part { name, dtype, shape, rows, columns } = part;
                let info = Info { dtype, shape };
                let sliced = rows.is_some() || columns.is_some();
                let places = places(&info, rows, columns, file, before + start);
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
                tensor.places.extend(places);
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
        self.check_rows(name, &rows, info.rows())?;
        if let [_, to] = *info.shape
            && let Some(unpacked) = self.unpacked(name, &rows, slice::from_ref(&(0..to)))
        {
            return unpacked;
        }
        self.read_places(self.tensor(name)?, rows, None)
    }

    /// Reads the bytes of some columns of some rows of a whole tensor, from whichever files hold them: of each row
    /// these columns, side by side. The ranges of columns ascend and do not overlap, like
    /// [those of a piece](crate::Piece::columns).
    ///
    /// Of a matrix, the rows are those of the first axis, and the columns those of the last. Of a tensor with one axis, the
    /// columns are its elements, and `rows` is ignored, because the only axis cannot be cut twice. Where a file also holds
    /// other columns of these rows, they are read in parts of some megabytes, or of one row.
    ///
    /// ```
    /// # use firebrick_checkpoints::{Checkpoint, Result};
    /// # fn example(checkpoint: &Checkpoint) -> Result<()> {
    /// // The second half of each third of a joint projection `[8, 12]`, and of its bias `[12]`.
    /// let columns = [2..4, 6..8, 10..12];
    /// let weight = checkpoint.parameters().read_columns("joint.weight", 0..8, &columns)?;
    /// let bias = checkpoint.parameters().read_columns("joint.bias", 0..1, &columns)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The same as [`read_rows`](Self::read_rows), and [`CheckpointError::Columns`], also for a tensor with another number
    /// of axes.
    pub fn read_columns(&self, name: &str, rows: Range<usize>, columns: &[Range<usize>]) -> Result<Vec<u8>> {
        let tensor = self.tensor(name)?;
        let wrong = |expected: String, found: String| CheckpointError::Columns {
            path: self.folder.clone(),
            tensor: name.into(),
            expected,
            found,
        };
        let (&[width] | &[_, width]) = tensor.info.shape.as_slice() else {
            return Err(wrong("a tensor with one or two axes".into(), tensor.info.shown()));
        };
        columns::check(columns, width)
            .map_err(|found| wrong(format!("ascending ranges of columns between 0 and {width}"), found))?;
        if let [_] = *tensor.info.shape {
            let mut bytes = Vec::new();
            for range in columns {
                bytes.append(&mut self.read_places(tensor, range.clone(), None)?);
            }
            return Ok(bytes);
        }
        self.check_rows(name, &rows, tensor.info.rows())?;
        match self.unpacked(name, &rows, columns) {
            Some(unpacked) => unpacked,
            None => self.read_places(tensor, rows, Some(columns)),
        }
    }

    /// Rejects rows that a tensor with this number of rows lacks.
    fn check_rows(&self, name: &str, rows: &Range<usize>, all: usize) -> Result<()> {
        if rows.start > rows.end || rows.end > all {
            return Err(CheckpointError::Rows {
                path: self.folder.clone(),
                tensor: name.into(),
                rows: all,
                found: format!("{rows:?}"),
            });
        }
        Ok(())
    }

    /// Reads columns of rows of a matrix, if it is saved packed.
    fn unpacked(&self, name: &str, rows: &Range<usize>, columns: &[Range<usize>]) -> Option<Result<Vec<u8>>> {
        let Packed { how, parts } = self.packed.as_ref()?;
        let (parts, shape) = (parts.get(name)?, how.shapes.get(name)?);
        let [codes, scales] = parts.each_ref().map(|part| self.read_places(part, 0..part.info.rows(), None));
        let both = codes.and_then(|codes| Ok((codes, scales?)));
        Some(both.map(|(codes, scales)| how.rows(*shape, rows.clone(), columns, &codes, &scales)))
    }

    /// Reads rows that a tensor has, or the wanted columns of rows that a matrix has.
    fn read_places(
        &self,
        Tensor { info, places }: &Tensor,
        rows: Range<usize>,
        wanted: Option<&[Range<usize>]>,
    ) -> Result<Vec<u8>> {
        let element = element_bytes(info.dtype).unwrap_or(0);
        let row_bytes = wanted.map_or(info.row_bytes(), |columns| {
            // Like the bytes of a whole row: overflows only if there are no rows.
            columns::count(columns).saturating_mul(element)
        });
        // At most the bytes in the files, which were checked.
        let mut bytes = vec![0; rows.len() * row_bytes];
        let mut rest = &mut bytes[..];
        for band in bands(places) {
            let (start, end) = (band[0].rows.start.max(rows.start), band[0].rows.end.min(rows.end));
            if start >= end || rest.is_empty() {
                continue;
            }
            let (into, behind) = rest.split_at_mut((end - start) * row_bytes);
            band.iter().try_for_each(|place| self.read_place(info, place, start..end, wanted, into))?;
            rest = behind;
        }
        Ok(bytes)
    }

    /// Reads what a place holds of the wanted columns of some of its rows, into the bytes of these columns.
    fn read_place(
        &self,
        info: &Info,
        place: &TensorRange,
        rows: Range<usize>,
        wanted: Option<&[Range<usize>]>,
        into: &mut [u8],
    ) -> Result<()> {
        let file = &self.files[place.file];
        let start = |row_bytes| place.start + ((rows.start - place.rows.start) * row_bytes) as u64;
        if place.columns.is_none() && wanted.is_none() {
            return file.read_at(start(info.row_bytes()), into);
        }
        // Only matrices get here.
        let all = 0..info.shape.last().copied().unwrap_or(0);
        let all = slice::from_ref(&all);
        let (held, wanted) = (place.columns.as_deref().unwrap_or(all), wanted.unwrap_or(all));
        let element = element_bytes(info.dtype).unwrap_or(0);
        let [from, to] = [held, wanted].map(|columns| columns::count(columns) * element);
        let runs = columns::shared(held, wanted);
        match runs.as_slice() {
            [] => return Ok(()),
            // The file has what is wanted, and nothing else.
            [run] if [from, to] == [run.count * element; 2] => return file.read_at(start(from), into),
            _ => (),
        }
        let step = (CHUNK / from).clamp(1, rows.len());
        let (mut start, mut buffer) = (start(from), vec![0; step * from]);
        for into in into.chunks_mut(step * to) {
            let read = &mut buffer[..into.len() / to * from];
            file.read_at(start, read)?;
            start += read.len() as u64;
            for (into, row) in into.chunks_exact_mut(to).zip(read.chunks_exact(from)) {
                for run in &runs {
                    let [from, to, bytes] = [run.from, run.to, run.count].map(|count| count * element);
                    into[to..to + bytes].copy_from_slice(&row[from..from + bytes]);
                }
            }
        }
        Ok(())
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

/// Returns the places of a part, whose bytes begin at `start`.
fn places(
    info: &Info,
    rows: Option<Range<usize>>,
    columns: Option<Vec<Range<usize>>>,
    file: usize,
    mut start: u64,
) -> Vec<TensorRange> {
    let columns = columns.map(columns::joined);
    match (columns, info.shape.as_slice()) {
        // The columns of a tensor with one axis are rows of one element.
        (Some(columns), [_]) => {
            let places = columns.into_iter().map(|rows| {
                let bytes = rows.len() * info.row_bytes();
                let place = TensorRange { rows, columns: None, file, start };
                start += bytes as u64;
                place
            });
            places.collect()
        }
        (columns, shape) => {
            // All columns are whole rows, which are read without copies.
            let columns = columns.filter(|columns| match (columns.as_slice(), shape.last()) {
                ([only], Some(&last)) => *only != (0..last),
                _ => true,
            });
            vec![TensorRange { rows: rows.unwrap_or(0..info.rows()), columns, file, start }]
        }
    }
}

/// Sorts a tensor's places and checks that they hold each element once: bands hold each row once, and the places of each
/// band each column.
fn cover(files: &[VerifiedFile], name: &str, tensor: &mut Tensor) -> Result<()> {
    // An empty slice goes before the slice that starts at the same row.
    tensor.places.sort_by_key(|place| {
        let first = place.columns.iter().flatten().next().map(|columns| columns.start);
        (place.rows.start, place.rows.end, first)
    });
    let mut next = 0;
    for band in bands(&tensor.places) {
        let place = &band[0];
        if place.rows.start != next {
            let path = &files[place.file].path;
            return Err(wrong(path, name, format!("rows from {next}"), format!("rows {:?}", place.rows)));
        }
        next = place.rows.end;
        cover_columns(files, name, &tensor.info, band)?;
    }
    if next != tensor.info.rows() {
        let path = tensor.places.last().map_or(Path::new(""), |place| &files[place.file].path);
        return Err(wrong(path, name, format!("{} rows", tensor.info.rows()), format!("{next} rows")));
    }
    Ok(())
}

/// Checks that the places of a band hold each column of its rows once.
fn cover_columns(files: &[VerifiedFile], name: &str, info: &Info, band: &[TensorRange]) -> Result<()> {
    // Whole rows have all columns, and no rows have nothing in any.
    if band[0].columns.is_none() || band[0].rows.is_empty() {
        return Ok(());
    }
    let held = band.iter().flat_map(|place| place.columns.iter().flatten().map(|range| (range, place.file)));
    let mut held: Vec<_> = held.collect();
    held.sort_unstable_by_key(|(range, _)| (range.start, range.end));
    let (rows, mut next) = (&band[0].rows, 0);
    for (range, file) in held {
        if range.start != next {
            let expected = format!("columns from {next} in rows {rows:?}");
            return Err(wrong(&files[file].path, name, expected, format!("columns {range:?}")));
        }
        next = range.end;
    }
    let columns = info.shape.last().copied().unwrap_or(0);
    if next != columns {
        let path = band.last().map_or(Path::new(""), |place| &files[place.file].path);
        let expected = format!("{columns} columns in rows {rows:?}");
        return Err(wrong(path, name, expected, format!("{next} columns")));
    }
    Ok(())
}
