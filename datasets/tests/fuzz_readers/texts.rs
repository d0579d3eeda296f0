//! Whole texts and texts in chunks.

use std::fs;

use firebrick_datasets::{Corpus, DataError, ReadError, TextChunks};
use proptest::prelude::*;

use crate::{
    damage::{change, corpus},
    reading::{BUFFERS, check_message, watched},
    records::Packing,
};

/// The bytes of memory for each byte of the text.
const FACTOR: usize = 6;

#[test]
fn both_give_the_same() {
    let seeds = ["text.txt", "bom.txt", "objects.jsonl", "rows.csv"].map(corpus);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let packing = prop_oneof![Just(Packing::None), Just(Packing::Gzip), Just(Packing::Zstd)];
    let changes = || proptest::collection::vec(change(), 0..5);
    proptest!(|(seed in 0..seeds.len(), before in changes(), packing in packing, after in changes())| {
        let mut bytes = seeds[seed].clone();
        before.iter().for_each(|change| change.apply(&mut bytes));
        let unpacked = bytes.len();
        let mut bytes = packing.pack(bytes);
        after.iter().for_each(|change| change.apply(&mut bytes));
        fs::write(&path, &bytes).unwrap();

        let (of_corpus, whole) = watched(|| Corpus::read(&path, &[]));
        // A damaged file may unpack to gigabytes, which chunks read and a whole text refuses.
        if matches!(whole, Err(DataError::Read(ReadError::UnpackedText { .. }))) {
            return Ok(());
        }
        let (of_chunks, chunks) =
            watched(|| TextChunks::open(&path).and_then(|chunks| chunks.collect::<Result<String, _>>()));
        if after.is_empty() {
            let most = BUFFERS + FACTOR * unpacked;
            prop_assert!(of_corpus <= most && of_chunks <= most, "{} {} {}", of_corpus, of_chunks, most);
        }
        match (whole, chunks) {
            (Ok(whole), Ok(chunks)) => prop_assert_eq!(whole.text(), chunks),
            (Err(DataError::EmptyText { .. }), Ok(chunks)) => prop_assert!(chunks.trim().is_empty()),
            (Err(whole), Err(chunks)) => {
                check_message(&whole);
                // Both report the same position for bytes that are not text. If a compressed file is also broken, they
                // may encounter either error first.
                let not_utf8 = |error: &DataError| matches!(error, DataError::Read(ReadError::NotUtf8 { .. }));
                if not_utf8(&whole) && not_utf8(&chunks) {
                    prop_assert_eq!(whole.to_string(), chunks.to_string());
                }
            }
            (whole, chunks) => prop_assert!(false, "{:?} but {:?}", whole, chunks),
        }
    });
}
