//! File formats and their settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::files::extension;
use super::{ConllReader, DelimitedReader, Files, JsonlReader, ParallelReader, Tags, TextReader, TextUnit};
use crate::{DataError, ReadError, Reader};

/// A file format and its settings.
///
/// In a run file, it is written as follows. You may omit any setting except `source` and `target`:
///
/// | in a run file | reader |
/// |---|---|
/// | `Text(unit: Line, keep_blank: false)` | [`TextReader`] |
/// | `Jsonl` | [`JsonlReader`] |
/// | `Csv(delimiter: ',', quote: Some('"'), names: None)` | [`DelimitedReader`] |
/// | `Tsv` | [`DelimitedReader::tsv`] |
/// | `Conll(word: 0, label: -1, comments: None, tokens_only: false, tags: Keep)` | [`ConllReader`] |
/// | `Parallel(source: "en", target: "fr", keep_blank: false)` | [`ParallelReader`] |
/// | `Parquet(columns: [])` | [`ParquetReader`](crate::ParquetReader) |
///
/// # Example
///
/// ```
/// use std::path::Path;
/// use firebrick_datasets::{Format, TextUnit};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("a.jsonl"), "{\"text\": \"hello\"}\n")?;
///
/// let paths = [folder.join("*.jsonl")];
/// let reader = Format::of(&paths[0])?.open(&paths)?;
/// assert_eq!(reader.open(0)?.next().unwrap()?.text("text")?, "hello");
/// assert_eq!(Format::of(Path::new("a.md.gz"))?, Format::Text { unit: TextUnit::Line, keep_blank: false });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Format {
    /// Plain text.
    Text {
        /// The part of a text that makes a record. Default: a line.
        #[serde(default)]
        unit: TextUnit,
        /// Whether a blank line is a record too. Default: no.
        #[serde(default)]
        keep_blank: bool,
    },
    /// JSON lines.
    Jsonl,
    /// Columns with a delimiter and quotes.
    Csv {
        /// The delimiter. Default: a comma.
        #[serde(default = "comma")]
        delimiter: char,
        /// The quote around values. Default: a double quote; `None` for no quotes.
        #[serde(default = "double_quote")]
        quote: Option<char>,
        /// The names of the columns. Default: the first row.
        names: Option<Vec<String>>,
    },
    /// Columns separated by tabs, without quotes. The first row names them.
    Tsv,
    /// Words with labels, one word per line.
    Conll {
        /// The column of the words, from 0, or from -1 backwards from the last. Default: 0.
        #[serde(default)]
        word: i32,
        /// The column of the labels. Default: -1.
        #[serde(default = "last")]
        label: i32,
        /// Whether every line that starts with `#` is a comment, or none is. Default: `None`, only lines that cannot be
        /// words of the file.
        comments: Option<bool>,
        /// Whether to skip the ranges and empty nodes of CoNLL-U. Default: no.
        #[serde(default)]
        tokens_only: bool,
        /// What to do with the labels. Default: keep them.
        #[serde(default)]
        tags: Tags,
    },
    /// Two files, line by line. A path is the common prefix of their names: `data/train` stands for `data/train.en` and
    /// `data/train.fr`, each also with `.gz` or `.zst`.
    Parallel {
        /// The extension of the first file, and the name of its field.
        source: String,
        /// The extension of the second file, and the name of its field.
        target: String,
        /// Whether pairs with a blank side are records. By default they are malformed.
        #[serde(default)]
        keep_blank: bool,
    },
    /// Parquet.
    Parquet {
        /// The columns to read, in this order. Default: all, also if the list is empty.
        #[serde(default)]
        columns: Vec<String>,
    },
}

fn comma() -> char {
    ','
}

fn double_quote() -> Option<char> {
    Some('"')
}

fn last() -> i32 {
    -1
}

