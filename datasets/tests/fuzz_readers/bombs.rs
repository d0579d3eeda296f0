//! Small files that unpack to large ones, and records that are larger than they look.

use std::{
    fs,
    path::{Path, PathBuf},
};

use firebrick_datasets::{
    ConllReader, DelimitedReader, JsonlReader, ParallelReader, ParquetReader, Reader, Tags, TextChunks,
    TextReader, TextUnit,
};

use crate::{
    damage::corpus,
    reading::{BUFFERS, Count, JSON, PARQUET, TEXT, VALUES, WORDS, read, watched},
    records::Packing,
};

const MIB: usize = 1 << 20;

/// The maximum length of a record here.
const LONGEST: usize = MIB;

/// The unpacked size of bombs.
const UNPACKED: usize = 64 * MIB;

fn file(folder: &tempfile::TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    path
}

/// Creates a zstd frame of blocks that each repeat one byte.
fn zstd_of(byte: u8, length: usize) -> Vec<u8> {
    const BLOCK: usize = 128 << 10;
    // The magic number, no options, a window of 128 KiB.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0x38];
    let blocks = length / BLOCK;
    for block in 0..blocks {
        let header = (BLOCK as u32) << 3 | 1 << 1 | u32::from(block + 1 == blocks);
        frame.extend(&header.to_le_bytes()[..3]);
        frame.push(byte);
    }
    frame
}

/// Creates as many gzip members as needed, each with 1 MiB of this text.
fn gzip_of(text: &str, length: usize) -> Vec<u8> {
    Packing::Gzip.pack(text.repeat(MIB / text.len()).into_bytes()).repeat(length / MIB)
}

fn readers(path: &Path) -> Vec<Box<dyn Reader>> {
    let text = |unit| Box::new(TextReader::new(path).unit(unit).longest(LONGEST)) as Box<dyn Reader>;
    vec![
        text(TextUnit::Line),
        text(TextUnit::Paragraph),
        text(TextUnit::Document),
        Box::new(JsonlReader::new(path).longest(LONGEST)),
        Box::new(DelimitedReader::csv(path).longest(LONGEST)),
        Box::new(ConllReader::new(path).longest(LONGEST)),
        Box::new(ParallelReader::new(path, path).unwrap().longest(LONGEST)),
    ]
}

fn check(reader: &dyn Reader, factor: usize) -> Count {
    check_up_to(LONGEST, reader, factor)
}

/// Reads records of at most `longest` bytes, and allows `factor` bytes of memory for each of them.
fn check_up_to(longest: usize, reader: &dyn Reader, factor: usize) -> Count {
    let (peak, count) = watched(|| read(reader));
    let most = BUFFERS + factor * longest;
    assert!(peak <= most, "{peak} bytes of memory, not {most}: {reader:?}");
    count
}

#[test]
fn one_line_without_end() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [gzip_of("a", UNPACKED), zstd_of(b'a', UNPACKED)] {
        assert!(bytes.len() < UNPACKED / 100);
        let path = file(&folder, &bytes);
        for reader in readers(&path) {
            assert_eq!(check(&*reader, 2 * TEXT), Count { records: 0, errors: 1 }, "{reader:?}");
        }
    }
}

#[test]
fn blank_lines_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &zstd_of(b'\n', 2 * MIB));
    // Excludes pairs: each would be an error, which takes long.
    for reader in readers(&path).iter().take(6) {
        check(&**reader, 2 * TEXT);
    }
}

#[test]
fn chunks_of_a_text_without_end() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [gzip_of("a", UNPACKED), gzip_of("ab cd\n", UNPACKED), zstd_of(b' ', UNPACKED)] {
        let path = file(&folder, &bytes);
        let text = |path: &Path| TextChunks::open(path).unwrap().map(|chunk| chunk.unwrap().len()).sum();
        let (peak, bytes): (usize, usize) = watched(|| text(&path));
        assert!(bytes > UNPACKED - MIB && bytes <= UNPACKED, "{bytes}");
        // Pieces are cut off a buffer of 4 MiB, which also holds the rest of the previous one.
        assert!(peak <= 12 * MIB, "{peak} bytes of memory");
    }
}

#[test]
fn a_sentence_without_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, &gzip_of("a b\n", 4 * LONGEST));
    for tags in [Tags::Keep, Tags::Detect] {
        let reader = ConllReader::new(path.clone()).tags(tags).longest(LONGEST);
        assert_eq!(check(&reader, WORDS), Count { records: 0, errors: 1 });
    }
}

