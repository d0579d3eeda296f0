//! Reading to the end, with an eye on memory and on panics.

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

/// Bytes of memory that any file may take: the buffers and gzip decoders of two files, as some readers
/// have two open at once, and a message. The library of zstd has memory of its own that is not counted.
pub const BUFFERS: usize = 384 << 10;

/// Bytes of memory for each byte of a record that is one text. A buffer that grows is there twice.
pub const TEXT: usize = 5;
/// For each byte of a JSON object: `0,` becomes a value of 32 bytes, in a list that grows.
pub const JSON: usize = 56;
/// For each byte of a row: a comma makes one more value, and its name, which the parser has as well.
pub const VALUES: usize = 88;
/// For each byte of a sentence: a line of 4 bytes has a word and a label.
pub const WORDS: usize = 32;
/// For each byte of a Parquet file, if no page claims to unpack to far more than there is.
pub const PARQUET: usize = 64;

thread_local! {
    static READING: Cell<bool> = const { Cell::new(false) };
}

/// Panics that reached the hook while something was read.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// Does `work`, which reads, and returns the most bytes of memory it took at any time.
///
/// # Panics
///
/// If it panics, even if the panic was caught.
pub fn watched<T>(work: impl FnOnce() -> T) -> (usize, T) {
    static HOOK: Once = Once::new();
    // Before the hook of the readers, which passes on what it does not silence.
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

/// What a reader gave.
#[derive(Debug, Default, PartialEq)]
pub struct Count {
    pub records: usize,
    pub errors: usize,
}

/// Reads everything that opens, and keeps nothing.
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
