//! Recognises a data set by its files and its first records.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use firebrick_datasets::{Files, Format, Record, TagScheme, Tags, TextUnit, Value, counted};
use firebrick_tasks::entity_scheme;

use crate::{Examples, InitError, Paths, RunError};

/// The number of records that are looked at.
const HEAD: usize = 1000;

/// A data set as it was recognised.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The files, as `data.path`.
    pub path: PathBuf,
    /// The format in RON, if the extension does not determine it.
    pub format: Option<String>,
    /// How its files are read.
    pub reads: Option<Format>,
    /// The validation data beside it.
    pub valid: Option<PathBuf>,
    /// The format, for the user.
    pub name: String,
    pub records: Vec<Record>,
    pub is_plain_text: bool,
    pub bytes: u64,
}

impl Seen {
    /// Looks at a file, a folder, a pattern, or the common prefix of two parallel files. `has_words` says whether the
    /// task labels words, which are written one per line.
    ///
    /// # Errors
    ///
    /// The data cannot be read, or has no records.
    pub fn at(path: &Path, has_words: bool) -> Result<Self, RunError> {
        let (format, is_by_extension) = match Format::of(path) {
            Ok(format) => (format, true),
            Err(_) if path.is_dir() => (of_folder(path)?, false),
            Err(error) => match of_sides(path) {
                Some(sides) => (sides, false),
                None if path.is_file() => (of_lines(path, has_words)?, false),
                None => return Err(Files::find([path], &[]).err().unwrap_or(error).into()),
            },
        };
        // Words with labels are also written with tabs, under other extensions.
        let (format, is_by_extension) = match format {
            Format::Tsv | Format::Text { .. } if has_words && path.is_file() => {
                let seen = of_lines(path, true)?;
                let is_same = seen == format;
                (seen, is_by_extension && is_same)
            }
            format => (format, is_by_extension),
        };
        let mut records = head(path, &format)?;
        let (format, is_by_extension) = match converting(&format, &records) {
            Some(converting) => {
                records = head(path, &converting)?;
                (converting, false)
            }
            None => (format, is_by_extension),
        };
        let is_plain_text = matches!(format, Format::Text { .. });
        // More may follow after the records that are looked at.
        if records.len() < HEAD && records.iter().all(|record| is_plain_text && is_blank(record)) {
            return Err(InitError::NoRecords(path.into()).into());
        }
        let (name, ron) = named(&format);
        Ok(Self {
            path: path.into(),
            // Plain text without a format keeps its line ends.
            format: (!is_by_extension && !is_plain_text).then_some(ron),
            valid: valid_beside(path),
            name,
            records,
            is_plain_text,
            bytes: bytes(path, &format),
            reads: Some(format),
        })
    }

    /// Checks that validation data can be read as this data is. If its extension does not say how, the run file does.
    ///
    /// # Errors
    ///
    /// It cannot be read, or has no records.
    pub fn check_valid(&mut self, valid: &Path) -> Result<(), RunError> {
        let Some(own) = self.reads.clone() else { return Ok(()) };
        let format = match (&self.format, Format::of(valid)) {
            (None, Ok(format)) => format,
            _ => own,
        };
        let is_plain_text = matches!(format, Format::Text { .. });
        if self.format.is_none() && !is_plain_text && Format::of(valid).is_err() {
            self.format = Some(named(&format).1);
        }
        let reader = Paths::One(valid.into()).open(Some(&format))?;
        for part in 0..reader.parts() {
            for record in reader.open(part)?.take(HEAD) {
                let record = record?;
                if !is_plain_text || !is_blank(&record) {
                    return Ok(());
                }
            }
        }
        Err(InitError::NoRecords(valid.into()).into())
    }

    /// Returns the records for the task, and what was recognised.
    pub fn split(self) -> (Examples, Vec<String>) {
        let fields: Vec<&str> = self.records.first().map(|one| one.names().collect()).unwrap_or_default();
        let count = match self.records.len() {
            HEAD => format!("the first {HEAD} records"),
            count => counted(count, "record").to_string(),
        };
        let mut found = vec![format!(
            "{}: {}, {count}, with the fields {}",
            self.path.display(),
            self.name,
            fields.join(", ")
        )];
        found.extend(self.valid.as_ref().map(|valid| format!("validation data: {}", valid.display())));
        let examples = Examples {
            records: self.records,
            is_plain_text: self.is_plain_text,
            bytes: self.bytes,
            ..Examples::default()
        };
        (examples, found)
    }
}

/// Returns the first records of data.
fn head(path: &Path, format: &Format) -> Result<Vec<Record>, RunError> {
    let reader = Paths::One(path.into()).open(Some(format))?;
    let mut records = Vec::new();
    for part in 0..reader.parts() {
        let rest = HEAD.saturating_sub(records.len());
        for record in reader.open(part)?.take(rest) {
            records.push(record?);
        }
    }
    Ok(records)
}

/// Returns the format that converts the labels to IOB2, in which entities are scored, if they mark entities in another
/// scheme.
fn converting(format: &Format, records: &[Record]) -> Option<Format> {
    let Format::Conll { word: 0, label: -1, comments: None, tokens_only: false, tags: Tags::Keep } = format
    else {
        return None;
    };
    let scheme = entity_scheme(records, "labels")?;
    let tags = Tags::Detect;
    (scheme != TagScheme::Iob2).then_some(Format::Conll {
        word: 0,
        label: -1,
        comments: None,
        tokens_only: false,
        tags,
    })
}

