//! Saving a run so that it can be resumed: what a checkpoint contains, when it is saved, and how a run continues from
//! it.
//!
//! The crate [`firebrick_checkpoints`] implements the files: it writes each checkpoint whole or not at all, and
//! checks it when reading.
//!
//! ```text
//! best.rs             second names of the best weights, kept until a resume needs them
//! best_file.rs        writes the best weights beside the training
//! policy.rs           Checkpoints: when a run saves, and which checkpoints it keeps
//! layout.rs           the tensors of a master by name, and the part that a rank writes
//! snapshot.rs         a copy of a run's state at a step boundary
//! pieces.rs           a rank's tensors as pieces of files
//! optimizer_state.rs  the optimizer's state by path, and back
//! on_disk.rs          the optimizer's state on a disk, between updates and saves
//! part.rs             the gradients of some parameters: an update in parts
//! trainer_state.rs    trainer.json: everything else that a run depends on
//! saver.rs            saves in parallel with training, coordinated among the ranks
//! saves.rs            the training loop's side of saving, and reports
//! resume.rs           Resume: which checkpoint a run continues from
//! resumed.rs          that checkpoint, opened for all ranks of a process
//! settings.rs         the settings that a resumed run is compared by
//! older_schedule.rs   the schedule in trainer.ron of older checkpoints
//! change.rs           settings that differ from those of the saved run
//! lender.rs           the optimizer's state, read and restored without a second copy
//! load.rs             saved tensors into the master of any number of ranks
//! dtype.rs            dtypes of tensors and of files
//! error.rs            errors of saving and resuming
//! ```

pub mod best;
pub(crate) mod best_file;
mod change;
mod dtype;
mod error;
mod layout;
mod lender;
mod load;
#[cfg(feature = "ron")]
mod older_schedule;
mod on_disk;
mod optimizer_state;
mod part;
mod pieces;
mod policy;
mod resume;
mod resumed;
mod saver;
#[cfg(test)]
mod saver_tests;
mod saves;
mod settings;
mod snapshot;
mod trainer_state;

pub use change::Change;
pub use error::ResumeError;
pub(crate) use layout::Layout;
pub(crate) use lender::StateSize;
pub(crate) use load::{Waiting, load};
pub(crate) use on_disk::{OnDisk, Published};
pub(crate) use optimizer_state::{load_onto_disk, load_optimizer};
pub(crate) use part::{Part, split_in};
pub use policy::Checkpoints;
pub use resume::FOLDER;
pub use resume::Resume;
pub use resumed::{Compared, RunText};
pub(crate) use resumed::{Resumed, Shared, broadcast_scalar};
pub(crate) use saver::Saver;
pub(crate) use saves::Saves;
pub(crate) use settings::Settings;
pub(crate) use snapshot::{Snapshot, StateAt};
pub use trainer_state::TrainerState;
