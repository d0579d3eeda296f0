//! Every reader over damaged files: no panic, an end, and memory that the size of the file bounds.
//!
//! The files are made from the valid ones in `corpus` by cutting, flipping, repeating and inserting.
//! `PROPTEST_CASES` says how many are made for each reader.

mod counting;

use std::{fs, path::Path};

use firebrick_datasets::{
    ConllReader, DataError, DelimitedReader, JsonlReader, Malformed, ParallelReader, ParquetReader, Reader,
    Skipped, Tags, TextReader, TextUnit,
};
use proptest::{prelude::*, sample::Index};

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Bytes of memory that any file may take.
const CONSTANT: usize = 2 << 20;
/// Bytes of memory for each byte of a file, as it is when unpacked.
const FACTOR: usize = 200;

/// The size of the largest files.
const LARGEST: usize = 1 << 20;

/// One change of a file.
#[derive(Debug, Clone)]
enum Change {
    Cut(Index),
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, Index),
    /// A part, as many times.
    Repeat(Index, Index, usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let place = |index: &Index| index.index(bytes.len() + 1);
        let range = |a: &Index, b: &Index| place(a).min(place(b))..place(a).max(place(b));
        match self {
            Self::Cut(at) => bytes.truncate(place(at)),
            Self::Flip(at, bit) => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            Self::Set(at, value) => {
                let at = place(at);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = *value;
                }
            }
            Self::Insert(at, inserted) => {
                let at = place(at);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Self::Remove(a, b) => {
                bytes.drain(range(a, b));
            }
            Self::Repeat(a, b, times) => {
                let range = range(a, b);
                // Repeated parts may be repeated again.
                let most = LARGEST / range.len().max(1);
                let part = bytes[range.clone()].repeat((*times).min(most));
                bytes.splice(range, part);
            }
        }
    }
}

fn change() -> impl Strategy<Value = Change> {
    let tokens: Vec<&[u8]> = vec![
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\"",
        b",",
        b"\t",
        b" ",
        b"\0",
        b"\xff",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"[[[[[[[[",
        b"{\"a\":",
        b"}",
        b"\\",
        b"\\u",
        b"99999999999999999999",
        b"-",
        b"1e999",
        b"#",
        b"\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\x7f",
        b"\x80\x80\x80\x80\x08",
        b"\xc2\xa0",
        b"-DOCSTART-",
        b"PAR1",
    ];
    let token = prop_oneof![
        4 => proptest::sample::select(tokens).prop_map(<[u8]>::to_vec),
        1 => proptest::collection::vec(any::<u8>(), 0..20),
    ];
    prop_oneof![
        1 => any::<Index>().prop_map(Change::Cut),
        4 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, bit)),
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, value)| Change::Set(at, value)),
        3 => (any::<Index>(), token).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(a, b)| Change::Remove(a, b)),
        1 => (any::<Index>(), any::<Index>(), 2..200_usize).prop_map(|(a, b, times)| Change::Repeat(a, b, times)),
    ]
}

fn corpus(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus").join(name)).unwrap()
}

/// Reads everything that opens, and counts the records and the errors.
fn read(reader: &dyn Reader) -> usize {
    let mut count = 0;
    for part in 0..reader.parts() {
        let records = match reader.open(part) {
            Ok(records) => records,
            Err(error) => {
                assert!(error.to_string().len() < 2000, "a long message: {error}");
                continue;
            }
        };
        let mut ended = false;
        for record in records {
            assert!(!ended, "something came after an error that is not about a record");
            if let Err(error) = record {
                ended = !error.is_about_a_record();
                assert!(error.to_string().len() < 2000, "a long message: {error}");
            }
            count += 1;
        }
    }
    count
}