/// Whether a line of plain text is blank.
fn is_blank(record: &Record) -> bool {
    record.names().all(|name| matches!(record.get(name), Some(Value::Text(text)) if text.trim().is_empty()))
}

/// Returns the format's name for the user, and the format in RON.
fn named(format: &Format) -> (String, String) {
    let (name, ron) = match format {
        Format::Text { .. } => ("plain text", "Text()".into()),
        Format::Jsonl => ("JSON lines", "Jsonl".into()),
        Format::Csv { delimiter, .. } if *delimiter != ',' => {
            ("columns", format!("Csv(delimiter: {delimiter:?})"))
        }
        Format::Csv { .. } => ("columns with commas", "Csv()".into()),
        Format::Tsv => ("columns with tabs", "Tsv".into()),
        Format::Conll { tags: Tags::Keep, .. } => ("words with labels, one per line", "Conll()".into()),
        Format::Conll { .. } => {
            ("words with labels, one per line, converted to IOB2", "Conll(tags: Detect)".into())
        }
        Format::Parallel { source, target, .. } => {
            ("two parallel files", format!("Parallel(source: {source:?}, target: {target:?})"))
        }
        Format::Parquet { .. } => ("Parquet", "Parquet()".into()),
    };
    (name.into(), ron)
}

const TEXT: Format = Format::Text { unit: TextUnit::Line, keep_blank: true };

/// Returns the format of the files in a folder: of those with records, rather than of text beside them.
fn of_folder(folder: &Path) -> Result<Format, RunError> {
    let formats = ["jsonl", "parquet", "csv", "tsv", "conll"].map(|extension| format!("x.{extension}"));
    for format in formats.iter().map(|name| Format::of(Path::new(name))) {
        let format = format?;
        if Files::find([folder], format.extensions()).is_ok() {
            return Ok(format);
        }
    }
    Files::find([folder], TEXT.extensions())?;
    Ok(TEXT)
}

/// Returns the format of two files, line by line, if this path is the beginning of their names.
fn of_sides(prefix: &Path) -> Option<Format> {
    let (folder, name) = (prefix.parent()?, prefix.file_name()?.to_str()?);
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let endings = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let file = entry.file_name();
        let ending = file.to_str()?.strip_prefix(name)?.strip_prefix('.')?;
        let ending = ending.trim_end_matches(".gz").trim_end_matches(".zst");
        (!ending.is_empty() && !ending.contains('.')).then(|| ending.to_owned())
    });
    let mut endings: Vec<String> = endings.collect();
    endings.sort();
    endings.dedup();
    let [source, target] = <[String; 2]>::try_from(endings).ok()?;
    Some(Format::Parallel { source, target, keep_blank: false })
}

/// Recognises a file by its first lines.
fn of_lines(path: &Path, has_words: bool) -> Result<Format, RunError> {
    let by_name = |extension: &str| Format::of(Path::new(&format!("x.{extension}")));
    let mut magic = [0; 4];
    if File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *b"PAR1" {
        return Ok(by_name("parquet")?);
    }
    let reader = TEXT.open(&[path])?;
    let lines: Vec<String> = reader
        .open(0)?
        .take(200)
        .map_while(Result::ok)
        .filter_map(|record| match record.get("text") {
            Some(Value::Text(line)) => Some(line.clone()),
            _ => None,
        })
        .collect();
    let first = lines.first().map_or("", |line| line.trim());
    let columns = |separator: char| {
        let count = first.matches(separator).count();
        count > 0
            && lines
                .iter()
                .filter(|line| !line.is_empty())
                .all(|line| line.matches(separator).count() == count)
    };
    let is_words = || {
        let mut rows = lines.iter().filter(|line| !line.trim().is_empty());
        let columns = first.split_whitespace().count();
        let has_gaps = lines.iter().any(|line| line.trim().is_empty());
        has_gaps && columns > 1 && rows.all(|line| line.split_whitespace().count() == columns)
    };
    Ok(if first.starts_with('{') {
        by_name("jsonl")?
    } else if has_words && is_words() {
        by_name("conll")?
    } else if columns('\t') {
        by_name("tsv")?
    } else if columns(',') {
        by_name("csv")?
    } else if columns(';') {
        Format::Csv { delimiter: ';', quote: Some('"'), names: None }
    } else {
        by_name("txt")?
    })
}

/// Returns the validation data that lies beside training data: `valid.csv` beside `train.csv`, or `x.valid.csv` beside
/// `x.csv`.
fn valid_beside(path: &Path) -> Option<PathBuf> {
    const NAMES: [&str; 4] = ["valid", "validation", "dev", "val"];
    let name = path.file_name().and_then(OsStr::to_str)?;
    let replaced =
        NAMES.iter().filter(|_| name.contains("train")).map(|valid| name.replacen("train", valid, 1));
    let inserted = NAMES.iter().filter_map(|valid| {
        let (stem, extension) = name.split_once('.')?;
        Some(format!("{stem}.{valid}.{extension}"))
    });
    let beside = replaced.chain(inserted).map(|name| path.with_file_name(name));
    beside.into_iter().find(|valid| valid.is_file())
}

fn bytes(path: &Path, format: &Format) -> u64 {
    let paths: Vec<PathBuf> = match format {
        Format::Parallel { source, .. } => vec![PathBuf::from(format!("{}.{source}", path.display()))],
        format => Files::find([path], format.extensions())
            .map(|files| files.paths().iter().map(|file| file.to_path_buf()).collect())
            .unwrap_or_default(),
    };
    paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|about| about.len()).sum()
}