impl Format {
    /// Returns the format for the extension of a path or pattern, with default settings. A following `.gz` or `.zst` is
    /// ignored. A `.json` must contain JSON lines. For `.conllu`, words are in column 1, labels (UPOS) in column 3, all
    /// lines that start with `#` are comments, and ranges and empty nodes are skipped.
    ///
    /// # Errors
    ///
    /// [`ReadError::UnknownFormat`] if the extension is unknown.
    pub fn of(path: &Path) -> Result<Self, DataError> {
        let conll = |word, label, universal: bool| Self::Conll {
            word,
            label,
            comments: universal.then_some(true),
            tokens_only: universal,
            tags: Tags::Keep,
        };
        Ok(match extension(path).as_deref() {
            Some("txt" | "md") => Self::Text { unit: TextUnit::Line, keep_blank: false },
            Some("jsonl" | "ndjson" | "json") => Self::Jsonl,
            Some("csv") => Self::Csv { delimiter: comma(), quote: double_quote(), names: None },
            Some("tsv") => Self::Tsv,
            Some("conll" | "iob" | "bio") => conll(0, last(), false),
            Some("conllu") => conll(1, 3, true),
            Some("parquet") => Self::Parquet { columns: Vec::new() },
            _ => {
                return Err(ReadError::UnknownFormat { path: path.to_owned(), known: known() }.into());
            }
        })
    }

    /// Returns the extensions to look for in a folder. They exclude `.json`, since such a file usually describes the
    /// data.
    pub fn extensions(&self) -> &'static [&'static str] {
        match self {
            Self::Text { .. } => &["txt", "md"],
            Self::Jsonl => &["jsonl", "ndjson"],
            Self::Csv { .. } => &["csv"],
            Self::Tsv => &["tsv"],
            Self::Conll { .. } => &["conll", "iob", "bio", "conllu"],
            Self::Parallel { .. } => &[],
            Self::Parquet { .. } => &["parquet"],
        }
    }

    /// Returns the files that [`open`](Self::open) reads, in order.
    ///
    /// # Errors
    ///
    /// Those of [`Files::find`].
    pub fn files<P: AsRef<Path>>(&self, paths: &[P]) -> Result<Vec<Arc<Path>>, DataError> {
        Ok(match self {
            Self::Parallel { source, target, .. } => {
                let sides = |path: &P| [source, target].map(|ending| file_of(path.as_ref(), ending).into());
                paths.iter().flat_map(sides).collect()
            }
            _ => Files::find(paths, self.extensions())?.paths().to_vec(),
        })
    }

    /// Creates a reader of this format for the files that [`Files::find`] finds for these paths.
    ///
    /// # Errors
    ///
    /// Those of [`Files::find`], and [`DataError::NotBuilt`] for Parquet files without the feature `parquet`.
    pub fn open<P: AsRef<Path>>(&self, paths: &[P]) -> Result<Box<dyn Reader>, DataError> {
        let found = || Files::find(paths, self.extensions());
        Ok(match self {
            Self::Text { unit, keep_blank } => {
                Box::new(TextReader::new(found()?).unit(*unit).keep_blank(*keep_blank))
            }
            Self::Jsonl => Box::new(JsonlReader::new(found()?)),
            Self::Csv { delimiter, quote, names } => {
                let reader = DelimitedReader::csv(found()?).delimiter(*delimiter).quote(*quote);
                Box::new(reader.names(names.clone()))
            }
            Self::Tsv => Box::new(DelimitedReader::tsv(found()?)),
            Self::Conll { word, label, comments, tokens_only, tags } => {
                let reader = ConllReader::new(found()?).word(*word).label(*label).comments(*comments);
                Box::new(reader.tokens_only(*tokens_only).tags(*tags))
            }
            Self::Parallel { source, target, keep_blank } => {
                let side = |ending: &str| paths.iter().map(|path| file_of(path.as_ref(), ending)).collect();
                let sides: (Vec<PathBuf>, Vec<PathBuf>) = (side(source), side(target));
                Box::new(
                    ParallelReader::new(sides.0, sides.1)?.fields(source, target).keep_blank(*keep_blank),
                )
            }
            Self::Parquet { columns } => parquet(found()?, columns)?,
        })
    }
}

#[cfg(feature = "parquet")]
fn parquet(files: Files, columns: &[String]) -> Result<Box<dyn Reader>, DataError> {
    let reader = super::ParquetReader::new(files);
    Ok(Box::new(if columns.is_empty() { reader } else { reader.columns(columns.to_vec()) }))
}

