//! Reads sentences from CoNLL columns, and tells comments from words.

use std::{path::Path, sync::Arc};

use super::{
    TagScheme,
    lines::{Lines, is_blank},
};
use crate::{DataError, Record, RecordPlace, Value};

/// The line that begins a document in CoNLL-2003.
const DOCUMENT_START: &str = "-DOCSTART-";

/// The settings of the reader. [`ConllReader`](super::ConllReader) documents the fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    pub(super) word: i32,
    pub(super) label: i32,
    /// Whether lines that start with `#` are comments; `None` means those that cannot be words.
    pub(super) comments: Option<bool>,
    pub(super) tokens_only: bool,
}

/// Words, their labels, and their line numbers.
#[derive(Debug, Default)]
pub(super) struct Sentence {
    pub(super) words: Vec<String>,
    pub(super) labels: Vec<String>,
    lines: Vec<u64>,
    /// The number of bytes in all lines.
    bytes: usize,
}

pub(super) struct Sentences {
    lines: Lines,
    columns: Columns,
    comments: Comments,
    longest: usize,
}

/// The kind of a line.
enum LineKind<'a> {
    /// The line is between sentences.
    End,
    /// The line is skipped.
    LeftOut,
    Word(&'a str, &'a str),
    /// A column is missing or empty, or the line may be a comment: the field, what was expected, and what was found.
    Malformed(Option<&'static str>, String, String),
}

impl Sentences {
    pub(super) fn open(path: &Arc<Path>, columns: Columns, longest: usize) -> Result<Self, DataError> {
        let comments = Comments::of(columns.comments, columns.label, path, longest)?;
        Ok(Self { lines: Lines::open(path, longest)?, columns, comments, longest })
    }

    /// Returns the next sentence, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Sentence>, DataError> {
        let mut sentence = Sentence::default();
        // The first error. The rest of the sentence is then read but not kept.
        let mut malformed: Option<DataError> = None;
        loop {
            let line = match self.lines.next() {
                Ok(Some(line)) => line,
                Ok(None) => break,
                Err(error) if error.is_about_a_record() => {
                    sentence = Sentence::default();
                    malformed = malformed.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            let length = line.len() + 1;
            let first = sentence.words.is_empty() && malformed.is_none();
            let kind = match self.comments.line(line, first) {
                Line::Comment => continue,
                Line::Columns => kind(line, self.columns),
                Line::Unclear(columns) => unclear(line, columns),
            };
            let problem = match kind {
                LineKind::End if first => continue,
                LineKind::End => break,
                LineKind::LeftOut => continue,
                _ if malformed.is_some() => continue,
                LineKind::Word(..) if sentence.bytes + length > self.longest => (
                    sentence.lines.first().copied(),
                    None,
                    format!("a sentence of at most {} bytes", self.longest),
                    "a longer one".into(),
                ),
                LineKind::Word(word, label) => {
                    sentence.words.push(word.to_owned());
                    sentence.labels.push(label.to_owned());
                    sentence.bytes += length;
                    sentence.lines.push(self.lines.number());
                    continue;
                }
                LineKind::Malformed(field, expected, found) => (None, field, expected, found),
            };
            let (line, field, expected, found) = problem;
            let place = self.lines.place(line.unwrap_or(self.lines.number()));
            malformed = Some(DataError::record(place, field, expected, found));
            sentence = Sentence::default();
        }
        match malformed {
            Some(error) => Err(error),
            None => Ok((!sentence.words.is_empty()).then_some(sentence)),
        }
    }

    /// Turns the sentence into a record. Converts the labels to IOB2 if they have a scheme.
    pub(super) fn record(
        &self,
        sentence: Sentence,
        scheme: Option<TagScheme>,
        [words, labels]: &[Arc<str>; 2],
    ) -> Result<Record, DataError> {
        let place =
            |line: Option<&u64>| -> RecordPlace { self.lines.place(line.copied().unwrap_or_default()) };
        let converted = match scheme {
            Some(scheme) => scheme.to_iob2(&sentence.labels).map_err(|fault| {
                let place = place(sentence.lines.get(fault.index));
                DataError::record(place, Some(labels), fault.expected, fault.found)
            })?,
            None => sentence.labels,
        };
        let list = |texts: Vec<String>| Value::List(texts.into_iter().map(Value::Text).collect());
        let fields = vec![(words.clone(), list(sentence.words)), (labels.clone(), list(converted))];
        Ok(Record::new(place(sentence.lines.first()), fields))
    }
}

/// Creates the error for a line that may be a word or a comment.
fn unclear<'a>(line: &str, columns: usize) -> LineKind<'a> {
    let expected = format!(
        "a word with {columns} columns and a label like those of the file, or a comment, `# key = value` \
         (`comments` says \
         whether lines that start with `#` are comments)"
    );
    let brief: String = line.chars().take(60).collect();
    LineKind::Malformed(None, expected, format!("{brief:?}, which could be either"))
}

fn kind(line: &str, columns: Columns) -> LineKind<'_> {
    if is_blank(line) {
        return LineKind::End;
    }
    kind_of_columns(columns_of(line), columns)
}