#[test]
fn json_nested_without_end() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["[", "{\"a\":"] {
        let line = format!("{{\"a\":{}", part.repeat((LONGEST - 100) / part.len()));
        let path = file(&folder, line.as_bytes());
        let reader = JsonlReader::new(path).longest(LONGEST);
        assert_eq!(check(&reader, 4), Count { records: 0, errors: 1 });
    }
}

#[test]
fn json_of_many_small_values() {
    let folder = tempfile::tempdir().unwrap();
    for part in ["0,", "[],", "{},", "\"\",", "null,"] {
        // One more than a power of two, so the list has just grown.
        let line = format!("{{\"a\":[{}0]}}", part.repeat(1 << 18));
        let path = file(&folder, line.as_bytes());
        let count = check_up_to(line.len(), &JsonlReader::new(path).longest(line.len()), JSON);
        assert_eq!(count, Count { records: 1, errors: 0 }, "{part}");
    }
}

#[test]
fn rows_of_many_small_values() {
    let folder = tempfile::tempdir().unwrap();
    for commas in [1 << 19, 1 << 20, (1 << 20) - 1] {
        let commas = ",".repeat(commas);
        for text in [commas.clone(), format!("a,b\n{commas}\n1,2\n")] {
            let path = file(&folder, text.as_bytes());
            let reader = DelimitedReader::csv(path).longest(commas.len() + 1);
            assert_eq!(check_up_to(commas.len(), &reader, VALUES).errors, 1);
        }
    }
}

#[test]
fn a_parquet_page_that_claims_too_much() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["plain", "snappy", "zstd", "gzip", "brotli", "lz4"] {
        let mut bytes = corpus(&format!("{name}.parquet"));
        // The header of the first page: its kind, then its unpacked size, which becomes 2^31 - 1.
        assert!(bytes[4] == 0x15 && bytes[6] == 0x15);
        let end = 7 + bytes[7..].iter().position(|&byte| byte < 0x80).unwrap();
        bytes.splice(7..=end, [0xfe, 0xff, 0xff, 0xff, 0x0f]);
        let reader = ParquetReader::new(file(&folder, &bytes));
        assert_eq!(check_up_to(bytes.len(), &reader, PARQUET), Count { records: 0, errors: 1 }, "{name}");
    }
}

/// 505 bytes: a dictionary of one text of 2 MB, in 1,000 rows.
#[test]
fn a_parquet_text_in_many_rows() {
    let reader = ParquetReader::new(Path::new("tests/bombs/one_text.parquet"));
    let (peak, count) = watched(|| read(&reader));
    assert!(count.errors == 1 && count.records < 50, "{count:?}");
    assert!(peak < 32 * MIB, "{peak} bytes of memory");
}

#[test]
fn a_quote_that_is_never_closed() {
    let folder = tempfile::tempdir().unwrap();
    let opened = [Packing::Gzip.pack(b"a,b\n\"".to_vec()), gzip_of("x,\n", UNPACKED)].concat();
    // Two quotes within quotes are an escaped quote that does not close them.
    for bytes in [opened, zstd_of(b'"', UNPACKED)] {
        let path = file(&folder, &bytes);
        let reader = DelimitedReader::csv(path).longest(LONGEST);
        assert_eq!(check(&reader, TEXT), Count { records: 0, errors: 1 });
    }
}

#[test]
fn many_empty_members() {
    let folder = tempfile::tempdir().unwrap();
    let skippable = b"\x50\x2a\x4d\x18\0\0\0\0".to_vec();
    for (empty, last) in [
        (Packing::Gzip.pack(Vec::new()), Packing::Gzip.pack(b"a\tb\n".to_vec())),
        (Packing::Zstd.pack(Vec::new()), Packing::Zstd.pack(b"a\tb\n".to_vec())),
        (skippable, Packing::Zstd.pack(b"a\tb\n".to_vec())),
    ] {
        let path = file(&folder, &[empty.repeat(100_000), last].concat());
        let reader = TextReader::new(path).longest(LONGEST);
        assert_eq!(check(&reader, 0), Count { records: 1, errors: 0 });
    }
}

#[test]
fn a_gzip_header_without_end() {
    let folder = tempfile::tempdir().unwrap();
    // The header contains a file name, which does not end.
    let mut bytes = vec![0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 0xff];
    bytes.resize(16 * MIB, b'a');
    let reader = TextReader::new(file(&folder, &bytes)).longest(LONGEST);
    assert_eq!(check(&reader, 0), Count { records: 0, errors: 1 });
}
