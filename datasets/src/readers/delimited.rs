//! Reads columns with a delimiter: CSV and TSV.

use std::io;
use std::io::{BufRead, Read};
use std::path::Path;
use std::sync::Arc;

use csv::ByteRecord;

use super::{Files, lines::LONGEST_RECORD, records, unpacked::Unpacked};
use crate::{DataError, Reader, Record, RecordPlace, Records, Value, counted, records::brief};

/// Reads columns with a delimiter from files, compressed or not. Every value is a [`Text`](Value::Text).
///
/// The first row names the fields, unless you set the names. Empty lines are skipped. A row whose number of values
/// differs from the number of names is malformed. An unclosed quote is an error that ends the file, since the start of
/// the next row is unknown.
///
/// | | delimiter | quote |
/// |---|---|---|
/// | [`csv`](Self::csv) | `,` | `"`, doubled within a quoted value |
/// | [`tsv`](Self::tsv) | tab | none: a `"` is a character like any other |
///
/// # Example
///
/// ```
/// use firebrick_datasets::{DelimitedReader, Reader};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.csv");
/// std::fs::write(&path, "label,text\n1,\"Well, well\"\n0,\"two\nlines\"\n1,so\n")?;
///
/// let records: Vec<_> = DelimitedReader::csv(path).open(0)?.collect::<Result<_, _>>()?;
/// assert_eq!(records[0].text("text")?, "Well, well");
/// assert_eq!((records[2].text("label")?, records[2].place().line), ("1", 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DelimitedReader {
    files: Files,
    delimiter: char,
    quote: Option<char>,
    names: Option<Vec<String>>,
    longest: usize,
}

impl DelimitedReader {
    /// Reads comma-separated values, which may be quoted.
    pub fn csv(files: impl Into<Files>) -> Self {
        let files = files.into();
        Self { files, delimiter: ',', quote: Some('"'), names: None, longest: LONGEST_RECORD }
    }

    /// Reads tab-separated values, without quotes.
    pub fn tsv(files: impl Into<Files>) -> Self {
        Self { delimiter: '\t', quote: None, ..Self::csv(files) }
    }

    /// Sets the delimiter, an ASCII character.
    pub fn delimiter(self, delimiter: char) -> Self {
        Self { delimiter, ..self }
    }

    /// Sets the quote around values that contain a delimiter or a newline: an ASCII character, or `None`.
    pub fn quote(self, quote: Option<char>) -> Self {
        Self { quote, ..self }
    }

    /// Sets the names of the fields, for files whose first row does not contain them, as it does with `None`.
    pub fn names(self, names: impl Into<Option<Vec<String>>>) -> Self {
        Self { names: names.into(), ..self }
    }

    /// Sets the maximum number of bytes in a row; a longer one ends the file with an error. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }

    fn rows(&self, path: &Arc<std::path::Path>) -> Result<Rows, DataError> {
        let delimiter = one_byte("delimiter", self.delimiter)?;
        let quote = self.quote.map(|quote| one_byte("quote", quote)).transpose()?;
        if quote == Some(delimiter) {
            let found = format!("{:?}", self.delimiter);
            return Err(DataError::setting("quote", "a different character from the delimiter", found));
        }
        let reader = csv::ReaderBuilder::new()
            .delimiter(delimiter)
            .quoting(quote.is_some())
            .quote(quote.unwrap_or(b'"'))
            .has_headers(false)
            // The reader detects rows of a different length itself, to report their place.
            .flexible(true)
            .from_reader(RowLines::open(path, self.longest)?);
        Ok(Rows { path: path.clone(), reader, row: ByteRecord::new(), names: Vec::new() })
    }
}

fn one_byte(name: &'static str, character: char) -> Result<u8, DataError> {
    match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() && !b"\r\n\0".contains(&byte) => Ok(byte),
        _ => Err(DataError::setting(
            name,
            "an ASCII character that does not end a line",
            format!("{character:?}"),
        )),
    }
}

impl Reader for DelimitedReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let mut rows = self.rows(self.files.part(part)?)?;
        match &self.names {
            Some(names) => rows.set_names(names.clone())?,
            None => rows.read_names()?,
        }
        Ok(records(move || rows.next()))
    }
}

struct Rows {
    path: Arc<std::path::Path>,
    reader: csv::Reader<RowLines>,
    row: ByteRecord,
    names: Vec<Arc<str>>,
}

