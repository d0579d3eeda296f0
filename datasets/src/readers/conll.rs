//! Reads words with labels, one word per line: the columns of the CoNLL shared tasks.

use std::sync::{Arc, OnceLock};

use super::{
    Files, TagScheme, Tags,
    conll_sentence::{Columns, Sentences},
    lines::LONGEST_RECORD,
    records,
    tag_scheme::Evidence,
};
use crate::{DataError, Reader, Records};

/// Reads sentences of words and their labels from files, compressed or not.
///
/// Each line is a word with its columns. A line that is empty or has only spaces and tabs ends a sentence. Columns are
/// separated by tabs if the line has one, otherwise by spaces. Quotes have no special meaning. A line whose first
/// column is `-DOCSTART-` is skipped and ends a sentence.
///
/// `#` and `#hashtag` are words if they look like the other words of the file: they have the columns of its first line
/// that does not start with `#` or `-`, and if the label of that line marks entities (`O`, `B-PER`), theirs does too.
/// Any other line that starts with `#` is skipped as a comment in these cases:
///
/// - It has no label: the file separates columns by tabs, and the line has no tab.
/// - It is `# key = value`, as in CoNLL-U, or `# id 5239 domain=en`: `#`, a space, and an equals sign somewhere. Between
///   sentences, it may even look like a word.
/// - It has another number of columns, and its last is no label that marks entities.
///
/// Within a sentence, the last case needs a space after the `#`, and so does a line without a tab: `#hashtag` alone is
/// a word without a label, which is an error. What may be a word or a comment is an error too, such as `# 7 O` in a
/// file with two columns.
///
/// [`comments`](Self::comments) makes all lines that start with `#` comments, or none.
///
/// A record is a sentence with two fields, `words` and `labels`, which are lists of texts of the same length. A
/// malformed line makes its whole sentence malformed; the error names the line.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{ConllReader, Reader, TagScheme, Tags};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.conll");
/// std::fs::write(&path, "New\tI-LOC\nYork\tI-LOC\n.\tO\n\nYes\tO\n")?;
///
/// let reader = ConllReader::new(path).tags(Tags::From(TagScheme::Iob1));
/// let sentence = reader.open(0)?.next().unwrap()?;
/// assert_eq!(sentence.texts("words")?, ["New", "York", "."]);
/// assert_eq!(sentence.texts("labels")?, ["B-LOC", "I-LOC", "O"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ConllReader {
    files: Files,
    columns: Columns,
    tags: Tags,
    /// The detected label scheme of all files.
    detected: Arc<OnceLock<TagScheme>>,
    longest: usize,
}

impl ConllReader {
    /// Reads words from the first column of these files, labels from the last.
    pub fn new(files: impl Into<Files>) -> Self {
        Self {
            files: files.into(),
            columns: Columns { word: 0, label: -1, comments: None, tokens_only: false },
            tags: Tags::Keep,
            detected: Arc::default(),
            longest: LONGEST_RECORD,
        }
    }

    /// Sets the column of the words, from 0, or from -1 backwards from the last. Default: 0.
    pub fn word(mut self, column: i32) -> Self {
        self.columns.word = column;
        self
    }

    /// Sets the column of the labels, from 0, or from -1 backwards from the last. Default: -1.
    pub fn label(mut self, column: i32) -> Self {
        self.columns.label = column;
        self
    }

    /// Sets whether every line that starts with `#` is a comment, or none is. By default, only lines that cannot be
    /// words of the file are comments, as with `None`; the reader's description lists them.
    pub fn comments(mut self, comments: impl Into<Option<bool>>) -> Self {
        self.columns.comments = comments.into();
        self
    }

    /// Sets whether to skip lines whose first column is a range such as `1-2` or a decimal such as `1.1`, which are not
    /// words in CoNLL-U. Default: no.
    pub fn tokens_only(mut self, tokens_only: bool) -> Self {
        self.columns.tokens_only = tokens_only;
        self
    }

    /// Sets what to do with the labels. Default: keep them as they are.
    ///
    /// Detecting their scheme reads all files an extra time before the first record.
    pub fn tags(mut self, tags: Tags) -> Self {
        self.tags = tags;
        self.detected = Arc::default();
        self
    }