#[cfg(not(feature = "parquet"))]
fn parquet(_: Files, _: &[String]) -> Result<Box<dyn Reader>, DataError> {
    Err(DataError::NotBuilt { what: "Parquet files", feature: "parquet" })
}

/// Lists the known extensions for a message.
fn known() -> String {
    "txt, md, jsonl, ndjson, json, csv, tsv, conll, iob, bio, conllu, parquet".into()
}

/// Returns the file with this extension, or its compressed version if only that exists.
fn file_of(prefix: &Path, ending: &str) -> PathBuf {
    let with = |packing: &str| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!(".{}{packing}", ending.trim_start_matches('.')));
        PathBuf::from(name)
    };
    let packed = [".gz", ".zst"].map(with).into_iter().find(|path| path.exists());
    let plain = with("");
    if plain.exists() { plain } else { packed.unwrap_or(plain) }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    #[test]
    fn every_known_extension_has_a_format() {
        for ending in known().split(", ") {
            let format = Format::of(Path::new(&format!("a.b/x.{ending}.gz"))).unwrap();
            assert!(format.extensions().contains(&ending) || ending == "json");
        }
        for path in ["x", "x.gz", "x.xml", "txt", ".txt", "x.txt.bz2"] {
            let error = Format::of(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains("jsonl, ndjson"), "{error}");
        }
    }

    #[test]
    fn settings_have_defaults() {
        let read = |json: &str| serde_json::from_str::<Format>(json);
        let default = |path: &str| Format::of(Path::new(path)).unwrap();
        assert_eq!(read(r#"{"Conll": {}}"#).unwrap(), default("x.conll"));
        assert_eq!(read(r#"{"Csv": {}}"#).unwrap(), default("x.csv"));
        assert_eq!(read(r#"{"Text": {}}"#).unwrap(), default("x.txt"));
        assert_eq!(read(r#"{"Parquet": {}}"#).unwrap(), default("x.parquet"));
        assert!(read(r#"{"Conll": {"lable": 1}}"#).is_err());
    }

    #[cfg(not(feature = "parquet"))]
    #[test]
    fn parquet_that_is_not_built() {
        let error = Format::Parquet { columns: Vec::new() }.open(&["a.parquet"]).unwrap_err().to_string();
        assert!(error.contains("enable the feature `parquet`"), "{error}");
    }

    #[cfg(feature = "parquet")]
    #[test]
    fn columns_of_parquet() {
        let path = "tests/corpus/zstd.parquet";
        let names = |json: &str| -> Vec<String> {
            let format: Format = serde_json::from_str(json).unwrap();
            let record = format.open(&[path]).unwrap().open(0).unwrap().next().unwrap().unwrap();
            record.names().map(str::to_owned).collect()
        };
        assert!(names(r#"{"Parquet": {}}"#).len() > 2);
        assert_eq!(names(r#"{"Parquet": {"columns": []}}"#), names(r#"{"Parquet": {}}"#));
        assert_eq!(names(r#"{"Parquet": {"columns": ["tags", "text"]}}"#), ["tags", "text"]);
    }

    #[test]
    fn parallel_files_by_their_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("train.v1");
        fs::write(folder.path().join("train.v1.en"), "Hello.\n").unwrap();
        let packed = fs::File::create(folder.path().join("train.v1.fr.gz")).unwrap();
        let mut packed = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
        packed.write_all(b"Bonjour.\n").unwrap();
        packed.finish().unwrap();
        let format = Format::Parallel { source: "en".into(), target: "fr".into(), keep_blank: false };
        let reader = format.open(&[&prefix]).unwrap();
        let pair = reader.open(0).unwrap().next().unwrap().unwrap();
        assert_eq!((pair.text("en").unwrap(), pair.text("fr").unwrap()), ("Hello.", "Bonjour."));

        let files: Vec<_> = format.files(&[&prefix]).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["train.v1.en", "train.v1.fr.gz"]);

        let error = format.open(&["no/such"]).unwrap().open(0).err().unwrap();
        assert!(error.to_string().contains("no/such.en"), "{error}");
    }
}
