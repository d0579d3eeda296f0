//! Tests of a stream's samples and failures.

use std::{
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use proptest::prelude::*;

use super::*;
use crate::{Malformed, Reader, Record, RecordPlace, Records, TokenBatch, Value};

/// A reader with parts of these sizes; the number in a record is its index.
#[derive(Debug)]
struct Numbers {
    sizes: Vec<usize>,
    /// The number of records read so far, over all openings.
    read: Arc<AtomicUsize>,
    /// The record that is malformed from the second opening on.
    bad: Option<i64>,
    opened: AtomicUsize,
}

impl Reader for Numbers {
    fn parts(&self) -> usize {
        self.sizes.len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let start: usize = self.sizes[..part].iter().sum();
        let read = Arc::clone(&self.read);
        let again = self.opened.fetch_add(1, Ordering::SeqCst) >= self.sizes.len();
        let bad = self.bad.filter(|_| again);
        Ok(Box::new((start..start + self.sizes[part]).map(move |number| {
            read.fetch_add(1, Ordering::SeqCst);
            let place = RecordPlace { file: Path::new("numbers").into(), line: number as u64 };
            let field = if bad == Some(number as i64) { "bad" } else { "n" };
            Ok(Record::new(place, vec![(field.into(), Value::Integer(number as i64))]))
        })))
    }
}

struct Itself;

impl Collator for Itself {
    type Sample = i64;
    type Batch = TokenBatch;

    /// Encodes most numbers as one sample, some as none or two.
    fn encode(&self, record: &Record) -> Result<Vec<i64>, DataError> {
        match record.get("n") {
            Some(Value::Integer(number)) if number % 7 == 6 => Ok(vec![]),
            Some(Value::Integer(number)) if number % 5 == 4 => Ok(vec![*number, -number]),
            Some(Value::Integer(number)) => Ok(vec![*number]),
            _ => Err(record.expected("n", "a number")),
        }
    }

    fn length(&self, _: &i64) -> usize {
        1
    }

    fn padded(&self, samples: &[Arc<i64>]) -> usize {
        samples.len()
    }

    fn collate(&self, _: &[Drawn<i64>]) -> Result<TokenBatch, DataError> {
        TokenBatch::from_rows(Vec::new(), 0)
    }
}

fn numbers(sizes: Vec<usize>) -> Numbers {
    Numbers { sizes, read: Arc::default(), bad: None, opened: AtomicUsize::new(0) }
}

fn source(reader: Numbers) -> Source<Itself> {
    Source::new(reader, Arc::new(Itself))
}

fn drawn(samples: &impl Samples<Sample = i64>, epoch: u64) -> Vec<(u64, i64)> {
    let draw = |position| samples.sample(epoch, position).unwrap();
    (0..samples.samples(epoch)).map(draw).map(|drawn| (drawn.index, *drawn.sample)).collect()
}

#[test]
fn a_window_is_read_once_and_resuming_reads_its_part_only() {
    let reader = numbers(vec![1000; 8]);
    let read = Arc::clone(&reader.read);
    let stream = Stream::open(source(reader), 256, |_| ()).unwrap().shuffled(3);
    let counted = read.swap(0, Ordering::SeqCst);
    assert_eq!(counted, 8000);
    drawn(&stream, 0);
    assert_eq!(read.swap(0, Ordering::SeqCst), 8000);
    stream.sample(5, stream.samples(5) - 1).unwrap();
    assert!(read.load(Ordering::SeqCst) <= 1000);
}

#[test]
fn counts_of_an_earlier_stream_take_the_place_of_counting() {
    let sizes = vec![50, 0, 30];
    let open = || Stream::open(source(numbers(sizes.clone())), 16, |_| ()).unwrap().shuffled(3);
    let reader = numbers(sizes.clone());
    let read = Arc::clone(&reader.read);
    let counted = Stream::counted(source(reader), 16, &open().counts()).unwrap().shuffled(3);
    assert_eq!(read.load(Ordering::SeqCst), 0);
    assert_eq!(drawn(&counted, 1), drawn(&open(), 1));
    assert!(Stream::counted(source(numbers(sizes.clone())), 16, &[1, 2]).is_err());
    assert!(Stream::counted(source(numbers(sizes)), 0, &[1, 2, 3]).is_err());
    // The data has changed since.
    let wrong = Stream::counted(source(numbers(vec![5])), 16, &[9]).unwrap();
    assert!((0..9).any(|position| wrong.sample(0, position).is_err()));
}

#[test]
fn a_failure_is_reported_at_its_sample() {
    let failing = Numbers { bad: Some(70), ..numbers(vec![50, 50]) };
    let stream = Stream::open(source(failing), 64, |_| ()).unwrap().shuffled(1);
    let good = Stream::open(source(numbers(vec![50, 50])), 64, |_| ()).unwrap().shuffled(1);
    let mut failed = 0;
    for position in 0..good.samples(0) {
        match (stream.sample(0, position), good.sample(0, position).unwrap()) {
            (Ok(drawn), expected) => assert_eq!(drawn.sample, expected.sample),
            (Err(error), expected) => {
                assert!(error.to_string().contains("numbers:70, field `n`"), "{error}");
                // In the order of the files, nothing after the malformed record can be read.
                assert!(expected.sample.abs() >= 70 || good.part(0, 0) == 1);
                failed += 1;
            }
        }
    }
    assert!(failed > 0);
}

#[test]
fn malformed_records_are_found_before_training() {
    let again = Numbers { bad: Some(3), opened: AtomicUsize::new(9), ..numbers(vec![10]) };
    assert!(Stream::open(source(again), 4, |_| ()).is_err());
    let again = Numbers { bad: Some(3), opened: AtomicUsize::new(9), ..numbers(vec![10]) };
    let stream = Stream::open(source(again).malformed(Malformed::Skip), 4, |_| ()).unwrap();
    assert!(drawn(&stream, 0).iter().all(|(_, number)| *number != 3));
    assert_eq!(stream.source().skipped().count(), 1);
}

#[test]
fn records_without_a_sample_are_counted() {
    let loaded = source(numbers(vec![20]));
    loaded.load(|_| ()).unwrap();
    assert_eq!((loaded.skipped().count(), loaded.skipped().left_out()), (0, 2));
    // A stream counts them once, however often it reads them.
    let stream = Stream::open(source(numbers(vec![20])), 4, |_| ()).unwrap();
    drawn(&stream, 0);
    assert_eq!(stream.source().skipped().left_out(), 2);
}

#[test]
fn files_that_change() {
    let shorter = Numbers { bad: Some(3), ..numbers(vec![10, 10]) };
    let stream = Stream::open(source(shorter).malformed(Malformed::Skip), 4, |_| ()).unwrap();
    let errors = (0..stream.samples(0)).filter_map(|position| stream.sample(0, position).err());
    let errors: Vec<_> = errors.collect();
    assert!(!errors.is_empty());
    assert!(
        errors.iter().all(|error| matches!(error, DataError::Sample(SampleError::Changed { part: 0, .. })))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Without a shuffle, samples come in the order of the files; with one, each comes once, within its window.
    /// Requests in any order and from several threads give the same samples.
    #[test]
    fn a_function_of_the_position(
        sizes in prop::collection::vec(0_usize..40, 1..6), window in 1_usize..30, seed: u64, jumps in prop::collection::vec((0_u64..3, any::<prop::sample::Index>()), 1..30),
    ) {
        let loaded = source(numbers(sizes.clone())).load(|_| ()).unwrap();
        let plain = Stream::open(source(numbers(sizes.clone())), window, |_| ()).unwrap();
        prop_assert_eq!(drawn(&plain, 1), drawn(&loaded, 1));

        let stream = Stream::open(source(numbers(sizes.clone())), window, |_| ()).unwrap().shuffled(seed);
        let epochs: Vec<_> = (0..3).map(|epoch| drawn(&stream, epoch)).collect();
        for epoch in &epochs {
            let mut sorted = epoch.clone();
            sorted.sort();
            prop_assert_eq!(sorted, drawn(&loaded, 0));
        }
        if loaded.is_empty() {
            return Ok(());
        }
        let fresh = Stream::open(source(numbers(sizes)), window, |_| ()).unwrap().shuffled(seed);
        let ask = |&(epoch, jump): &(u64, prop::sample::Index)| {
            let position = jump.index(loaded.len());
            let drawn = fresh.sample(epoch, position).unwrap();
            ((drawn.index, *drawn.sample), epochs[epoch as usize][position])
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let halves = jumps.chunks(jumps.len().div_ceil(2));
            let threads: Vec<_> = halves.map(|half| scope.spawn(move || half.iter().map(ask).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for (found, expected) in answers {
            prop_assert_eq!(found, expected);
        }
    }
}
