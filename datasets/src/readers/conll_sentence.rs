//! Reads sentences from CoNLL columns.

use std::{path::Path, sync::Arc};

use super::{
    TagScheme,
    conll_comments::{Comments, Line, columns_of},
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
