//! Text in, batches of token ids out.
//!
//! This crate is the data side of Firebrick, for those who know the collators of `transformers`. A
//! [`Reader`] gives [`Record`]s out of files, a [`Collator`] makes samples of records and batches of
//! samples, and a [`Samples`] stream says which sample comes where. What comes at a position depends on
//! the data, a seed and the epoch, and on nothing else: not on the number of ranks or worker threads,
//! not on the size of a micro-batch, not on interruptions. So the place where training stands is two
//! numbers, the [`Cursor`].
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
//! // What a record becomes: here, the answer counts and the question does not.
//! let tokenizer = Arc::new(Tokenizer::characters("0123456789+=")?);
//! let task = Arc::new(CausalLm::new(Encoder::new(tokenizer)).prompted("q", "a"));
//! // All samples in memory, in another order in each epoch.
//! let source = Source::new(JsonlReader::new(path), task.clone());
//! let samples = source.load(|_| ())?.shuffled(42);
//! // Two samples make a step, one at a time; two threads collate ahead.
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
//! │   ├── chunks         a text file of any size, in pieces that are encoded on their own
//! │   ├── files          paths, folders and patterns
//! │   │   └── folder        finds the documents
//! │   └── lines          a file line by line
//! │       └── unpacked      opens it, gzip, zstd or neither
//! └── tokenizer    text to ids and back
//!     ├── characters      one token for each character, with a fast table
//!     ├── bpe             byte-level BPE, trained on the text
//!     ├── framed          special tokens for a vocabulary that has none
//!     ├── tokenizer_file  any tokenizer.json, read with suspicion
//!     │   ├── json             strict about repeated keys
//!     │   ├── tokenizer_check  what such a file must not hold
//!     │   └── tokenizer_config the files beside it
//!     ├── special_tokens  which token has which role
//!     ├── encoder         encodes texts, words and pairs, on all cores
//!     │   ├── encoding         the tokens of a text, and where each came from
//!     │   └── finish           cuts sequences, puts special tokens around them
//!     ├── fast            the tokenizer with its memory
//!     │   ├── pipeline         the steps of the library, one after the other
//!     │   ├── plain_words      words that only the model has something to do with
//!     │   ├── chunks           where a text can be cut without changing its tokens
//!     │   ├── added_tokens     finds texts that spell one
//!     │   └── word_cache       what words became, so that each is encoded once
//!     └── pieces          cuts a long text at newlines, works on all cores
//! tokens       long sequences of ids
//! ├── token_file   a file of them, read in place
//! │   ├── header      its first bytes, checked
//! │   └── positioned  a file that is read at any place
//! └── writer       writes one
//! samples      which sample comes where
//! ├── source       records into samples, on all cores
//! ├── in_memory    all of them
//! ├── stream       read from files as they are needed, with a windowed shuffle
//! ├── shuffled     another order in each epoch
//! │   └── order       a permutation computed, not stored
//! ├── grouped_by_length  neighbours of about the same length
//! ├── mixed        several corpora by their weights
//! ├── packs        whole samples that share a row
//! └── windows      of one long text
//! batch        the two traits: one micro-batch, and a stream of them
//! batcher      batches of samples, by the collator of a task
//! collators                    what a task makes of records, and of samples
//! ├── causal_lm                next tokens, of texts or of completions
//! │   └── packing                 several samples in one row
//! ├── masked_lm                hidden tokens, or whole words
//! │   ├── masking                 how many are hidden, and by what
//! │   ├── words                   which tokens form a word
//! │   └── counter                 chance as a function of seed, epoch, sample and place
//! ├── seq2seq                  one text into another
//! │   └── seq2seq_batch           sources and targets, as tensors on demand
//! ├── token_classification     a label for each word
//! ├── sequence_classification  a label for each text or pair
//! │   └── sequence_batch          inputs with a label for each row
//! ├── labels                   names of classes, both ways
//! ├── padding                  rows of different lengths as a rectangle
//! │   ├── token_batch             rows of ids with their labels, for causal models
//! │   ├── inputs                  rows for an encoder: ids, mask, segments
//! │   └── labeled_batch           the same with a label for each token
//! └── roles                    which token plays a role
//! delivery
//! ├── cursor       where training stands
//! ├── cut          how an epoch is cut into global batches, and these are dealt to ranks
//! ├── requests     the micro-batches that come next
//! └── prefetch     their batches, in order
//!     └── workers     the threads that compute them ahead
//! fingerprint  whether data is what it was
//! whole_file   writes small files, whole or not at all
//! failure
//! ├── error        everything that can go wrong
//! └── panics       a panic as an error
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
    Encoder, Encoding, ForModel, Input, Side, SpecialNames, SpecialTokens, Tokenizer, Truncation,
};
pub use tokens::{TokenFile, TokenSequence, TokenWriter};
