//! Reads Parquet: columns of typed values.

mod footer;
mod pages;
mod text_bytes;
mod thrift;
mod values;

use std::{fs::File, path::Path, sync::Arc};

use parquet::{
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
    record::{Row, reader::RowIter},
    schema::types::{Type, TypePtr},
};

use super::{Files, lines::LONGEST_RECORD, records};
use crate::{
    DataError, Reader, Record, RecordPlace, Records, counted, ordinary_file, panics::caught_silently,
    records::brief,
};

/// Reads Parquet (<https://parquet.apache.org>), row by row. Each column is a field.
///
/// Numbers, Booleans and texts become values of their own kind, bytes become texts if they are UTF-8, and dates and
/// times become the stored number. A list is a [`List`](crate::Value::List), a group or a map is a
/// [`Map`](crate::Value::Map). Other types are not supported: other bytes, decimals, intervals, and unsigned numbers
/// from 2^63. A record omits such a field; only reading that field, or selecting a column of such a type, returns an
/// error, which names the type.
///
/// Reading holds one page of each column in memory, so select only the [`columns`](Self::columns) that you need. A page
/// that unpacks to more than 64 MiB plus 1032 times its size is an error, and so is a list of more than 4,194,304
/// values. A row with too many bytes of text is malformed, as in other formats, and a file whose rows have more than
/// 64 MiB of text plus 1032 times its size is an error: a dictionary of one long text may stand for any number of copies.
/// The line of a [`RecordPlace`] is the row's number, from 1.
///
/// The names of a `ClassLabel`, which Hugging Face's `datasets` keeps in the file's metadata, are those of
/// [`class_names`](Reader::class_names).
///
/// # Example
///
/// ```
/// use firebrick_datasets::{ParquetReader, Reader};
///
/// # let path = std::path::Path::new("tests/corpus/zstd.parquet");
/// let reader = ParquetReader::new(path).columns(vec!["tags".into(), "s".into()]);
/// let row = reader.open(0)?.next().unwrap()?;
/// assert_eq!(row.texts("tags")?, ["a", "b"]);
/// assert_eq!(row.text("s.fr")?, "Bonjour");
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ParquetReader {
    files: Files,
    columns: Option<Vec<String>>,
    longest: usize,
}

impl ParquetReader {
    /// Reads all columns of these files.
    pub fn new(files: impl Into<Files>) -> Self {
        Self { files: files.into(), columns: None, longest: LONGEST_RECORD }
    }

    /// Reads only these columns, in this order. You cannot select parts of a column.
    pub fn columns(self, columns: Vec<String>) -> Self {
        Self { columns: Some(columns), ..self }
    }

    /// Sets the maximum number of bytes of text in a row; a longer one is malformed. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }
}

impl Reader for ParquetReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let path = self.files.part(part)?.clone();
        let (rows, unread, length) = open_rows(&path, self.columns.as_deref(), self.longest)?;
        let mut rows = Rows {
            rows,
            number: 0,
            names: Vec::new(),
            unread,
            longest: self.longest,
            length,
            left: pages::PAGE.saturating_add(length.saturating_mul(pages::RATIO)),
            path,
        };
        Ok(records(move || rows.next()))
    }

    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        let mut found: Option<Vec<String>> = None;
        for path in self.files.paths() {
            let (opened, ..) = open_file(path)?;
            let Some(names) = footer::class_names(opened.metadata(), field) else { continue };
            match &found {
                Some(before) if *before != names => {
                    let listed = |names: &[String]| brief(&names.join(", "));
                    let expected =
                        format!("the classes {} of `{field}`, as in the files before", listed(before));
                    return Err(DataError::file(path, expected, format!("the classes {}", listed(&names))));
                }
                _ => found = Some(names),
            }
        }
        Ok(found)
    }
}

/// The names and types of columns that cannot be read.
type Unread = Vec<(Arc<str>, &'static str)>;

/// Opens a file whose metadata the parser can be trusted with, and returns its length.
fn open_file(path: &Path) -> Result<(SerializedFileReader<File>, File, u64), DataError> {
    let mut file = ordinary_file::open(path).map_err(DataError::io(path))?;
    let length = file.metadata().map_err(DataError::io(path))?.len();
    footer::check_schema(&mut file, length).map_err(|found| damaged(path, found))?;
    let guard = file.try_clone().map_err(DataError::io(path))?;

    let opened = caught_silently(|| SerializedFileReader::new(file));
    let inner = opened.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))?;
    footer::check_columns(inner.metadata(), length).map_err(|found| damaged(path, found))?;
    Ok((inner, guard, length))
}

/// Returns the rows of a file, the columns that cannot be read, and the length of the file.
fn open_rows(
    path: &Path,
    columns: Option<&[String]>,
    longest: usize,
) -> Result<(RowIter<'static>, Unread, u64), DataError> {
    let (inner, file, length) = open_file(path)?;
    let schema = inner.metadata().file_metadata().schema().clone();
    let (projection, unread) =
        projection(&schema, columns).map_err(|(expected, found)| DataError::file(path, expected, found))?;
    let guarded = pages::Guarded { inner, file, longest: longest as u64 };
    let rows = caught_silently(move || RowIter::from_file_into(Box::new(guarded)).project(projection));
    let rows = rows.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))?;
    Ok((rows, unread, length))
}

