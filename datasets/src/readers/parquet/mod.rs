//! Reads Parquet: columns of typed values.

mod deltas;
mod footer;
mod levels;
mod pages;
mod thrift;
mod types;
mod values;

use std::{path::Path, sync::Arc};

use parquet::{
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
    record::{Row, reader::RowIter},
    schema::types::{Type, TypePtr},
};

use super::{Files, records};
use crate::{
    DataError, Place, Reader, Record, Records, counted, ordinary_file, records::brief,
    silent_panics::caught_silently,
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
/// values. The line of a [`Place`] is the row's number, from 1.
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

    /// Reads only these columns, in this order. You cannot select parts of a column.
    pub fn columns(self, columns: Vec<String>) -> Self {
        Self { columns: Some(columns), ..self }
    }
}

impl Reader for ParquetReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let path = self.files.part(part)?.clone();
        let (rows, unread) = open_rows(&path, self.columns.as_deref())?;
        let mut rows = Rows { path, rows, number: 0, names: Vec::new(), unread };
        Ok(records(move || rows.next()))
    }
}

/// The names and types of columns that cannot be read.
type Unread = Vec<(Arc<str>, &'static str)>;

fn open_rows(path: &Path, columns: Option<&[String]>) -> Result<(RowIter<'static>, Unread), DataError> {
    let mut file = ordinary_file::open(path).map_err(DataError::io(path))?;
    let length = file.metadata().map_err(DataError::io(path))?.len();
    footer::check_schema(&mut file, length).map_err(|found| damaged(path, found))?;
    let guard = file.try_clone().map_err(DataError::io(path))?;

    let opened = caught_silently(|| SerializedFileReader::new(file));
    let inner = opened.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))?;
    footer::check_columns(inner.metadata(), length).map_err(|found| damaged(path, found))?;

    let schema = inner.metadata().file_metadata().schema().clone();
    let (projection, unread) =
        projection(&schema, columns).map_err(|(expected, found)| DataError::file(path, expected, found))?;
    let rows = caught_silently(move || {
        RowIter::from_file_into(Box::new(pages::Guarded { inner, file: guard })).project(projection)
    });
    let rows = rows.map_err(|panic| damaged(path, brief(&panic)))?.map_err(failed(path))?;
    Ok((rows, unread))
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
    let is_read = |field: &TypePtr| types::unread(field).is_none();
    let Some(columns) = columns else {
        let fields: Vec<_> = schema.get_fields().iter().filter(|field| is_read(field)).cloned().collect();
        let unread: Unread = schema
            .get_fields()
            .iter()
            .filter_map(|field| Some((field.name().into(), types::unread(field)?)))
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
            Some(field) => match types::unread(field) {
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
        let mut unread = self.unread.clone();
        for (name, (_, field)) in self.names.iter().zip(columns) {
            match values::value(field) {
                Ok(value) => fields.push((name.clone(), value)),
                Err(found) => unread.push((name.clone(), found)),
            }
        }
        let mut record = Record::new(place, fields);
        record.unread = unread;
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