/// Reads damaged versions of these files of the corpus with each of the readers.
fn fuzz(files: &[&str], constant: usize, factor: usize, readers: &dyn Fn(&Path) -> Vec<Box<dyn Reader>>) {
    let seeds: Vec<_> = files.iter().map(|name| corpus(name)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for seed in &seeds {
        fs::write(&path, seed).unwrap();
        for reader in readers(&path) {
            assert!(read(&*reader) > 0, "{reader:?} reads nothing from a valid file");
        }
    }
    let changes = (0..seeds.len(), proptest::collection::vec(change(), 1..6));
    proptest!(|((seed, changes) in changes)| {
        let mut bytes = seeds[seed].clone();
        for change in &changes {
            change.apply(&mut bytes);
        }
        bytes.truncate(LARGEST);
        fs::write(&path, &bytes).unwrap();
        for reader in readers(&path) {
            let (peak, _) = counting::peak_of(|| read(&*reader));
            let most = constant + factor * bytes.len();
            prop_assert!(peak <= most, "{} bytes of memory for a file of {}: {:?}", peak, bytes.len(), reader);
        }
    });
}

#[test]
fn text() {
    fuzz(&["text.txt", "bom.txt"], CONSTANT, FACTOR, &|path| {
        let units = [TextUnit::Line, TextUnit::Paragraph, TextUnit::Document];
        units.map(|unit| Box::new(TextReader::new(path).unit(unit)) as Box<dyn Reader>).into()
    });
}

#[test]
fn packed() {
    // Deflate packs up to 1032 times.
    fuzz(&["text.txt.gz", "text.txt.zst", "objects.jsonl.gz"], CONSTANT, 1032 * 8, &|path| {
        vec![Box::new(TextReader::new(path)), Box::new(JsonlReader::new(path))]
    });
}

#[test]
fn jsonl() {
    fuzz(&["objects.jsonl"], CONSTANT, FACTOR, &|path| {
        vec![Box::new(JsonlReader::new(path)), Box::new(JsonlReader::new(path).longest(100))]
    });
}

#[test]
fn delimited() {
    fuzz(&["rows.csv", "rows.tsv"], CONSTANT, FACTOR, &|path| {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        vec![
            Box::new(DelimitedReader::csv(path)),
            Box::new(DelimitedReader::csv(path).longest(100)),
            Box::new(DelimitedReader::csv(path).names(names)),
            Box::new(DelimitedReader::tsv(path)),
        ]
    });
}

#[test]
fn conll() {
    fuzz(&["words.conll", "words.conllu"], CONSTANT, FACTOR, &|path| {
        vec![
            Box::new(ConllReader::new(path).tags(Tags::Detect)),
            Box::new(ConllReader::new(path).word(1).label(-2).comments(true).tokens_only(true).longest(100)),
        ]
    });
}

#[test]
fn parallel() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::write(&other, corpus("pair.en")).unwrap();
    fuzz(&["pair.en", "text.txt.gz"], CONSTANT, 1032 * 8, &|path| {
        let pair = |a: &Path, b: &Path| ParallelReader::new(a, b).unwrap();
        vec![Box::new(pair(path, &other)), Box::new(pair(&other, path).keep_blank(true))]
    });
}

#[test]
fn parquet() {
    let files = [
        "plain.parquet",
        "snappy.parquet",
        "zstd.parquet",
        "gzip.parquet",
        "brotli.parquet",
        "lz4.parquet",
        "delta.parquet",
    ];
    // A page that claims 64 MiB is believed; beyond that little is allocated.
    fuzz(&files, 128 << 20, FACTOR, &|path| {
        let text = vec!["text".to_owned()];
        vec![Box::new(ParquetReader::new(path)), Box::new(ParquetReader::new(path).columns(text))]
    });
}

#[test]
fn every_seed_is_read_without_an_error() {
    let names = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")).unwrap();
    let mut skipped_some = false;
    for path in names.map(|entry| entry.unwrap().path()) {
        let Ok(format) = firebrick_datasets::Format::of(&path) else { continue };
        let reader = format.open(&[&path]).unwrap();
        let skipped = Skipped::default();
        let records = Malformed::Skip.apply(reader.open(0).unwrap(), &skipped);
        let records: Result<Vec<_>, DataError> = records.collect();
        assert!(!records.unwrap().is_empty(), "{}", path.display());
        skipped_some |= skipped.count() > 0;
    }
    assert!(!skipped_some);
}
