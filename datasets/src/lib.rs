//! Batches of samples for training: which sample comes at which position, and what carries them there.
//!
//! This crate is the data side of Firebrick. A [`Samples`] stream decides which sample comes at which position. That
//! depends only on the data, the seed and the epoch: not on the number of ranks or worker threads, the size of a
//! micro-batch or interruptions. Two numbers, the [`Cursor`], are therefore enough to resume training. A [`Cut`] deals
//! global batches to ranks, and [`Prefetch`] computes batches ahead.
//!
//! ```
//! use std::sync::Arc;
//! use firebrick_datasets::{Amount, Batch, Cursor, Cut, Prefetch, Requests, Windows};
//!
//! // Windows of a long sequence of token ids, in a different order in each epoch.
//! let ids: Vec<u32> = (0..100).collect();
//! let batches = Arc::new(Windows::new(ids, 8)?.shuffled(42));
//! // A step has two samples, in micro-batches of one; two threads collate ahead.
//! let cut = Cut::new(Amount::Samples(2), Amount::Samples(1))?;
//! let requests = Requests::new(batches.clone(), Cursor::default(), cut);
//! for delivered in Prefetch::new(batches, requests, 2, 4).take(2) {
//!     let (_request, batch) = delivered?;
//!     assert_eq!((batch.samples(), batch.tokens()), (1, 9));
//! }
//! # Ok::<(), firebrick_datasets::DataError>(())
//! ```
//!
//! # Features
//!
//! No feature is on by default: a program with data of its own implements [`Batches`], or [`Reader`] and [`Collator`],
//! and compiles no tokenizer and no file format. `firebrick` has features with the same names that enable these.
//!
//! | feature | adds |
//! |---|---|
//! | none | [`Batch`] and [`Batches`]; [`Samples`], in memory, shuffled, grouped, mixed, packed or [streamed](Stream); [`Collator`] and [`Batcher`]; [`TokenBatch`], [`Windows`] and [`TokenFile`]; [`Cut`], [`Requests`] and [`Prefetch`]; [`Fingerprint`] |
//! | `text` | tokenizers, the collators of language tasks, readers of text, JSON lines, CSV, TSV and CoNLL, plain or compressed |
//! | `parquet` | the reader of Parquet files, and all of `text` |
//!
//! # Text
//!
//! If you know the collators of `transformers`, you know most of this part: a [`Reader`] reads [`Record`]s from files,
//! and a [`Collator`] turns records into samples and samples into batches.
//!
#![cfg_attr(feature = "text", doc = "```")]
#![cfg_attr(not(feature = "text"), doc = "```ignore")]
//! use std::sync::Arc;
//! use firebrick_datasets::collators::CausalLm;
//! use firebrick_datasets::{Batch, Batcher, Batches, Encoder, JsonlReader, Source, Tokenizer};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("sums.jsonl");
//! std::fs::write(&path, "{\"q\": \"1+1=\", \"a\": \"2\"}\n{\"q\": \"10+1=\", \"a\": \"11\"}\n")?;
//!
//! // Turns a record into samples: the answer counts in the loss, the question does not.
//! let tokenizer = Arc::new(Tokenizer::characters("0123456789+=")?);
//! let task = Arc::new(CausalLm::new(Encoder::new(tokenizer)).prompted("q", "a"));
//! // All samples are in memory, in a different order in each epoch.
//! let source = Source::new(JsonlReader::new(path), task.clone());
//! let samples = source.load(|_| ())?.shuffled(42);
//! let batches = Batcher::new(samples, task);
//! assert_eq!(batches.batch(0, 0..2)?.samples(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The files
//!
//! ```text
//! tokens       long sequences of ids
//! ├── token_file   a file of ids, read in place
//! │   └── header      its header, checked
//! └── writer       writes a token file
//! samples      the order of samples
//! ├── source       encodes records on all cores
//! ├── in_memory    all samples in memory
//! ├── stream       reads samples on demand, with a windowed shuffle
//! ├── order        shuffles, with a permutation that is computed, not stored
//! ├── grouped_by_length  groups samples of similar length
//! ├── mixed        mixes corpora by weight
//! ├── packs        packs whole samples into rows
//! └── windows      cuts one long text into windows
//! batch        the two traits: one micro-batch, and a stream of them; what a loss asks another model
//! token_batch  rows of ids with their labels
//! padding      pads rows of different lengths
//! collator     the trait that turns records into samples and samples into batches
//! batcher      makes batches with a collator
//! records      named values, and what reads them, one by one
//! ├── malformed      stops at malformed records, or skips and counts them
//! └── fingerprinted  fingerprints records while they are read
//! delivery
//! ├── cut          cuts an epoch into global batches, deals these to ranks
//! ├── requests     the next micro-batches, from a training position
//! └── prefetch     computes their batches ahead, in order, in threads
//! fingerprint  detects changed data
//! ordinary_file  opens files, but no devices and pipes
//! failure
//! ├── error        the errors, and where a record came from
//! │   ├── read           of files and their records
//! │   ├── tokenizer      of tokenizers and their files
//! │   └── sample         of samples, their order and batches
//! └── panics       turns panics into errors
//! ```
//!
//! With the feature `text`:
//!
//! ```text
//! readers      formats of files
//! ├── format         the formats by name and by extension
//! ├── text           reads lines, paragraphs or documents
//! ├── jsonl          reads an object from each line
//! ├── delimited      CSV and TSV
//! ├── conll          words with labels
//! │   ├── conll_sentence  parses one sentence
//! │   └── tag_scheme      converts IOB1 and IOBES to IOB2
//! ├── parallel       two files, line by line
//! ├── parquet        columns of values, with the feature `parquet`
//! │   ├── footer        checks a file's footer, and reads the names of classes from it
//! │   ├── pages         checks each page
//! │   │   └── text_bytes   measures its texts
//! │   ├── thrift        parses the headers
//! │   └── values        converts values
//! ├── corpus         one text from all files, with a part held out for validation
//! ├── chunks         cuts a text file of any size into independently encoded pieces
//! ├── files          paths, folders and patterns
//! └── lines          reads a file line by line
//!     └── unpacked      opens it and unpacks gzip and zstd
//! tokenization converts text to ids and back
//! ├── characters      one token for each character, with a fast table
//! ├── bpe             byte-level BPE, trained on the text
//! ├── framed          special tokens around a text
//! ├── tokenizer_file  reads and validates any tokenizer.json
//! │   ├── tokenizer_check  rejects invalid settings
//! │   ├── tokenizer_config reads the files next to it, and warns of what is not followed
//! │   ├── chat_templates   the chat templates among them
//! │   ├── config_tokens    adds the tokens that they list
//! │   └── transformers_class  applies transformers' classes
//! ├── special_tokens  the roles of special tokens
//! ├── tokenizer_chat  the chat template of a tokenizer
//! ├── save            writes a folder that transformers opens
//! ├── encoder         encodes texts, words and pairs, on all cores
//! │   ├── encoding         the tokens of a text and their offsets
//! │   └── finish           cuts sequences and adds special tokens
//! ├── fast            the tokenizer with caches
//! │   ├── pipeline         runs the library's steps, and finds added tokens
//! │   ├── plain_words      finds words that only the model processes
//! │   ├── chunks           cuts a text without changing its tokens
//! │   └── word_cache       caches words, so each is encoded only once
//! ├── pieces          cuts a long text at newlines, encodes on all cores
//! └── written         the text of ids that a model wrote
//! chat         conversations as text
//! ├── conversation  messages, tools and documents, and records as conversations
//! ├── template      renders them, as transformers does
//! │   ├── environment  what a template can call
//! │   ├── generation   blocks that mark what the assistant wrote
//! │   └── python       values as Python writes them
//! └── answers       finds what the assistant wrote
//! keeping      samples as bytes, for a cache between runs
//! collators    turn records into samples and samples into batches, with one file for each task
//! whole_file   reads small files, and writes them atomically
//! strict_json  reads JSON files of limited size, rejects duplicate names
//! ```