/// Returns the schema of these columns, without those of a type that the crate cannot read, and the names of the
/// latter. The error is what was expected and what was found.
fn projection(schema: &Type, columns: Option<&[String]>) -> Result<(Option<Type>, Unread), (String, String)> {
    let names: Vec<_> = schema.get_fields().iter().map(|field| field.name()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err((
            "a different name for each column".into(),
            format!("two columns called {:?}", brief(pair[0])),
        ));
    }
    if names.is_empty() || columns.is_some_and(<[_]>::is_empty) {
        return Err(("at least one column".into(), "none".into()));
    }
    let is_read = |field: &TypePtr| values::unread(field).is_none();
    let Some(columns) = columns else {
        let fields: Vec<_> = schema.get_fields().iter().filter(|field| is_read(field)).cloned().collect();
        let unread: Unread = schema
            .get_fields()
            .iter()
            .filter_map(|field| Some((field.name().into(), values::unread(field)?)))
            .collect();
        return match (unread.is_empty(), fields.is_empty()) {
            (true, _) => Ok((None, unread)),
            (_, true) => Err((READ.into(), format!("only {}", unread[0].1))),
            _ => Ok((Some(projected(schema, fields)?), unread)),
        };
    };
    let mut fields = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        if columns.iter().take(index).any(|before| before == column) {
            return Err(("each column once".into(), format!("the column `{column}` twice")));
        }
        match schema.get_fields().iter().find(|field| field.name() == column) {
            Some(field) => match values::unread(field) {
                None => fields.push(field.clone()),
                Some(found) => return Err((format!("{READ} in the column `{column}`"), found.into())),
            },
            None => {
                return Err((
                    format!("the column `{column}`"),
                    format!("the columns {}", brief(&names.join(", "))),
                ));
            }
        }
    }
    Ok((Some(projected(schema, fields)?), Unread::new()))
}

/// The supported types.
const READ: &str = "texts, numbers, Booleans, or lists or groups of them";

fn projected(schema: &Type, fields: Vec<TypePtr>) -> Result<Type, (String, String)> {
    let built = Type::group_type_builder(schema.name()).with_fields(fields).build();
    built.map_err(|error| ("columns that can be chosen".into(), brief(&error.to_string())))
}

struct Rows<R> {
    path: Arc<Path>,
    rows: R,
    /// The number of rows read completely.
    number: u64,
    /// The names of the columns.
    names: Vec<Arc<str>>,
    /// Columns that are omitted from every row, and their types.
    unread: Vec<(Arc<str>, &'static str)>,
    /// The maximum number of bytes of text in a row.
    longest: usize,
    /// The number of bytes in the file.
    length: u64,
    /// The number of bytes of text that rows may still have.
    left: u64,
}

impl<R: Iterator<Item = parquet::errors::Result<Row>>> Rows<R> {
    fn next(&mut self) -> Result<Option<Record>, DataError> {
        let row = caught_silently(|| self.rows.next()).map_err(|panic| self.at_row(brief(&panic)))?;
        let Some(row) = row else { return Ok(None) };
        let row = row.map_err(|error| self.at_row(brief(&error.to_string())))?;
        self.number += 1;
        self.record(row).map(Some)
    }

    fn record(&mut self, row: Row) -> Result<Record, DataError> {
        let place = RecordPlace { file: self.path.clone(), line: self.number };
        let columns = row.into_columns();
        if self.names.len() != columns.len() {
            self.names = columns.iter().map(|(name, _)| name.as_str().into()).collect();
        }
        let mut fields = Vec::with_capacity(columns.len());
        let mut unread = self.unread.clone();
        for (name, (_, field)) in self.names.iter().zip(columns) {
            match values::value(field) {
                Ok(value) => fields.push((name.clone(), value)),
                Err(found) => unread.push((name.clone(), found)),
            }
        }
        let mut record = Record::new(place, fields);
        record.unread = unread;
        let bytes = record.text_bytes();
        self.left = match self.left.checked_sub(bytes as u64) {
            Some(left) => left,
            None => {
                return Err(self.at_row(format!(
                    "its {} unpack to more text than any data of that size",
                    counted(self.length, "byte")
                )));
            }
        };
        if bytes > self.longest {
            let expected = format!("a row of at most {} bytes", self.longest);
            return Err(DataError::record(record.place().clone(), None, expected, "a longer one"));
        }
        Ok(record)
    }

    fn at_row(&self, message: String) -> DataError {
        damaged(&self.path, format!("damage after {}: {message}", counted(self.number, "row")))
    }
}

fn damaged(path: &Path, found: impl Into<String>) -> DataError {
    DataError::file(path, "a whole Parquet file", found)
}

fn failed(path: &Path) -> impl FnOnce(ParquetError) -> DataError {
    move |error| damaged(path, brief(&error.to_string()))
}

#[cfg(test)]
mod tests;
