//! The header of a rank's safetensors file: which tensors it holds, which rows and columns of them, and where.
//!
//! It has a single valid encoding, like the manifest: a reader accepts exactly the bytes that the writer would
//! produce for the same tensors. That rules out duplicate names, unknown fields and hidden bytes.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::elements::tensor_bytes;
use crate::error::dtype_name;
use crate::{Scalar, columns};

/// The maximum bytes of a header's text, which also bounds the cost of parsing it.
pub(crate) const MAX_HEADER: u64 = 64 << 20;
/// The maximum bytes of a tensor's name.
const MAX_NAME: usize = 4096;
/// Bytes of the length before the text.
pub(crate) const LENGTH: u64 = 8;
/// This crate's entry in safetensors' metadata. A single one, because safetensors writes entries in any order.
const ENTRY: &str = "firebrick";

/// A file's description of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    /// The shape of the whole tensor.
    pub(crate) shape: Vec<usize>,
    /// The rows of the first axis in the file, or `None` for all.
    pub(crate) rows: Option<Range<usize>>,
    /// The columns of the last axis in the file, or `None` for all.
    pub(crate) columns: Option<Vec<Range<usize>>>,
}

impl Part {
    /// Returns the shape of the rows and columns in the file.
    fn held(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let (Some(first), Some(rows)) = (shape.first_mut(), &self.rows) {
            *first = rows.len();
        }
        if let (Some(last), Some(columns)) = (shape.last_mut(), &self.columns) {
            *last = columns::count(columns);
        }
        shape
    }

    /// Returns the bytes in the file, or why it cannot hold such a tensor.
    pub(crate) fn bytes(&self) -> Result<usize, String> {
        let whole = tensor_bytes(self.dtype, &self.shape).ok_or_else(|| {
            format!("{} of shape {:?}, which cannot be saved", dtype_name(self.dtype), self.shape)
        })?;
        if let Some(rows) = &self.rows {
            let Some(&first) = self.shape.first() else {
                return Err(format!("rows {rows:?} of a tensor without axes"));
            };
            if rows.start > rows.end || rows.end > first {
                return Err(format!("rows {rows:?} of {first}"));
            }
        }
        if let Some(columns) = &self.columns {
            let (&[last] | &[_, last]) = self.shape.as_slice() else {
                return Err(format!("columns of a tensor with {} axes, not one or two", self.shape.len()));
            };
            if let (Some(rows), [_]) = (&self.rows, self.shape.as_slice()) {
                return Err(format!("rows {rows:?} and columns of a tensor with one axis"));
            }
            columns::check(columns, last)?;
        }
        // At most the whole tensor's bytes, whose count did not overflow.
        Ok(tensor_bytes(self.dtype, &self.held()).unwrap_or(whole))
    }
}

/// Rejects an invalid tensor name.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name == "__metadata__" {
        return Err("`__metadata__`, which safetensors reserves".into());
    }
    if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
        let shown: String = name.chars().take(80).collect();
        return Err(format!("a name of {} bytes, {shown:?}", name.len()));
    }
    Ok(())
}

/// A file's tensors, in the order of their bytes, and its scalars.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Header {
    /// Each part, with the offset of its bytes after the header.
    pub(crate) parts: Vec<(Part, u64)>,
    pub(crate) scalars: BTreeMap<String, Scalar>,
}

/// This crate's entry in safetensors' metadata.
#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Entry {
    slices: BTreeMap<String, Slice>,
    scalars: BTreeMap<String, Scalar>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Slice {
    shape: Vec<usize>,
    /// The first row; 0 for columns of a tensor with one axis.
    start: usize,
    /// The first column of each range, and the one after its last. A slice of whole rows has no such field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    columns: Option<Vec<[usize; 2]>>,
}

/// Orders the tensors of a file as the safetensors library does: larger elements first, which aligns each tensor to
/// its element size, then by name.
pub(crate) fn file_order(a: (Dtype, &str), b: (Dtype, &str)) -> std::cmp::Ordering {
    b.0.cmp(&a.0).then(a.1.cmp(b.1))
}

