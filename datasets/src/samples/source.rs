//! Encodes a reader's records into samples, on all cores.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, LazyLock},
};

use rayon::{ThreadPool, ThreadPoolBuilder, prelude::*};

use super::InMemory;
use crate::{Collator, DataError, Malformed, Reader, Record, Records, Skipped};

/// The number of records that are read and then encoded together, on all cores.
const CHUNK: usize = 512;

/// The number of bytes of text after which no more records join them: 512 long ones would fill the memory.
const CHUNK_BYTES: usize = 16 << 20;

/// The threads that encode. They are separate from the caller's thread pool: a caller's thread that waits for encoded
/// samples and is asked to help could wait for itself.
static CORES: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    // As many as the caller's pool has: rayon would take any number that `RAYON_NUM_THREADS` asks for.
    let threads = rayon::current_num_threads();
    ThreadPoolBuilder::new().num_threads(threads).thread_name(|at| format!("encode {at}")).build().ok()
});

/// The records of a reader, and the collator that encodes them.
///
/// # Example
///
/// You train a task either on all samples in memory or on a stream of them:
///
/// ```
/// use firebrick_datasets::{InMemory, Samples, Source};
/// # use firebrick_datasets::{Collator, DataError, Drawn, RecordPlace, Reader, Record, Records, TokenBatch, Value};
/// use std::sync::Arc;
/// # use std::path::Path;
/// # struct Lines;
/// # impl Collator for Lines {
/// #     type Sample = String;
/// #     type Batch = TokenBatch;
/// #     fn encode(&self, record: &Record) -> Result<Vec<String>, DataError> {
/// #         Ok(vec![record.text("text")?.to_owned()])
/// #     }
/// #     fn length(&self, sample: &String) -> usize { sample.len() }
/// #     fn padded(&self, _: &[Arc<String>]) -> usize { 0 }
/// #     fn collate(&self, _: &[Drawn<String>]) -> Result<TokenBatch, DataError> {
/// #         TokenBatch::from_rows(vec![], 0)
/// #     }
/// # }
/// # #[derive(Debug)]
/// # struct Two;
/// # impl Reader for Two {
/// #     fn parts(&self) -> usize { 1 }
/// #     fn open(&self, _: usize) -> Result<Records, DataError> {
/// #         let record = |line| {
/// #             let place = RecordPlace { file: Path::new("a").into(), line };
/// #             Ok(Record::new(place, vec![("text".into(), Value::Text(format!("line {line}")))]))
/// #         };
/// #         Ok(Box::new((1..3).map(record)))
/// #     }
/// # }
/// # let (reader, collator) = (Two, Lines);
/// let source = Source::new(reader, Arc::new(collator));
/// let samples = source.load(|_| ())?;
/// assert_eq!(samples.samples(0), 2);
/// # Ok::<(), DataError>(())
/// ```
pub struct Source<C> {
    reader: Arc<dyn Reader>,
    collator: Arc<C>,
    malformed: Malformed,
    skipped: Skipped,
    /// The records skipped while the samples were counted.
    counted: Option<Skipped>,
}

impl<C: Collator> Source<C> {
    /// Encodes all records of a reader. A malformed record is an error.
    pub fn new(reader: impl Reader, collator: Arc<C>) -> Self {
        Self {
            reader: Arc::new(reader),
            collator,
            malformed: Malformed::default(),
            skipped: Skipped::default(),
            counted: None,
        }
    }

    /// Sets what to do about malformed records.
    pub fn malformed(self, malformed: Malformed) -> Self {
        Self { malformed, ..self }
    }

    /// Adds skipped records to an existing count.
    pub fn counting(self, skipped: Skipped) -> Self {
        Self { skipped, ..self }
    }

    /// Returns the same source, with a separate count of the records skipped from now on.
    pub(super) fn counting_no_more(self) -> Self {
        Self { counted: Some(self.skipped.clone()), skipped: Skipped::default(), ..self }
    }

    /// Returns the count of skipped malformed records.
    pub fn skipped(&self) -> &Skipped {
        self.counted.as_ref().unwrap_or(&self.skipped)
    }

    /// Returns the number of parts of the reader.
    pub fn parts(&self) -> usize {
        self.reader.parts()
    }

    /// Returns the collator.
    pub fn collator(&self) -> &Arc<C> {
        &self.collator
    }

    /// Opens a part and yields its samples, in order. They are encoded some hundred records at a time.
    ///
    /// # Errors
    ///
    /// Those of [`Reader::open`]. An item is an error if a record is malformed and [`Malformed`] says to stop, or if
    /// reading or tokenizing fails; nothing follows it.
    pub fn open(&self, part: usize) -> Result<PartSamples<C>, DataError> {
        Ok(PartSamples {
            records: self.reader.open(part)?,
            collator: Arc::clone(&self.collator),
            malformed: self.malformed,
            skipped: self.skipped.clone(),
            ready: VecDeque::new(),
            ended: false,
        })
    }

    /// Loads all samples into memory. `progress` is called now and then with the number of samples so far.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn load(&self, mut progress: impl FnMut(usize)) -> Result<InMemory<C::Sample>, DataError> {
        let mut samples = Vec::new();
        for part in 0..self.parts() {
            for sample in self.open(part)? {
                samples.push(sample?);
                if samples.len().is_multiple_of(CHUNK) {
                    progress(samples.len());
                }
            }
        }
        Ok(InMemory::new(samples))
    }
}

impl<C> fmt::Debug for Source<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Source");
        fields.field("reader", &self.reader).field("malformed", &self.malformed).finish_non_exhaustive()
    }
}

/// Yields the samples of one part of a source, in order.
pub struct PartSamples<C: Collator> {
    records: Records,
    collator: Arc<C>,
    malformed: Malformed,
    skipped: Skipped,
    ready: VecDeque<Result<C::Sample, DataError>>,
    ended: bool,
}

impl<C: Collator> PartSamples<C> {
    /// Reads and encodes more records.
    ///
    /// The records are dropped on the thread that read them: freeing memory that another thread allocated is slow, and
    /// there is a lot of it.
    fn fill(&mut self) {
        let (mut records, mut bytes) = (Vec::new(), 0);
        while records.len() < CHUNK
            && bytes < CHUNK_BYTES
            && let Some(record) = self.records.next()
        {
            bytes += record.as_ref().map_or(0, Record::text_bytes);
            records.push(record);
        }
        self.ended = records.is_empty();
        let encode = |record: &Result<Record, _>| {
            let record = record.as_ref().ok()?;
            Some(self.collator.encode(record).map_err(|error| error.about(record.place())))
        };
        let on_all_cores = || records.par_iter().map(encode).collect();
        let encoded: Vec<_> = match &*CORES {
            Some(pool) => pool.install(on_all_cores),
            None => records.iter().map(encode).collect(),
        };
        let encoded = records
            .into_iter()
            .zip(encoded)
            .map(|(record, encoded)| record.and_then(|_| encoded.unwrap_or_else(|| Ok(Vec::new()))));
        for samples in encoded {
            match self.malformed.keep(samples, &self.skipped) {
                Ok(samples) => {
                    if samples.as_ref().is_some_and(Vec::is_empty) {
                        self.skipped.leave_out(1);
                    }
                    self.ready.extend(samples.into_iter().flatten().map(Ok));
                }
                Err(error) => {
                    self.ready.push_back(Err(error));
                    self.ended = true;
                    return;
                }
            }
        }
    }
}

impl<C: Collator> Iterator for PartSamples<C> {
    type Item = Result<C::Sample, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.ended {
            self.fill();
        }
        self.ready.pop_front()
    }
}
