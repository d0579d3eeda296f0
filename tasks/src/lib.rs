//! The tasks that language models learn: what turns files into batches, and what a record asks a trained model.
//!
//! A [`Dataset`] is a task on data. Its batches train any model of the task:
//!
//! ```no_run
//! use firebrick_datasets::collators::LabeledBatch;
//! use firebrick_tasks::{DataConfig, Dataset, TokenClassificationTask, TokenizerConfig};
//!
//! let data = DataConfig::new("train.conll", TokenizerConfig::File("tokenizer.json".into()));
//! let loaded = Dataset::new(TokenClassificationTask::default(), data, 16).load(|doing| eprintln!("{doing}"))?;
//! let batches = loaded.data.batches::<LabeledBatch>();
//! # Ok::<(), firebrick_tasks::LoadError>(())
//! ```
//!
//! [`Task`] has an example of a task of your own. `tasks/examples/token_classification.rs` fine-tunes a model.
//!
//! # The crate
//!
//! ```text
//! dataset.rs     a task on data
//! task/          the tasks, one per file, and chat templates
//! load/          reads and tokenizes data, and cuts it into batches
//! data_config.rs where data is, and how it is read
//! paths.rs       paths of data
//! check.rs       checks the settings of a task and of its data
//! problem.rs     the first invalid setting
//! settled.rs     what an existing model or run settles: ids of labels, the decoder's start, the tokenizer
//! tokenize.rs    writes a corpus as a file of token ids
//! token_cache/   tokens and vocabularies that runs keep for later runs
//! preview/       the first batches, readable
//! attended.rs    long work with progress and interruption
//! progress.rs    says how far long work is
//! error.rs       what can go wrong
//! ```

mod attended;
mod check;
mod data_config;
mod dataset;
mod error;
mod load;
mod paths;
mod preview;
pub mod problem;
mod progress;
mod settled;
mod task;
mod token_cache;
mod tokenize;

pub use attended::attended;
pub use data_config::{Corpus, DataConfig, TokenizerConfig};
pub use dataset::Dataset;
pub use error::LoadError;
pub use load::{Loaded, Loading, TaskData, tell_skipped};
pub use paths::Paths;
pub use preview::{Cell, Grid, Legible, Look, Names, Numbers, Preview, Row, TokenKind};
pub use progress::{progress, progress_of};
pub use settled::{Classifier, Settled};
pub use task::{
    Asks, CausalLmTask, ChatConfig, DpoTask, Examples, LabelSettings, MaskedLmTask, PreferenceChat, Rows,
    STANDARD_INPUT, Seq2SeqTask, SequenceClassificationTask, Suggestion, Task, TaskConfig, Tasks,
    TemplateConfig, TokenClassificationTask, Writing, chat_prompt, entity_scheme, record_json,
};
pub use token_cache::{KeptTokens, TokenCache, TokenCacheError};
pub use tokenize::Tokenized;
