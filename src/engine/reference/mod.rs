//! Asks the reference model of a loss, before the first update.
//!
//! A loss that compares the model with the one that training starts from needs few numbers of that model for each sample.
//! They are computed by the model itself before it changes, with the strategies of the run and on all of its ranks, and
//! kept in the host's memory. So no second model is held, and later epochs find them.
//!
//! ```text
//! answers.rs   the numbers of each sample, and their file
//! ask.rs       asks a model
//! stream.rs    a stream whose batches have their answers
//! ```

mod answers;
mod ask;
mod stream;

pub use answers::{ANSWERS, Answers};
pub(crate) use ask::{Asked, ask};