    /// Sets the maximum number of bytes in a sentence; a longer one is malformed. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }

    fn sentences(&self, part: usize) -> Result<Sentences, DataError> {
        Sentences::open(self.files.part(part)?, self.columns, self.longest)
    }

    fn detect(&self) -> Result<TagScheme, DataError> {
        if let Some(&scheme) = self.detected.get() {
            return Ok(scheme);
        }
        let mut evidence = Evidence::default();
        for part in 0..self.parts() {
            let mut sentences = self.sentences(part)?;
            loop {
                match sentences.next() {
                    Ok(Some(sentence)) => evidence.add(&sentence.labels),
                    Ok(None) => break,
                    // Reading the records reports this error again.
                    Err(error) if error.is_about_a_record() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(*self.detected.get_or_init(|| evidence.scheme()))
    }
}

impl Reader for ConllReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let Columns { word, label, .. } = self.columns;
        if word == label {
            let expected = "another column than the words";
            return Err(DataError::setting("label", expected, label.to_string()));
        }
        let mut sentences = self.sentences(part)?;
        let scheme = match self.tags {
            Tags::Keep => None,
            Tags::Detect => Some(self.detect()?),
            Tags::From(scheme) => Some(scheme),
        };
        let names = ["words".into(), "labels".into()];
        Ok(records(move || {
            let Some(sentence) = sentences.next()? else { return Ok(None) };
            sentences.record(sentence, scheme, &names).map(Some)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::Record;

    type Brief = Result<(u64, String, String), String>;

    /// Returns the line, words and labels of each sentence, or its error.
    fn read(text: impl AsRef<[u8]>, options: impl Fn(ConllReader) -> ConllReader) -> Vec<Brief> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let records = options(ConllReader::new(file.path())).open(0).unwrap();
        let of = |record: &Record, name| record.texts(name).unwrap().join("|");
        let brief = |record: Record| (record.place().line, of(&record, "words"), of(&record, "labels"));
        records.map(|record| record.map(brief).map_err(|error| error.to_string())).collect()
    }

    fn sentence(line: u64, words: &str, labels: &str) -> Brief {
        Ok((line, words.to_owned(), labels.to_owned()))
    }

    #[test]
    fn separators_and_blank_lines() {
        let text = "\r\n\" O\r\na  b   B-x \n \t \n\n-DOCSTART- -X- O\n\n\u{a0}\tO\n#\tO\n\t\nc d\tx\tO";
        let expected =
            [sentence(2, "\"|a", "O|B-x"), sentence(8, "\u{a0}|#", "O|O"), sentence(11, "c d", "O")];
        assert_eq!(read(text, |r| r), expected);
        assert_eq!(read("", |r| r), []);
        // The line also ends a sentence.
        assert_eq!(read("a O\n-DOCSTART- O\nb O", |r| r).len(), 2);
    }

    #[test]
    fn chosen_columns() {
        let text = "a b c d\n";
        assert_eq!(read(text, |r| r.word(1).label(2)), [sentence(1, "b", "c")]);
        assert_eq!(read(text, |r| r.word(-1).label(-4)), [sentence(1, "d", "a")]);
        let found = read("a b c d\ne f\n\ng h i j", |r| r.label(3));
        let error = found[0].as_ref().unwrap_err();
        assert!(error.contains(":2, field `labels`: expected 4 columns, found 2"), "{error}");
        assert_eq!(found[1], sentence(4, "g", "j"));
        assert!(read("a", |r| r)[0].as_ref().unwrap_err().contains("expected 2 columns, found 1"));
        assert!(read("a b", |r| r.label(i32::MIN))[0].is_err());
        let same = ConllReader::new(Vec::<PathBuf>::new()).label(0).open(0).err().unwrap();
        assert!(matches!(same, DataError::Read(crate::ReadError::ReaderSetting { setting: "label", .. })));
    }

    #[test]
    fn two_names_for_one_column() {
        // In a line with one column, the first is also the last.
        let found = read("a b\n\nc\n\nd e", |r| r.label(-2).word(0));
        assert!(found.iter().all(Result::is_err), "{found:?}");
    }

    #[test]
    fn conll_u() {
        let text = "# text = Vámonos\n1-2\tVámonos\t_\n1\tVamos\tVERB\n2\tnos\tPRON\n2.1\tx\t_\n";
        let options = |reader: ConllReader| reader.word(1).comments(true).tokens_only(true);
        assert_eq!(read(text, options), [sentence(3, "Vamos|nos", "VERB|PRON")]);
        assert_eq!(read("1-2\tO\n1.1\tO\n1-b\tO", |r| r), [sentence(1, "1-2|1.1|1-b", "O|O|O")]);
    }

    #[test]
    fn comments_are_not_words() {
        let tabs =
            "# id 5239 domain=en\n#\tO\n#tag\tB-x\n# middle\nb\tO\n\n# id 1\tdomain=en\n#alone\nc\tO\n";
        assert_eq!(read(tabs, |r| r), [sentence(2, "#|#tag|b", "O|B-x|O"), sentence(9, "c", "O")]);
        // The comment has as many columns as the lines of words.
        let spaces = "# id 5239 domain=en\n# _ _ O\n#a _ _ B-x\n\n# id 1\tdomain=en\nb _ _ O\n\n# newdoc\n#\nc _ _ O\n";
        let expected = [sentence(2, "#|#a", "O|B-x"), sentence(6, "b", "O"), sentence(10, "c", "O")];
        assert_eq!(read(spaces, |r| r), expected);
        let two = "# O\n# O\na O\n# O\n\n# sent_id = 3\n# O\n";
        assert_eq!(read(two, |r| r), [sentence(1, "#|#|a|#", "O|O|O|O"), sentence(7, "#", "O")]);
        // A file with nothing but lines that start with `#`.
        assert_eq!(read("# text = a\n#\tO\n", |r| r), [sentence(2, "#", "O")]);
        // A word without a label is an error, not a comment.
        for text in ["a\tO\n#tag\n", "a O\n#tag\n"] {
            assert!(read(text, |r| r)[0].as_ref().unwrap_err().contains(":2"), "{text:?}");
        }
    }

    #[test]
    fn comments_within_a_sentence() {
        let comments = [
            "# text = The old mill",
            "# id 5239 domain=en",
            "# text=x",
            "# newpar",
            "# sent_id = weblog-1 _ _ _",
            "# The old mill by the river",
        ];
        for comment in comments {
            for (words, labels) in [("a O\n", "b B-x\n"), ("a _ _ O\n", "b _ _ I-x\n")] {
                let text = format!("{words}{comment}\n# {}{labels}\n{words}", &words[2..]);
                let columns = words.split(' ').count();
                let found = read(&text, |r| r);
                // Two columns of which one is `#`: the other may be a label.
                if comment == "# newpar" && columns == 2 {
                    assert!(
                        found[0].as_ref().unwrap_err().contains(":2: expected a word with 2 columns"),
                        "{found:?}"
                    );
                    continue;
                }
                let label = labels.trim().rsplit_once(' ').unwrap().1;
                assert_eq!(found[0], sentence(1, "a|#|b", &format!("O|O|{label}")), "{text:?}");
                assert_eq!(found.len(), 2, "{text:?}");
            }
        }
        // Labels that mark no entities.
        let parts = "The DT\n# text = The old mill\n# #\n# NN\nmill NN\n";
        assert_eq!(read(parts, |r| r), [sentence(1, "The|#|#|mill", "DT|#|NN|NN")]);
        let tabs = "a\tO\n# id 1\tdomain=en\n# text\tO\nb\tO\n";
        assert_eq!(read(tabs, |r| r), [sentence(1, "a|# text|b", "O|O|O")]);
    }

    #[test]
    fn lines_that_may_be_comments_are_refused() {
        for (text, line) in [
            ("a O\n# 7 O\nb O\n", 2),
            ("a O\n#tag x B-y\n", 2),
            ("a _ O\n# end of chapter O\n", 2),
            ("a O\n\n# 7 O\nb O\n", 3),
            ("a O\n# misc\n", 2),
            ("a DT\n#a b c\n", 2),
            ("a\tO\n# b\tc\n", 2),
        ] {
            let found = read(text, |r| r);
            let error =
                found.iter().find_map(|found| found.as_ref().err()).unwrap_or_else(|| panic!("{text:?}"));
            assert!(error.contains(&format!(":{line}: expected a word with")), "{error}");
            assert!(error.contains("`comments` says"), "{error}");
            for comments in [true, false] {
                assert!(read(text, |r| r.comments(comments)).iter().all(Result::is_ok), "{text:?}");
            }
        }
    }

    proptest::proptest! {
        /// No word is lost, and no comment becomes one, wherever they stand.
        #[test]
        fn words_are_kept_and_comments_are_not(
            lines in proptest::collection::vec(
                proptest::sample::select(vec!["a", "#", "#tag", "", "!text = a b", "!id 5239 domain=en", "!The old mill by"]),
                1..12,
            ),
            tabs in proptest::prelude::any::<bool>(),
            middle in 0..3_usize,
        ) {
            let separator = if tabs { "\t" } else { " " };
            let columns = format!("{separator}_").repeat(middle) + separator + "O";
            let mut text = format!("first{columns}\n");
            for line in &lines {
                text += &match line.strip_prefix('!') {
                    Some(comment) => format!("# {comment}\n"),
                    None if line.is_empty() => "\n".to_owned(),
                    None => format!("{line}{columns}\n"),
                };
            }
            let found: Vec<_> = read(&text, |r| r).into_iter().flat_map(|found| {
                found.unwrap().1.split('|').map(str::to_owned).collect::<Vec<_>>()
            }).collect();
            let words = std::iter::once(&"first").chain(&lines).filter(|line| !line.is_empty() && !line.starts_with('!'));
            proptest::prop_assert_eq!(found, words.copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn comments_as_configured() {
        let text = "# a=b\nc O\n";
        assert_eq!(read(text, |r| r), [sentence(2, "c", "O")]);
        assert_eq!(read(text, |r| r.comments(false)), [sentence(1, "#|c", "a=b|O")]);
        assert_eq!(read("# O\nc O\n", |r| r.comments(true)), [sentence(2, "c", "O")]);
        let detect = |r: ConllReader| r.tags(Tags::Detect);
        assert_eq!(read("# id domain=B-x\na I-x\n", detect), [sentence(2, "a", "B-x")]);
    }

    #[test]
    fn malformed_sentences() {
        let text = b"a O\n\xff O\nb O\n\nc O\n\nddddddddddd O\nd O\n\ne O\n";
        let found = read(text, |r| r.longest(13));
        assert!(found[0].as_ref().unwrap_err().contains(":2: expected UTF-8"), "{found:?}");
        assert_eq!(found[1], sentence(5, "c", "O"));
        assert!(
            found[2].as_ref().unwrap_err().contains(":7: expected a sentence of at most 13 bytes"),
            "{found:?}"
        );
        assert_eq!(found[3], sentence(10, "e", "O"));
    }

    #[test]
    fn schemes() {
        let text = "a I-x\nb B-x\n\nc O\n";
        assert_eq!(read(text, |r| r)[0], sentence(1, "a|b", "I-x|B-x"));
        let detected = read(text, |r| r.tags(Tags::Detect));
        assert_eq!(detected, [sentence(1, "a|b", "B-x|B-x"), sentence(4, "c", "O")]);
        let found = read("a O\n-DOCSTART-\nb O\nc E-x\n\nd O", |r| r.tags(Tags::From(TagScheme::Iob2)));
        let error = found[1].as_ref().unwrap_err();
        assert!(
            error.contains(":4, field `labels`: expected `O`, or `B-` or `I-` and a type, found \"E-x\""),
            "{error}"
        );
        assert_eq!(found[2], sentence(6, "d", "O"));
    }

    #[test]
    fn the_scheme_is_that_of_all_files() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&paths[0], "a I-x\n").unwrap();
        fs::write(&paths[1], "a S-x\n").unwrap();
        let reader = ConllReader::new(paths.to_vec()).tags(Tags::Detect);
        let record = reader.open(1).unwrap().next().unwrap().unwrap();
        assert_eq!(record.texts("labels").unwrap(), ["B-x"]);
        assert_eq!(reader.detect().unwrap(), TagScheme::Iobes);
    }
}