fn kind_of_columns<'a>(found: impl Iterator<Item = &'a str> + Clone, columns: Columns) -> LineKind<'a> {
    let first = found.clone().next().unwrap_or_default();
    if first == DOCUMENT_START {
        return LineKind::End;
    }
    if columns.tokens_only && is_no_token(first) {
        return LineKind::LeftOut;
    }
    let count = found.clone().count();
    let place = |column: i32| {
        let back = column.unsigned_abs() as usize;
        // The number of columns required, and the index of the wanted one.
        if column < 0 { (back, count.checked_sub(back)) } else { (back + 1, Some(back)) }
    };
    let (word, label) = (place(columns.word), place(columns.label));
    for (field, (needed, at)) in [("words", word), ("labels", label)] {
        if at.is_none_or(|at| at >= count) {
            return LineKind::Malformed(Some(field), format!("{needed} columns"), count.to_string());
        }
    }
    if word.1 == label.1 {
        return LineKind::Malformed(Some("labels"), format!("{} columns", count + 1), count.to_string());
    }
    let column =
        |(_, at): (usize, Option<usize>)| found.clone().nth(at.unwrap_or_default()).unwrap_or_default();
    let (word, label) = (column(word), column(label));
    for (field, text) in [("words", word), ("labels", label)] {
        if text.is_empty() {
            return LineKind::Malformed(Some(field), "a text".into(), "an empty column".into());
        }
    }
    LineKind::Word(word, label)
}

/// Returns whether an id of CoNLL-U is a range of words or an empty node.
fn is_no_token(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    id.split_once(['-', '.']).is_some_and(|(before, after)| is_number(before) && is_number(after))
}

/// The layout of a file's first line of columns. Lines that start with `#` are compared to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    tabs: bool,
    columns: usize,
    /// The column of the labels.
    label: i32,
    /// Whether its label marks entities: `O`, or a letter and a type.
    tags: bool,
}

/// Which lines are comments.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comments {
    /// No line.
    None,
    /// Every line that starts with `#`.
    All,
    /// Lines that cannot be words of the file. There is no layout if every line starts with `#`.
    Detect(Option<Layout>),
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A comment.
    Comment,
    /// Columns.
    Columns,
    /// One of the two; the file does not say which. With the number of columns that a word would have.
    Unclear(usize),
}

impl Comments {
    /// Applies a setting to a file. `None` reads the file up to its first line of columns. `label` is the column of the
    /// labels.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the error of a broken compressed file.
    pub(super) fn of(
        setting: Option<bool>,
        label: i32,
        path: &Arc<Path>,
        longest: usize,
    ) -> Result<Self, DataError> {
        Ok(match setting {
            Some(true) => Self::All,
            Some(false) => Self::None,
            None => Self::Detect(Layout::of(label, path, longest)?),
        })
    }

    /// Returns whether a line is a comment. `first` is true if the line is not within a sentence.
    pub(super) fn line(self, line: &str, first: bool) -> Line {
        match (self, line.strip_prefix('#')) {
            (Self::None, _) | (_, None) => Line::Columns,
            (Self::All, Some(_)) => Line::Comment,
            (Self::Detect(layout), Some(rest)) => detect(layout, line, rest, first),
        }
    }
}

/// Decides about a line that starts with `#`. The readers of the shared tasks have no rule for these, so this one asks
/// what the line would be as a word of this file.
fn detect(layout: Option<Layout>, line: &str, rest: &str, first: bool) -> Line {
    let spaced = rest.starts_with(' ');
    let named = spaced && rest.contains('=');
    let Some(Layout { tabs, columns, label, tags }) = layout else {
        return if first && named { Line::Comment } else { Line::Columns };
    };
    let found = columns_of(line).count();
    // Whether the line ends as words of the file do.
    let tagged = tags && cell(line, label).is_some_and(TagScheme::is_tag);
    match () {
        // Without a tab, it has no label. `#hashtag` alone is more likely a word whose label is missing.
        () if tabs && !line.contains('\t') && (first || spaced) => Line::Comment,
        () if tabs && !line.contains('\t') => Line::Columns,
        () if first && named => Line::Comment,
        () if found == columns && (tagged || !tags) => Line::Columns,
        () if found == columns && named => Line::Comment,
        () if found == columns => Line::Unclear(columns),
        () if tagged => Line::Unclear(columns),
        () if first || spaced => Line::Comment,
        () if found == 1 => Line::Columns,
        () => Line::Unclear(columns),
    }
}

impl Layout {
    fn of(label: i32, path: &Arc<Path>, longest: usize) -> Result<Option<Self>, DataError> {
        let mut lines = Lines::open(path, longest)?;
        loop {
            match lines.next() {
                Ok(None) => return Ok(None),
                Ok(Some(line)) if is_blank(line) || line.starts_with(['#', '-']) => {}
                Ok(Some(line)) => {
                    let (tabs, columns) = (line.contains('\t'), columns_of(line).count());
                    let tags = cell(line, label).is_some_and(TagScheme::is_tag);
                    return Ok(Some(Self { tabs, columns, label, tags }));
                }
                // Reading the records reports this error again.
                Err(error) if error.is_about_a_record() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Splits a line into columns: at tabs if it has one, otherwise at spaces.
fn columns_of(line: &str) -> impl Iterator<Item = &str> + Clone {
    let tabs = line.contains('\t');
    line.split(if tabs { '\t' } else { ' ' }).filter(move |column| tabs || !column.is_empty())
}

/// Returns a column of a line, counted from 0, or from -1 backwards from the last.
fn cell(line: &str, column: i32) -> Option<&str> {
    let index = column.unsigned_abs() as usize;
    let mut columns = columns_of(line);
    if column < 0 {
        columns.clone().count().checked_sub(index).and_then(|index| columns.nth(index))
    } else {
        columns.nth(index)
    }
}
