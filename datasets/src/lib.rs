//! Text in, batches of token ids out.
//!
//! This crate is the data side of Firebrick. It reads text, turns it into token ids, cuts the ids
//! into windows, and delivers the windows as batches, in an order that depends on a seed and an
//! epoch and on nothing else: not on the number of threads, not on the size of a micro-batch.
//!
//! ```text
//! text
//! ├── readers      records out of files, one after the other
//! │   ├── record         named values, and the place they came from
//! │   ├── format         the formats by name and by ending
//! │   ├── text           lines, paragraphs or documents
//! │   ├── jsonl          an object in each line
//! │   │   └── json          one of them
//! │   ├── delimited      CSV and TSV
//! │   │   └── row_lines     lines for the parser, so that it knows where it is
//! │   ├── conll          words with labels
//! │   │   ├── conll_sentence  one sentence out of its lines
//! │   │   └── tag_scheme      IOB1, IOB2 and IOBES, all as IOB2
//! │   ├── parallel       two files, line by line
//! │   ├── parquet        columns of values
//! │   │   ├── footer        checks what the end of a file says
//! │   │   ├── pages         checks what a page says
//! │   │   │   ├── levels       how long its lists are
//! │   │   │   └── deltas       how many lengths it has
//! │   │   ├── thrift        reads the headers that are checked
//! │   │   └── values        what a value becomes
//! │   ├── malformed      stop at malformed records, or skip and count them
//! │   ├── corpus         one text out of all files, with a part split off for validation
//! │   ├── files          paths, folders and patterns
//! │   │   └── folder        finds the documents
//! │   └── lines          a file line by line
//! │       └── unpacked      opens it, gzip, zstd or neither
//! └── tokenizer    text to ids and back
//!     ├── characters      one token for each character, with a fast table
//!     ├── bpe             byte-level BPE, trained on the text
//!     ├── tokenizer_file  any tokenizer.json, read with suspicion
//!     └── pieces          cuts a long text at newlines, works on all cores
//! samples
//! ├── batch        the two traits: one micro-batch, and a stream of samples
//! ├── token_batch  padded rows of ids with their labels, as tensors on demand
//! ├── windows      a stream of samples: windows of one long text
//! └── order        the shuffle: a permutation computed, not stored
//! delivery
//! ├── cursor       where training stands
//! ├── requests     the micro-batches that come next
//! └── prefetch     their batches, in order
//!     └── workers     the threads that compute them ahead
//! failure
//! ├── error        everything that can go wrong
//! └── panics       a panic as an error
//! ```
//!
//! # Example
//!
//! ```
//! use firebrick_datasets::{Batch, Batches, Tokenizer, Windows};
//!
//! let text = "to be or not to be";
//! let tokenizer = Tokenizer::characters(text)?;
//! let windows = Windows::new(tokenizer.encode(text)?, 8)?.shuffled(42);
//!
//! // The whole of epoch 0 as one batch: each character but the first is predicted once.
//! let batch = windows.batch(0, 0..windows.samples(0))?;
//! assert_eq!(batch.items(), text.len() - 1);
//! # Ok::<(), firebrick_datasets::DataError>(())
//! ```

mod batch;
mod collators;
mod delivery;
mod error;
mod panics;
mod readers;
mod samples;
mod tokenization;

pub use batch::{Batch, Batches};
pub use collators::{Collator, Drawn, IGNORE, TokenBatch};
pub use delivery::{Cursor, Prefetch, Request, Requests};
pub use error::DataError;
pub use readers::{
    ConllReader, Corpus, DelimitedReader, Files, Format, JsonlReader, Malformed, ParallelReader,
    ParquetReader, Place, Reader, Record, Records, Skipped, TagFault, TagScheme, Tags, TextReader, TextUnit,
    Value,
};
pub use samples::{Permutation, Samples, Windows};
pub use tokenization::{Encoder, Encoding, Input, Side, SpecialTokens, Tokenizer, Truncation};