impl Rows {
    /// Reads the next row. Returns `false` at the end of the file.
    fn read(&mut self) -> Result<bool, DataError> {
        self.reader.get_mut().begin_row();
        let read = self.reader.read_byte_record(&mut self.row).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => DataError::io(&self.path)(error),
            other => self.file("rows of values", format!("{other:?}")),
        })?;
        let lines = self.reader.get_ref();
        if lines.is_too_long() {
            let expected = format!("rows of at most {} bytes", lines.longest());
            let found = format!(
                "a longer row that starts at line {}; check for a quote that is never closed",
                lines.first()
            );
            return Err(self.file(expected, found));
        }
        if read && lines.is_beyond_end() {
            let found =
                format!("a quote that is never closed, in the row that starts at line {}", lines.first());
            return Err(self.file("a closing quote for each quote", found));
        }
        Ok(read)
    }

    fn read_names(&mut self) -> Result<(), DataError> {
        if !self.read()? {
            return Ok(());
        }
        // Does not use `collect`, which would allocate up to three times the memory while it grows.
        let mut names = Vec::with_capacity(self.row.len());
        for name in &self.row {
            let name = str::from_utf8(name);
            names.push(name.map_err(|_| self.file("names of columns in UTF-8", "other bytes"))?.to_owned());
        }
        self.set_names(names)
    }

    fn set_names(&mut self, names: Vec<String>) -> Result<(), DataError> {
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.file(
                "a different name for each column",
                format!("two columns called {:?}", brief(pair[0])),
            ));
        }
        self.names = names.into_iter().map(Arc::from).collect();
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Record>, DataError> {
        if !self.read()? {
            return Ok(None);
        }
        let place = RecordPlace { file: self.path.clone(), line: self.reader.get_ref().first() };
        if self.row.len() != self.names.len() {
            let expected = format!("{}, one for each column", counted(self.names.len(), "value"));
            return Err(DataError::record(place, None, expected, self.row.len().to_string()));
        }
        let mut fields = Vec::with_capacity(self.row.len());
        for (name, value) in self.names.iter().zip(&self.row) {
            match str::from_utf8(value) {
                Ok(value) => fields.push((name.clone(), Value::Text(value.to_owned()))),
                Err(error) => {
                    let found =
                        format!("byte {}, which does not start a valid character", error.valid_up_to() + 1);
                    return Err(DataError::record(place, Some(&brief(name)), "UTF-8 text", found));
                }
            }
        }
        Ok(Some(Record::new(place, fields)))
    }

    fn file(&self, expected: impl Into<String>, found: impl Into<String>) -> DataError {
        DataError::file(&self.path, expected, found)
    }
}

/// The number of newlines returned after the end of the file, one for each read.
///
/// The first ends the last row. Only a row with an open quote reads another.
const AFTER_END: u64 = 2;

/// Feeds a CSV parser one line at a time, so it never reads beyond the current row.
///
/// This way, the reader knows on which line a row begins, regardless of its number of lines and any empty lines before
/// it, and how long a row is before it is in memory.
pub(super) struct RowLines {
    source: Unpacked,
    longest: usize,
    /// The current line, from 1.
    line: u64,
    /// Whether the next byte begins a line.
    at_start: bool,
    /// The first line of the row, or 0 if it has not begun.
    first: u64,
    /// The number of bytes in the row.
    length: usize,
    too_long: bool,
    /// The number of bytes returned after the end of the file.
    after_end: u64,
}

impl RowLines {
    pub(super) fn open(path: &Arc<Path>, longest: usize) -> Result<Self, DataError> {
        let source = Unpacked::open(path)?;
        Ok(Self {
            source,
            longest,
            line: 0,
            at_start: true,
            first: 0,
            length: 0,
            too_long: false,
            after_end: 0,
        })
    }

    /// Starts the next row.
    pub(super) fn begin_row(&mut self) {
        self.first = 0;
        self.length = 0;
    }

    /// Returns the line on which the row begins.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the maximum number of bytes in a row.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns whether a row exceeded the maximum. It is then cut short, and nothing follows.
    pub(super) fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// Returns whether the row continues beyond the end of the file.
    pub(super) fn is_beyond_end(&self) -> bool {
        self.after_end == AFTER_END
    }
}