/// Encodes the length and text of a safetensors header for contiguous tensors.
pub(crate) fn encoded(
    tensors: impl IntoIterator<Item = (String, Dtype, Vec<usize>, usize)>,
    metadata: (&str, String),
) -> Result<Vec<u8>, String> {
    let mut end = 0usize;
    let mut infos = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = end;
        end = end.checked_add(bytes).ok_or("more bytes than can be counted")?;
        infos.push((name, TensorInfo { dtype, shape, data_offsets: (start, end) }));
    }
    let metadata = HashMap::from([(metadata.0.to_owned(), metadata.1)]);
    let header = Metadata::new(Some(metadata), infos).map_err(|error| error.to_string())?;
    let mut text = serde_json::to_vec(&header).map_err(|error| error.to_string())?;
    // Aligns the tensors to 8 bytes.
    text.resize(text.len().next_multiple_of(8), b' ');
    if text.len() as u64 > MAX_HEADER {
        return Err(format!("a header of {} bytes, more than {MAX_HEADER}", text.len()));
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text);
    Ok(bytes)
}

impl Header {
    /// Sorts the parts and checks each. Columns of all rows of a matrix become columns of a range of rows, because the
    /// file has one encoding for both. The error says what was found.
    pub(crate) fn new(mut parts: Vec<Part>, scalars: BTreeMap<String, Scalar>) -> Result<Self, String> {
        parts.sort_by(|a, b| file_order((a.dtype, &a.name), (b.dtype, &b.name)));
        let mut names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        names.extend(scalars.keys().map(String::as_str));
        names.sort_unstable();
        for name in &names {
            check_name(name)?;
        }
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("`{}` twice", twice[0]));
        }
        let mut start = 0u64;
        let mut placed = Vec::with_capacity(parts.len());
        for mut part in parts {
            if let ([first, _], Some(_), None) = (part.shape.as_slice(), &part.columns, &part.rows) {
                part.rows = Some(0..*first);
            }
            let bytes = part.bytes().map_err(|why| format!("`{}`: {why}", part.name))?;
            let end = start.checked_add(bytes as u64).ok_or("more bytes than can be counted")?;
            placed.push((part, start));
            start = end;
        }
        Ok(Self { parts: placed, scalars })
    }

    /// Returns the bytes of all parts.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.parts.last().map_or(0, |(part, start)| start + part.bytes().unwrap_or(0) as u64)
    }

    /// Encodes the bytes that precede the tensors in the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, String> {
        let mut entry = Entry { scalars: self.scalars.clone(), ..Default::default() };
        let mut tensors = Vec::with_capacity(self.parts.len());
        for (part, _) in &self.parts {
            if part.rows.is_some() || part.columns.is_some() {
                let start = part.rows.as_ref().map_or(0, |rows| rows.start);
                let columns = part.columns.as_ref();
                let columns =
                    columns.map(|columns| columns.iter().map(|range| [range.start, range.end]).collect());
                let slice = Slice { shape: part.shape.clone(), start, columns };
                entry.slices.insert(part.name.clone(), slice);
            }
            tensors.push((part.name.clone(), part.dtype, part.held(), part.bytes()?));
        }
        let entry = serde_json::to_string(&entry).map_err(|error| error.to_string())?;
        encoded(tensors, (ENTRY, entry))
    }

    /// Decodes an encoded header, including its length, of a file with `file_bytes` bytes.
    pub(crate) fn decode(bytes: &[u8], file_bytes: u64) -> Result<Self, String> {
        let text = bytes.get(LENGTH as usize..).ok_or("no header")?;
        let header: Metadata = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let entry = header.metadata().as_ref().and_then(|metadata| metadata.get(ENTRY));
        let entry = entry.ok_or_else(|| format!("no entry `{ENTRY}`"))?;
        let Entry { mut slices, scalars } =
            serde_json::from_str(entry).map_err(|error| format!("an entry `{ENTRY}` with {error}"))?;
        let mut parts = Vec::new();
        for (name, info) in header.tensors() {
            let (mut shape, mut rows, mut columns) = (info.shape.clone(), None, None);
            if let Some(slice) = slices.remove(&name) {
                let ranges = slice.columns;
                columns = ranges.map(|ranges| ranges.into_iter().map(|[start, end]| start..end).collect());
                // The only axis of a tensor is cut into rows or columns. Of columns, the encoder writes the start 0.
                if columns.is_none() || slice.shape.len() != 1 {
                    let held = shape.first().copied().unwrap_or(0);
                    let end =
                        slice.start.checked_add(held).ok_or_else(|| format!("`{name}`: too many rows"))?;
                    rows = Some(slice.start..end);
                }
                shape = slice.shape;
            }
            parts.push(Part { name, dtype: info.dtype, shape, rows, columns });
        }
        let header = Self::new(parts, scalars)?;
        if header.encode()? != bytes {
            return Err("the same tensors in a different encoding".into());
        }
        let expected = (bytes.len() as u64).checked_add(header.data_bytes());
        if expected != Some(file_bytes) {
            return Err(format!("tensors of {} bytes in a file of {file_bytes}", header.data_bytes()));
        }
        Ok(header)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "columns are lists of ranges")]
