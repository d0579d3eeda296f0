//! Saving a run so that it can be resumed: what is saved of it, when, and how it continues.
//!
//! The files themselves, how they are written so that a checkpoint is there whole or not at all, and how they are
//! checked when they are read, are the crate [`firebrick_checkpoints`].
//!
//! ```text
//! policy.rs           Checkpoints: when a run saves itself, and what it keeps
//! layout.rs           the tensors of a master by name, and which part of them a rank writes
//! snapshot.rs         a run at a step boundary, copied
//! pieces.rs           tensors of a rank as pieces of files
//! optimizer_state.rs  the optimizer's state by path, and back
//! trainer_state.rs    trainer.ron: everything else that a run depends on
//! saver.rs            saves beside the training, and what the ranks tell one another about them
//! saves.rs            what the training loop asks for, and who hears what became of it
//! resume.rs           Resume: which checkpoint a run continues from
//! resumed.rs          that checkpoint, opened for all ranks of a process
//! change.rs           settings that are not what they were when the run was saved
//! lender.rs           the optimizer's state, in and out of it without a second copy
//! load.rs             saved tensors into the master of any number of ranks
//! dtype.rs            element types as tensors name them, and as files do
//! error.rs            why a run cannot be saved or resumed
//! ```

mod change;
mod dtype;
mod error;
mod layout;
mod lender;
mod load;
mod optimizer_state;
mod pieces;
mod policy;
mod resume;
mod resumed;
mod saver;
#[cfg(test)]
mod saver_tests;
mod saves;
mod snapshot;
mod trainer_state;

pub use change::Change;
pub use error::ResumeError;
pub(crate) use layout::Layout;
pub(crate) use lender::StateSize;
pub(crate) use load::load;
pub(crate) use optimizer_state::load_optimizer;
pub use policy::Checkpoints;
pub(crate) use resume::FOLDER;
pub use resume::Resume;
pub(crate) use resumed::{Compared, Resumed, RunText, Shared, broadcast_scalar};
pub(crate) use saver::Saver;
pub(crate) use saves::Saves;
pub(crate) use snapshot::Snapshot;
pub(crate) use trainer_state::Settings;
pub use trainer_state::TrainerState;
