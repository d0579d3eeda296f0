//! Turns text into batches of token ids.
//!
//! This crate is the data side of Firebrick. If you know the collators of `transformers`, you know most of it. A
//! [`Reader`] reads [`Record`]s from files, a [`Collator`] turns records into samples and samples into batches, and a
//! [`Samples`] stream decides which sample comes at which position. That depends only on the data, the seed and the
//! epoch: not on the number of ranks or worker threads, the size of a micro-batch or interruptions. Two numbers, the
//! [`Cursor`], are therefore enough to resume training.
//!
//! ```
//! use std::sync::Arc;
//! use firebrick_datasets::{
//!     Amount, Batch, Batcher, CausalLm, Cursor, Cut, Encoder, JsonlReader, Prefetch, Requests, Source,
//!     Tokenizer,
//! };
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
//! // A step has two samples, in micro-batches of one; two threads collate ahead.
//! let batches = Arc::new(Batcher::new(samples, task));
//! let cut = Cut::new(Amount::Samples(2), Amount::Samples(1))?;
//! let requests = Requests::new(batches.clone(), Cursor::default(), cut);
//! for delivered in Prefetch::new(batches, requests, 2, 4).take(2) {
//!     let (_request, batch) = delivered?;
//!     assert_eq!(batch.samples(), 1);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The files
//!
//! ```text
//! text
//! ├── readers      reads records from files, one by one
//! │   ├── record         named values, and where they came from
//! │   ├── format         the formats by name and by extension
//! │   ├── text           reads lines, paragraphs or documents
//! │   ├── jsonl          reads an object from each line
//! │   │   └── json          parses one object
//! │   ├── delimited      CSV and TSV
//! │   │   └── row_lines     feeds lines to the parser, so it knows its position
//! │   ├── conll          words with labels
//! │   │   ├── conll_sentence  parses one sentence
//! │   │   └── tag_scheme      converts IOB1 and IOBES to IOB2
//! │   ├── parallel       two files, line by line
//! │   ├── parquet        columns of values
//! │   │   ├── footer        checks a file's footer
//! │   │   ├── pages         checks each page
//! │   │   │   ├── levels       counts the values of its lists
//! │   │   │   └── deltas       counts its lengths
//! │   │   ├── thrift        parses the headers
//! │   │   └── values        converts values
//! │   ├── malformed      stops at malformed records, or skips and counts them
//! │   ├── corpus         one text from all files, with a part held out for validation
//! │   ├── chunks         cuts a text file of any size into independently encoded pieces
//! │   ├── files          paths, folders and patterns
//! │   │   └── folder        finds the documents in a folder
//! │   └── lines          reads a file line by line
//! │       └── unpacked      opens it and unpacks gzip and zstd
//! └── tokenizer    converts text to ids and back
//!     ├── characters      one token for each character, with a fast table
//!     ├── bpe             byte-level BPE, trained on the text
//!     ├── framed          adds special tokens to a vocabulary without any
//!     ├── tokenizer_file  reads and validates any tokenizer.json
//!     │   ├── json             parses JSON, rejects repeated keys
//!     │   ├── tokenizer_check  rejects invalid settings
//!     │   ├── tokenizer_config reads the files next to it
//!     │   ├── config_tokens    adds the tokens that they list
//!     │   ├── transformers_class  applies transformers' classes
//!     │   │   ├── known_classes  what each class does
//!     │   │   └── post_processor what is added around a text
//!     │   └── warning          what is not followed
//!     ├── special_tokens  the roles of special tokens
//!     ├── save            writes a folder that transformers opens
//!     ├── encoder         encodes texts, words and pairs, on all cores
//!     │   ├── encoding         the tokens of a text and their offsets
//!     │   └── finish           cuts sequences and adds special tokens
//!     ├── fast            the tokenizer with caches
//!     │   ├── pipeline         runs the library's steps
//!     │   ├── plain_words      finds words that only the model processes
//!     │   ├── chunks           cuts a text without changing its tokens
//!     │   ├── added_tokens     finds added tokens in a text
//!     │   └── word_cache       caches words, so each is encoded only once
//!     └── pieces          cuts a long text at newlines, encodes on all cores
//! tokens       long sequences of ids
//! ├── token_file   a file of ids, read in place
//! │   ├── header      its header, checked
//! │   └── positioned  a file with random access
//! └── writer       writes a token file
//! samples      the order of samples
//! ├── source       encodes records on all cores
//! ├── in_memory    all samples in memory
//! ├── stream       reads samples on demand, with a windowed shuffle
//! ├── shuffled     shuffles, with a different order in each epoch
//! │   └── order       a permutation that is computed, not stored
//! ├── grouped_by_length  groups samples of similar length
//! ├── mixed        mixes corpora by weight
//! ├── packs        packs whole samples into rows
//! └── windows      cuts one long text into windows
//! batch        the two traits: one micro-batch, and a stream of them
//! batcher      makes batches with a task's collator
//! collators                    turn records into samples and samples into batches
//! ├── causal_lm                next tokens of texts or completions
//! │   └── packing                 several samples in one row
//! ├── masked_lm                hidden tokens, or whole words
//! │   ├── masking                 how many tokens are hidden, and what replaces them
//! │   ├── words                   groups tokens into words
//! │   └── counter                 random numbers from seed, epoch, sample and position
//! ├── seq2seq                  one text into another
//! │   └── seq2seq_batch           padded sources and targets
//! ├── token_classification     a label for each word
//! ├── sequence_classification  a label for each text or pair
//! │   └── sequence_batch          inputs with a label for each row
//! ├── labels                   class names and ids
//! ├── padding                  pads rows of different lengths
//! │   ├── token_batch             rows of ids with their labels, for causal models
//! │   ├── inputs                  rows for an encoder: ids, mask, segments
//! │   └── labeled_batch           inputs with a label for each token
//! └── roles                    resolves the token of a role
//! delivery
//! ├── cursor       the training position
//! ├── cut          cuts an epoch into global batches, deals these to ranks
//! ├── requests     the next micro-batches
//! └── prefetch     computes their batches ahead, in order
//!     └── workers     the worker threads
//! fingerprint  detects changed data
//! whole_file   writes small files atomically
//! failure
//! ├── error        the errors
//! └── panics       turns panics into errors
//! ```