impl Read for RowLines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.too_long {
            return Ok(0);
        }
        let available = self.source.fill_buf()?;
        if available.is_empty() {
            let Some(byte) = into.first_mut().filter(|_| self.after_end < AFTER_END) else { return Ok(0) };
            *byte = b'\n';
            self.after_end += 1;
            return Ok(1);
        }
        let length = available.len().min(into.len());
        let line = available.iter().take(length).position(|&byte| byte == b'\n');
        let length = line.map_or(length, |end| end + 1);
        let part = &available[..length];
        into[..length].copy_from_slice(part);

        if self.at_start {
            self.line += 1;
        }
        self.at_start = line.is_some();
        if self.first == 0 && part.iter().any(|byte| !b"\r\n".contains(byte)) {
            self.first = self.line;
        }
        if self.first != 0 {
            self.length += length;
            self.too_long = self.length > self.longest;
        }
        self.source.consume(length);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The line and values of a row, or its error.
    type Row = Result<(u64, Vec<String>), String>;

    /// Returns each row, or the error of opening.
    fn read(
        text: impl AsRef<[u8]>,
        options: impl Fn(DelimitedReader) -> DelimitedReader,
    ) -> Result<Vec<Row>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let reader = options(DelimitedReader::csv(file.path()));
        let values =
            |record: &Record| record.names().map(|name| record.text(name).unwrap().to_owned()).collect();
        let brief = |record: Record| (record.place().line, values(&record));
        let records = reader.open(0).map_err(|error| error.to_string())?;
        Ok(records.map(|record| record.map(brief).map_err(|error| error.to_string())).collect())
    }

    fn row(line: u64, values: &[&str]) -> Row {
        Ok((line, values.iter().map(|&value| value.to_owned()).collect()))
    }

    #[test]
    fn quotes_and_lines() {
        let text = "\r\na,b\r\n\r\n1,\"x\"\"\n\ny\"\r\n\n2,\"\n\"";
        let found = read(text, |r| r).unwrap();
        assert_eq!(found, [row(4, &["1", "x\"\n\ny"]), row(8, &["2", "\n"])]);
        // With and without a newline at the end.
        for text in ["a\n\"x\n\"", "a\n\"x\n\"\n", "a\r\n\"x\n\"\r\n\r\n"] {
            assert_eq!(read(text, |r| r).unwrap(), [row(2, &["x\n"])], "{text:?}");
        }
    }

    #[test]
    fn tabs_without_quotes() {
        let tsv = |reader: DelimitedReader| reader.delimiter('\t').quote(None);
        assert_eq!(read("a\tb\n\"x\ty\"\n", tsv).unwrap(), [row(2, &["\"x", "y\""])]);
        let named = |reader: DelimitedReader| reader.names(vec!["n".into(), "m".into()]);
        assert_eq!(read("1,2", named).unwrap(), [row(1, &["1", "2"])]);
    }

    #[test]
    fn malformed_rows() {
        let found = read(b"a,b\n1\n2,3\n4,\xff\n5,6".as_slice(), |r| r).unwrap();
        assert!(
            found[0].as_ref().unwrap_err().contains(":2: expected 2 values, one for each column, found 1")
        );
        assert_eq!(found[1], row(3, &["2", "3"]));
        assert!(found[2].as_ref().unwrap_err().contains(":4, field `b`: expected UTF-8"));
        assert_eq!(found[3], row(5, &["5", "6"]));
    }

    #[test]
    fn a_quote_that_is_never_closed() {
        for text in ["a\n1\n\"2\n3\n", "a\n1\n\"2\n3", "a\n1\n\""] {
            let found = read(text, |r| r).unwrap();
            assert_eq!(found.len(), 2);
            let error = found[1].as_ref().unwrap_err();
            assert!(
                error.contains("closing quote for each quote, found a quote that is never closed, in the row that starts at line 3"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_row_that_is_too_long() {
        let long = format!("a\n1\n\"{}", "xyz\n".repeat(100_000));
        let found = read(long, |r| r.longest(1000)).unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[1].as_ref().unwrap_err().contains("a longer row that starts at line 3"), "{found:?}");
    }

    #[test]
    fn names() {
        assert!(read("a,b,a\n", |r| r).unwrap_err().contains("two columns called \"a\""));
        assert!(read("\"a\n", |r| r).unwrap_err().contains("closing quote"));
        assert_eq!(read("", |r| r), Ok(vec![]));
        for (wrong, name) in [('é', "delimiter"), ('\n', "delimiter"), ('"', "quote")] {
            assert!(read("", |r| r.delimiter(wrong)).unwrap_err().contains(name));
        }
    }
}