mod batch;
mod batcher;
#[cfg(feature = "text")]
mod chat;
mod collator;
#[cfg(feature = "text")]
pub mod collators;
mod counted;
mod delivery;
mod error;
mod fingerprint;
#[cfg(feature = "text")]
mod keeping;
mod ordinary_file;
mod padding;
mod panics;
#[cfg(feature = "text")]
mod readers;
mod records;
mod samples;
#[cfg(feature = "text")]
mod strict_json;
#[cfg(test)]
mod testing;
mod token_batch;
#[cfg(feature = "text")]
mod tokenization;
mod tokens;
#[cfg(feature = "text")]
mod whole_file;

pub use batch::{Batch, Batches, Compared, Reference};
pub use batcher::Batcher;
#[cfg(feature = "text")]
pub use chat::{ChatFormat, ChatTemplate, Conversation, Message, RenderedChat};
pub use collator::{Collator, Drawn};
pub use counted::{Counted, counted};
pub use delivery::{Amount, Cursor, Cut, Prefetch, Request, Requests};
#[cfg(feature = "text")]
pub use error::ChatError;
pub use error::{DataError, ReadError, RecordPlace, SampleError, TokenizerError};
pub use fingerprint::Fingerprint;
#[cfg(feature = "text")]
pub use keeping::Keeping;
pub use padding::{PadTo, Padding, Side};
#[cfg(feature = "parquet")]
pub use readers::ParquetReader;
#[cfg(feature = "text")]
pub use readers::{
    ConllReader, Corpus, DelimitedReader, Files, Format, JsonlReader, ParallelReader, TagFault, TagScheme,
    Tags, TextChunks, TextReader, TextUnit,
};
pub use records::{Fingerprinted, Malformed, Reader, Record, Records, Skipped, Value};
pub use samples::{
    GroupedByLength, InMemory, Mixed, Packs, PartSamples, Permutation, Samples, Shuffled, Source, Stream,
    Until, WholeRecords, Windows,
};
pub use token_batch::{IGNORE, TokenBatch};
#[cfg(feature = "text")]
pub use tokenization::{
    Encoder, Encoding, ForModel, Input, SpecialNames, SpecialTokens, Surround, Tokenizer, TokenizerWarning,
    Truncated, Truncation,
};
pub use tokens::{TokenFile, TokenSequence, TokenWriter};
#[cfg(feature = "text")]
pub use whole_file::hold_writes;