mod batch;
mod batcher;
mod collators;
mod delivery;
mod error;
mod fingerprint;
mod panics;
mod readers;
mod samples;
mod tokenization;
mod tokens;
mod whole_file;

pub use batch::{Batch, Batches};
pub use batcher::Batcher;
pub use collators::{
    CausalLm, CausalSample, ClassifiedTokens, Collator, Drawn, IGNORE, Inputs, Label, LabeledBatch,
    LabeledTokens, Labels, MaskableTokens, MaskedLm, Masking, Pack, Packing, PadTo, Padding, Seq2Seq,
    Seq2SeqBatch, Seq2SeqSample, SequenceBatch, SequenceClassification, Subwords, Target, TokenBatch,
    TokenClassification, Tokens,
};
pub use delivery::{Amount, Cursor, Cut, Prefetch, Request, Requests};
pub use error::DataError;
pub use fingerprint::{Fingerprint, Fingerprinted};
pub use readers::{
    ConllReader, Corpus, DelimitedReader, Files, Format, JsonlReader, Malformed, ParallelReader,
    ParquetReader, Place, Reader, Record, Records, Skipped, TagFault, TagScheme, Tags, TextChunks,
    TextReader, TextUnit, Value,
};
pub use samples::{
    GroupedByLength, InMemory, Mixed, Packs, PartSamples, Permutation, Samples, Shuffled, Source, Stream,
    Until, Windows,
};
pub use tokenization::{
    Encoder, Encoding, ForModel, Input, Side, SpecialNames, SpecialTokens, Tokenizer, TokenizerWarning,
    Truncation,
};
pub use tokens::{TokenFile, TokenSequence, TokenWriter};
