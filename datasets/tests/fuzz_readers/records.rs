//! Record readers on damaged files.

use std::{
    cell::Cell,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use firebrick_datasets::{
    ConllReader, DataError, DelimitedReader, JsonlReader, Malformed, ParallelReader, ParquetReader, Reader,
    Skipped, Tags, TextReader, TextUnit,
};
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use crate::{
    damage::{change, corpus},
    reading::{BUFFERS, Count, JSON, PARQUET, TEXT, VALUES, WORDS, read, watched},
};

/// The maximum length of a record here, far below the size of the largest files.
const LONGEST: usize = 2 << 10;

/// The compression of a file, which is then damaged again.
#[derive(Debug, Clone, Copy)]
pub enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    pub fn pack(self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Self::None => bytes,
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(&bytes).unwrap();
                encoder.finish().unwrap()
            }
            Self::Zstd => zstd::encode_all(&*bytes, 1).unwrap(),
        }
    }
}

/// Reads damaged versions of these corpus files, compressed or not, with each of the readers. The readers get the
/// maximum length of a record, and may take `factor` bytes of memory for each of its bytes.
fn fuzz(files: &[&str], factor: usize, readers: &dyn Fn(PathBuf, usize) -> Vec<Box<dyn Reader>>) {
    let seeds: Vec<_> = files.iter().map(|name| corpus(name)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for seed in &seeds {
        fs::write(&path, seed).unwrap();
        for reader in readers(path.clone(), LONGEST) {
            let (_, count) = watched(|| read(&*reader));
            assert!(count != Count::default(), "{reader:?} reads nothing from a valid file");
        }
    }
    let packing = prop_oneof![
        2 => Just((Packing::None, 0)),
        1 => (Just(Packing::Gzip), 0..3_usize),
        1 => (Just(Packing::Zstd), 0..3_usize),
    ];
    let packing = packing
        .prop_flat_map(|(packing, changes)| (Just(packing), proptest::collection::vec(change(), changes)));
    let changes = (0..seeds.len(), proptest::collection::vec(change(), 1..6), packing);
    proptest!(|((seed, changes, (packing, packed_changes)) in changes)| {
        let mut bytes = seeds[seed].clone();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        let unpacked = bytes.len();
        let mut bytes = packing.pack(bytes);
        packed_changes.iter().for_each(|change| change.apply(&mut bytes));
        fs::write(&path, &bytes).unwrap();
        // For long records, the text is the limit, which is only known if the compressed file is not damaged.
        let whole = packed_changes.is_empty().then_some(unpacked);
        for longest in [Some(LONGEST), whole].into_iter().flatten() {
            for reader in readers(path.clone(), longest.max(LONGEST)) {
                let (peak, _) = watched(|| read(&*reader));
                let most = BUFFERS + factor * longest;
                prop_assert!(peak <= most, "{} bytes of memory, not {}: {:?}", peak, most, reader);
            }
        }
    });
}

#[test]
fn text() {
    fuzz(&["text.txt", "bom.txt"], TEXT, &|path, longest| {
        let units = [TextUnit::Line, TextUnit::Paragraph, TextUnit::Document];
        let reader = |unit| TextReader::new(path.clone()).unit(unit).longest(longest);
        units.map(|unit| Box::new(reader(unit)) as Box<dyn Reader>).into()
    });
}

#[test]
fn jsonl() {
    fuzz(&["objects.jsonl"], JSON, &|path, longest| vec![Box::new(JsonlReader::new(path).longest(longest))]);
}

#[test]
fn delimited() {
    fuzz(&["rows.csv", "rows.tsv"], VALUES, &|path, longest| {
        let names = ["a", "b"].map(str::to_owned).to_vec();
        let csv = || DelimitedReader::csv(path.clone()).longest(longest);
        vec![
            Box::new(csv()),
            Box::new(csv().names(names)),
            Box::new(DelimitedReader::tsv(path.clone()).longest(longest)),
        ]
    });
}

#[test]
fn conll() {
    fuzz(&["words.conll", "words.conllu"], WORDS, &|path, longest| {
        let reader = || ConllReader::new(path.clone()).longest(longest);
        vec![
            Box::new(reader().tags(Tags::Detect)),
            Box::new(reader().word(1).label(-2).comments(true).tokens_only(true)),
        ]
    });
}

#[test]
fn parallel() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other");
    fs::write(&other, corpus("pair.en")).unwrap();
    fuzz(&["pair.en"], 2 * TEXT, &|path, longest| {
        let pair = |a: &Path, b: &Path| ParallelReader::new(a, b).unwrap().longest(longest);
        vec![Box::new(pair(&path, &other)), Box::new(pair(&other, &path).keep_blank(true))]
    });
}

#[test]
fn parquet() {
    let names = ["plain", "snappy", "zstd", "gzip", "brotli", "lz4", "delta"];
    let seeds = names.map(|name| corpus(&format!("{name}.parquet")));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let (cases, large) = (Cell::new(0_u32), Cell::new(0_u32));
    let changes = (0..seeds.len(), proptest::collection::vec(change(), 1..6));
    proptest!(|((seed, changes) in changes)| {
        let mut bytes = seeds[seed].clone();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        fs::write(&path, &bytes).unwrap();
        let reader = ParquetReader::new(path.clone());
        for reader in [reader.clone().columns(vec!["text".into()]), reader] {
            let (peak, _) = watched(|| read(&reader));
            let most = BUFFERS + PARQUET * bytes.len();
            cases.set(cases.get() + 1);
            large.set(large.get() + u32::from(peak > most));
            // A page that claims 64 MiB is trusted and unpacked to that size.
            prop_assert!(peak <= most + (128 << 20), "{} bytes of memory for {}", peak, bytes.len());
        }
    });
    // Few files are damaged exactly where a page claims its size.
    assert!(large.get() <= 1 + cases.get() / 500, "{} of {} took much memory", large.get(), cases.get());
}

#[test]
fn every_seed_is_read_without_an_error() {
    let names = fs::read_dir("tests/corpus").unwrap();
    let mut skipped_some = false;
    for path in names.map(|entry| entry.unwrap().path()) {
        let Ok(format) = firebrick_datasets::Format::of(&path) else { continue };
        let reader = format.open(&[&path]).unwrap();
        let skipped = Skipped::default();
        let (_, records) = watched(|| Malformed::Skip.apply(reader.open(0).unwrap(), &skipped));
        let (_, records) = watched(|| records.collect::<Result<Vec<_>, DataError>>());
        assert!(!records.unwrap().is_empty(), "{}", path.display());
        skipped_some |= skipped.count() > 0;
    }
    assert!(!skipped_some);
}
