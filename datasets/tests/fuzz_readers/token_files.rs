//! Damaged token files.

use std::{fs, path::Path};

use firebrick_datasets::{DataError, ReadError, TokenFile, TokenWriter, Tokenizer};
use proptest::{prelude::*, sample::Index};

use crate::{
    damage::change,
    reading::{check_message, watched},
};

/// The size of the header, and the offset of its checksum.
const HEADER: usize = 128;
const CHECKSUM: usize = 76;

/// Creates a token file with a vocabulary of this size.
fn token_file(path: &Path, vocabulary: u32) -> Vec<u8> {
    let characters = (0x2_0000..0x2_0000 + vocabulary).filter_map(char::from_u32);
    let tokenizer = Tokenizer::characters(&characters.collect::<String>()).unwrap();
    let mut writer = TokenWriter::create(path, &tokenizer).unwrap();
    for document in 0..10 {
        let ids: Vec<u32> = (0..20).map(|token| (document * 7919 + token * 104_729) % vocabulary).collect();
        writer.document(&ids).unwrap();
    }
    writer.finish().unwrap();
    fs::read(path).unwrap()
}

/// Decodes a little-endian number.
fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte))
}

#[test]
fn damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tokens");
    let seeds = [5, 65_536, 70_000].map(|vocabulary| token_file(&path, vocabulary));
    let field = prop_oneof![12..16_usize, 16..20_usize, 32..36_usize, 0..HEADER];
    let headers = proptest::collection::vec((field, any::<u8>()), 0..3);
    let changes = proptest::collection::vec(change(), 0..4);
    let ranges = proptest::collection::vec(any::<(Index, Index)>(), 3);
    proptest!(|(
        seed in 0..seeds.len(),
        headers in headers,
        changes in changes,
        checksum: bool,
        tokens: bool,
        largest: bool,
        ranges in ranges,
    )| {
        let mut bytes = seeds[seed].clone();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        for &(at, value) in &headers {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        // Repairs the number of tokens, so that damage gets past the first checks.
        if tokens && bytes.len() >= HEADER {
            let width = if bytes[12] == 4 { 4 } else { 2 };
            bytes.truncate(bytes.len() / width * width);
            let count = ((bytes.len() - HEADER) / width) as u64;
            bytes[16..24].copy_from_slice(&count.to_le_bytes());
        }
        // Sets the vocabulary size so that the largest id is just outside the vocabulary.
        if largest && bytes.len() >= HEADER {
            let width = if bytes[12] == 4 { 4 } else { 2 };
            let ids = bytes[HEADER..].chunks_exact(width).map(number);
            let largest = u64::from(ids.max().unwrap_or(0));
            bytes[32..40].copy_from_slice(&largest.to_le_bytes());
        }
        if checksum && bytes.len() >= HEADER {
            let sum = crc32fast::hash(&bytes[..CHECKSUM]).to_le_bytes();
            bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&sum);
        }
        fs::write(&path, &bytes).unwrap();

        let (opening, file) = watched(|| TokenFile::open(&path));
        prop_assert!(opening < 16 << 10, "{} bytes of memory to open a file", opening);
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                check_message(&error);
                prop_assert!(!changes.is_empty() || !headers.is_empty() || largest, "{}", error);
                return Ok(());
            }
        };
        let width = usize::from(bytes[12]);
        prop_assert_eq!(bytes.len(), HEADER + width * file.len());
        let id = |token: usize| {
            let at = HEADER + token * width;
            number(&bytes[at..at + width])
        };
        let places = ranges.iter().map(|(a, b)| (a.index(file.len() + 1), b.index(file.len() + 1)));
        for (a, b) in places.chain([(0, file.len())]) {
            let range = a.min(b)..a.max(b);
            let expected: Vec<u32> = range.clone().map(id).collect();
            let known = expected.iter().all(|&id| u64::from(id) < file.vocab_size());
            let (peak, ids) = watched(|| file.range(range.clone()));
            // The ids, and their bytes in the file.
            prop_assert!(peak <= (4 + width) * range.len() + (4 << 10), "{} bytes for {:?}", peak, range);
            match ids {
                Ok(ids) => {
                    prop_assert!(known, "an id beyond the vocabulary");
                    prop_assert_eq!(ids, expected);
                }
                Err(error) => {
                    check_message(&error);
                    prop_assert!(!known, "{}", error);
                }
            }
        }
        let beyond = file.range(0..file.len() + 1);
        prop_assert!(matches!(beyond, Err(DataError::Read(ReadError::TokenRange { .. }))), "{:?}", beyond);
        let stored = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
        let (peak, verified) = watched(|| file.verify());
        // Verifying reads one MiB at a time.
        prop_assert!(peak <= bytes.len().min(1 << 20) + (4 << 10), "{} bytes to verify", peak);
        prop_assert_eq!(verified.is_ok(), stored == crc32fast::hash(&bytes[HEADER..]));
    });
}
