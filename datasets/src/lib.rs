//! Text in, batches of token ids out.
//!
//! This crate is the data side of Firebrick. It reads text, turns it into token ids, cuts the ids
//! into windows, and delivers the windows as batches, in an order that depends on a seed and an
//! epoch and on nothing else: not on the number of threads, not on the size of a micro-batch.
//!
//! ```text
//! text
//! ├── corpus       reads a file or a folder, splits off a part for validation
//! │   └── folder      finds the documents
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
mod bpe;
mod characters;
mod corpus;
mod cursor;
mod error;
mod folder;
mod order;
mod panics;
mod pieces;
mod prefetch;
mod requests;
mod token_batch;
mod tokenizer;
mod tokenizer_file;
mod windows;
mod workers;

pub use batch::{Batch, Batches};
pub use corpus::Corpus;
pub use cursor::Cursor;
pub use error::DataError;
pub use order::Permutation;
pub use prefetch::Prefetch;
pub use requests::{Request, Requests};
pub use token_batch::{IGNORE, TokenBatch};
pub use tokenizer::Tokenizer;
pub use windows::Windows;
