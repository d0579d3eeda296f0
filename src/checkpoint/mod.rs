//! Saving a run so that it can be resumed: what a checkpoint contains, when it is saved, and how a run continues from
//! it.
//!
//! The crate [`firebrick_checkpoints`] implements the files: it writes each checkpoint whole or not at all, and
//! checks it when reading.
//!
//! ```text
//! policy.rs           Checkpoints: when a run saves, and which checkpoints it keeps
//! layout.rs           the tensors of a master by name, and the part that a rank writes, as pieces of files
//! snapshot.rs         a copy of a run's state at a step boundary
//! optimizer_state.rs  the optimizer's state by path, and back
//! state_size.rs       the size of the optimizer's state
//! on_disk.rs          the optimizer's state on a disk, between updates and saves, and updates in parts
//! trainer_state.rs    trainer.json: everything else that a run depends on
//! settings.rs         the settings that a resumed run is compared by, and how they differ
//! saver.rs            saves in parallel with training, coordinated among the ranks
//! best.rs             the best weights, kept until a resume needs them
//! resume.rs           Resume: which checkpoint a run continues from, opened for all ranks of a process
//! load.rs             saved tensors into the master of any number of ranks
//! ```

pub mod best;
mod layout;
mod load;
mod on_disk;
mod optimizer_state;
mod policy;
mod resume;
mod saver;
mod settings;
mod snapshot;
mod state_size;
mod trainer_state;

pub(crate) use layout::{Layout, ParameterPlace};
pub(crate) use load::{Waiting, load};
pub(crate) use on_disk::{OnDisk, Part, Published, split_in};
pub(crate) use optimizer_state::{load_onto_disk, load_optimizer};
pub use policy::Checkpoints;
pub use resume::{Compared, FOLDER, Resume, RunText};
pub(crate) use resume::{Resumed, Shared, broadcast_scalar};
pub(crate) use saver::{Ended, Saver};
pub(crate) use settings::{RecordedSchedule, Settings};
pub(crate) use snapshot::{Snapshot, StateAt};
pub(crate) use state_size::StateSize;
pub use trainer_state::TrainerState;
pub(crate) use trainer_state::marks;
