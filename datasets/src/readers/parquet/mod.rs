//! Parquet: columns of values with types.

mod deltas;
mod footer;
mod levels;
mod pages;
mod thrift;
mod values;

use std::{path::Path, sync::Arc};

use parquet::{
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
    record::{Row, reader::RowIter},
    schema::types::Type,
};

use super::{Files, Place, Reader, Record, Records, record::brief, records, unpacked::open_ordinary};
use crate::{DataError, panics::caught_silently};

/// Reads Parquet (<https://parquet.apache.org>), row by row. Each column is a field.
///
/// Numbers, Booleans and texts are values of their own kind, bytes are texts if they are UTF-8, and
/// dates and times are the number that is stored. A list is a [`List`](crate::Value::List), a group
/// or a map is a [`Map`](crate::Value::Map). A row with anything else in it is malformed: other bytes,
/// a decimal, an unsigned number from 2^63.
///
/// Memory is used for one page of each column, so it helps to name the
/// [`columns`](Self::columns) that are needed. A page that unpacks to more than 64 MiB and 1032 times
/// its size is refused, and so is a list of more than 4,194,304 values. The line of a
/// [`Place`] is the number of the row, from 1.
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
}

impl ParquetReader {
    /// Reads all columns of these files.
    pub fn new(files: impl Into<Files>) -> Self {
        Self { files: files.into(), columns: None }
    }

    /// Reads only these columns, in this order. What is in a column cannot be chosen.
    pub fn columns(mut self, columns: Vec<String>) -> Self {
        self.columns = Some(columns);
        self
    }
}

impl Reader for ParquetReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let path = self.files.part(part)?.clone();
        let rows = open_rows(&path, self.columns.as_deref())?;
        let mut rows = Rows { path, rows, number: 0, names: Vec::new() };
        Ok(records(move || rows.next()))
    }
}

fn open_rows(path: &Path, columns: Option<&[String]>) -> Result<RowIter<'static>, DataError> {
    let mut file = open_ordinary(path).map_err(DataError::io(path))?;
    let length = file.metadata().map_err(DataError::io(path))?.len();
    footer::check_schema(&mut file, length).map_err(|found| damaged(path, found))?;
    let guard = file.try_clone().map_err(DataError::io(path))?;

    let opened = caught_silently(|| SerializedFileReader::new(file));
    let inner = opened.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))?;
    footer::check_columns(inner.metadata(), length).map_err(|found| damaged(path, found))?;

    let schema = inner.metadata().file_metadata().schema().clone();
    let projection = projection(&schema, columns).map_err(|(expected, found)| DataError::File {
        path: path.to_owned(),
        expected,
        found,
    })?;
    let rows = caught_silently(move || {
        RowIter::from_file_into(Box::new(pages::Guarded { inner, file: guard })).project(projection)
    });
    rows.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))
}

/// The schema with these columns only; else what was expected, and what was found.
fn projection(schema: &Type, columns: Option<&[String]>) -> Result<Option<Type>, (String, String)> {
    let names: Vec<_> = schema.get_fields().iter().map(|field| field.name()).collect();
    let mut sorted = names.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err((
            "another name for each column".into(),
            format!("two columns called {:?}", brief(pair[0])),
        ));
    }
    if names.is_empty() || columns.is_some_and(<[_]>::is_empty) {
        return Err(("at least one column".into(), "none".into()));
    }
    let Some(columns) = columns else { return Ok(None) };
    let mut fields = Vec::new();
    for (index, column) in columns.iter().enumerate() {
        if columns.iter().take(index).any(|before| before == column) {
            return Err(("each column once".into(), format!("the column `{column}` twice")));
        }
        match schema.get_fields().iter().find(|field| field.name() == column) {
            Some(field) => fields.push(field.clone()),
            None => {
                return Err((
                    format!("the column `{column}`"),
                    format!("the columns {}", brief(&names.join(", "))),
                ));
            }
        }
    }
    let projected = Type::group_type_builder(schema.name()).with_fields(fields).build();
    projected.map(Some).map_err(|error| ("columns that can be chosen".into(), brief(&error.to_string())))
}

struct Rows<R> {
    path: Arc<Path>,
    rows: R,
    /// How many rows were read whole.
    number: u64,
    /// The names of the columns.
    names: Vec<Arc<str>>,
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
        let place = Place { file: self.path.clone(), line: self.number };
        let columns = row.into_columns();
        if self.names.len() != columns.len() {
            self.names = columns.iter().map(|(name, _)| name.as_str().into()).collect();
        }
        let mut fields = Vec::with_capacity(columns.len());
        for (name, (_, field)) in self.names.iter().zip(columns) {
            let value = values::value(field).map_err(|found| DataError::Record {
                place: place.clone(),
                field: Some(brief(name)),
                expected: "a text, a number, a Boolean, or lists or groups of them".into(),
                found: found.into(),
            })?;
            fields.push((name.clone(), value));
        }
        Ok(Record::new(place, fields))
    }

    fn at_row(&self, message: String) -> DataError {
        damaged(&self.path, format!("damage after {} row(s): {message}", self.number))
    }
}

fn damaged(path: &Path, found: impl Into<String>) -> DataError {
    DataError::File { path: path.to_owned(), expected: "a whole Parquet file".into(), found: found.into() }
}

fn failed(path: &Path) -> impl FnOnce(ParquetError) -> DataError {
    move |error| damaged(path, brief(&error.to_string()))
}

#[cfg(test)]
mod tests;
