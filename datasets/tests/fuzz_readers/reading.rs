//! Reads to the end while tracking memory and panics.

use std::{
    cell::Cell,
    panic::{set_hook, take_hook},
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
};

use firebrick_datasets::{DataError, Reader};

use crate::counting::peak_of;

/// The bytes of memory that any file may take: the buffers and gzip decoders of two files, since some readers have two
/// open at once, and a message. The zstd library's own memory is not counted.
pub const BUFFERS: usize = 384 << 10;

/// The bytes of memory for each byte of a record that is a single text. A growing buffer exists twice.
pub const TEXT: usize = 5;
/// The bytes for each byte of a JSON object: `0,` becomes a value of 32 bytes in a growing list.
pub const JSON: usize = 56;
/// The bytes for each byte of a row: a comma adds a value and its name, of which the parser has a copy, all in lists that
/// may just have doubled.
pub const VALUES: usize = 96;
/// The bytes for each byte of a sentence: a line of 4 bytes has a word and a label.
pub const WORDS: usize = 32;
/// The bytes for each byte of a Parquet file, if no page claims to unpack to far more than it holds.
pub const PARQUET: usize = 64;

thread_local! {
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// The panics that reached the hook while reading.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work`, which reads, and returns its peak memory in bytes.
///
/// # Panics
///
/// If `work` panics, even if the panic is caught.
pub fn watched<T>(work: impl FnOnce() -> T) -> (usize, T) {
    static HOOK: Once = Once::new();
    // Installed before the hook of the readers, which passes on the panics that it does not silence.
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if READING.try_with(Cell::get).unwrap_or(false) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            before(panic);
        }));
    });
    READING.set(true);
    let found = peak_of(work);
    READING.set(false);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "a panic was printed");
    found
}

/// The results of a reader.
#[derive(Debug, Default, PartialEq)]
pub struct Count {
    pub records: usize,
    pub errors: usize,
}

/// Reads everything that opens, without keeping it.
pub fn read(reader: &dyn Reader) -> Count {
    let mut count = Count::default();
    for part in 0..reader.parts() {
        let records = match reader.open(part) {
            Ok(records) => records,
            Err(error) => {
                check_message(&error);
                count.errors += 1;
                continue;
            }
        };
        let mut ended = false;
        for record in records {
            assert!(!ended, "something came after an error that is not about a record");
            match record {
                Ok(_) => count.records += 1,
                Err(error) => {
                    ended = !error.is_about_a_record();
                    check_message(&error);
                    count.errors += 1;
                }
            }
        }
    }
    count
}

pub fn check_message(error: &DataError) {
    assert!(error.to_string().len() < 2000, "a long message: {error}");
}