mod tests {
    use super::*;
    use crate::elements::DTYPES;

    fn part(name: &str, dtype: Dtype, shape: &[usize], rows: Option<Range<usize>>) -> Part {
        Part { name: name.into(), dtype, shape: shape.into(), rows, columns: None }
    }

    fn with_columns(part: Part, columns: &[Range<usize>]) -> Part {
        Part { columns: Some(columns.into()), ..part }
    }

    /// Columns of two rows, of all rows, of no rows, and of a tensor with one axis.
    fn columns() -> Header {
        let parts = vec![
            with_columns(part("a", Dtype::F32, &[4, 9], Some(2..4)), &[1..3, 4..6, 7..9]),
            with_columns(part("b", Dtype::U8, &[3, 2], None), &[0..1]),
            with_columns(part("c", Dtype::U8, &[3, 2], Some(3..3)), &[0..1, 1..2]),
            with_columns(part("d", Dtype::BF16, &[9], None), &[0..1, 3..4, 6..7]),
            with_columns(part("e", Dtype::U8, &[4, 9], Some(0..2)), &[5..5]),
            with_columns(part("f", Dtype::U8, &[9], None), &[9..9]),
        ];
        Header::new(parts, BTreeMap::new()).unwrap()
    }

    fn some() -> Header {
        let parts = vec![
            part("b", Dtype::F32, &[5, 2], Some(2..4)),
            part("a", Dtype::BF16, &[3], None),
            part("scalar", Dtype::I64, &[], None),
            part("empty", Dtype::F32, &[0, 7], None),
            part("no rows", Dtype::F32, &[5, 2], Some(5..5)),
        ];
        Header::new(parts, BTreeMap::from([("s".into(), Scalar::Float(f64::NAN))])).unwrap()
    }

    #[test]
    fn headers_round_trip() {
        let bytes = some().encode().unwrap();
        let read = Header::decode(&bytes, bytes.len() as u64 + 8 + 16 + 6).unwrap();
        assert_eq!(read, some());
        let starts: Vec<_> = read.parts.iter().map(|(part, start)| (part.name.as_str(), *start)).collect();
        assert_eq!(starts, [("scalar", 0), ("b", 8), ("empty", 24), ("no rows", 24), ("a", 24)]);
        assert!(Header::decode(&bytes, bytes.len() as u64 + 31).unwrap_err().contains("30 bytes in a file"));
    }

    #[test]
    fn columns_round_trip() {
        let bytes = columns().encode().unwrap();
        let read = Header::decode(&bytes, bytes.len() as u64 + 48 + 6 + 3).unwrap();
        assert_eq!(read, columns());
        let held: Vec<_> =
            read.parts.iter().map(|(part, start)| (part.name.as_str(), part.held(), *start)).collect();
        let expected = [
            ("a", vec![2, 6], 0),
            ("d", vec![3], 48),
            ("b", vec![3, 1], 54),
            ("c", vec![0, 2], 57),
            ("e", vec![2, 0], 57),
            ("f", vec![0], 57),
        ];
        assert_eq!(held, expected);
        // Of a matrix, all rows are the range of them.
        assert_eq!(read.parts[2].0.rows, Some(0..3));
        assert_eq!(read.parts[1].0.rows, None);
        let text = String::from_utf8_lossy(&bytes[8..]);
        let a = r#"\"a\":{\"shape\":[4,9],\"start\":2,\"columns\":[[1,3],[4,6],[7,9]]}"#;
        assert!(text.contains(a), "{text}");
    }

    #[test]
    fn without_columns_the_bytes_are_those_of_older_versions() {
        let rows = part("w", Dtype::F32, &[5, 2], Some(1..3));
        let bytes = Header::new(vec![rows], BTreeMap::new()).unwrap().encode().unwrap();
        let text = concat!(
            r#"{"__metadata__":{"firebrick":"{\"slices\":{\"w\":{\"shape\":[5,2],\"start\":1}},\"scalars\":{}}"},"#,
            r#""w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#,
        );
        assert_eq!(String::from_utf8_lossy(&bytes[8..]).trim_end(), text);
    }

    #[test]
    fn the_safetensors_library_reads_every_dtype() {
        for dtype in DTYPES {
            let header = Header::new(vec![part("x", dtype, &[3, 2], Some(1..3))], BTreeMap::new()).unwrap();
            let mut file = header.encode().unwrap();
            file.resize(file.len() + 4 * dtype.bitsize() / 8, 1);
            let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
            assert_eq!(tensors.tensor("x").unwrap().shape(), [2, 2]);
            assert_eq!(tensors.tensor("x").unwrap().dtype(), dtype);
        }
    }

    #[test]
    fn other_encodings_are_errors() {
        for header in [some(), columns()] {
            let bytes = header.encode().unwrap();
            let file_bytes = bytes.len() as u64 + header.data_bytes();
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    // The reader of the file checks the length before the text.
                    match Header::decode(&other, file_bytes) {
                        Ok(read) => assert_ne!(read, header, "byte {at}, bit {bit}"),
                        Err(why) => assert!(!why.is_empty()),
                    }
                }
            }
            assert!(Header::decode(&bytes[..7], file_bytes).is_err());
        }
    }

    #[test]
    fn impossible_columns_are_errors() {
        let matrix = |rows| part("a", Dtype::U8, &[4, 6], rows);
        for (wrong, message) in [
            (with_columns(matrix(None), &[]), "`a`: an empty list of columns"),
            (with_columns(matrix(None), &[4..7]), "columns 4..7 of 6"),
            (with_columns(matrix(Some(3..5)), &[0..1]), "rows 3..5 of 4"),
            (with_columns(matrix(None), &[2..4, 0..2]), "columns 0..2 after columns 2..4"),
            (with_columns(matrix(None), &[0..1, 3..3]), "columns 3..3, which are none"),
            (with_columns(part("a", Dtype::U8, &[], None), &[0..1]), "a tensor with 0 axes"),
            (with_columns(part("a", Dtype::U8, &[2, 2, 2], None), &[0..1]), "a tensor with 3 axes"),
            (with_columns(part("a", Dtype::U8, &[4], Some(0..4)), &[0..1]), "rows 0..4 and columns"),
            (with_columns(part("a", Dtype::U8, &[usize::MAX, 2], None), &[0..1]), "cannot be saved"),
        ] {
            let found = Header::new(vec![wrong], BTreeMap::new()).unwrap_err();
            assert!(found.contains(message), "{found}");
        }
        // Columns without bytes, whose axis has more bytes than can be counted.
        let many = part("a", Dtype::F64, &[0, usize::MAX], None);
        let header = Header::new(vec![with_columns(many, &[1..usize::MAX])], BTreeMap::new()).unwrap();
        let bytes = header.encode().unwrap();
        assert_eq!(Header::decode(&bytes, bytes.len() as u64), Ok(header));
    }

    #[test]
    fn impossible_headers_are_errors() {
        let none = BTreeMap::new;
        for (wrong, message) in [
            (part("", Dtype::F32, &[1], None), "a name of 0 bytes"),
            (part("a\n", Dtype::F32, &[1], None), "a name of 2 bytes"),
            (part("__metadata__", Dtype::F32, &[1], None), "which safetensors reserves"),
            (part("a", Dtype::F4, &[2], None), "F4 of shape [2]"),
            (part("a", Dtype::F32, &[1 << 62, 4], None), "cannot be saved"),
            (part("a", Dtype::F32, &[], Some(0..1)), "without axes"),
            (part("a", Dtype::F32, &[4], Some(3..5)), "rows 3..5 of 4"),
        ] {
            let found = Header::new(vec![wrong], none()).unwrap_err();
            assert!(found.contains(message), "{found}");
        }
        let a = part("a", Dtype::F32, &[1], None);
        assert_eq!(Header::new(vec![a.clone(), a.clone()], none()).unwrap_err(), "`a` twice");
        let scalars = BTreeMap::from([("a".into(), Scalar::Bool(true))]);
        assert_eq!(Header::new(vec![a], scalars).unwrap_err(), "`a` twice");
    }
}
