//! What a run shows and records: lines, the dashboard, logs and the report.
//!
//! ```text
//! observer.rs      Observer: follows a run from a program
//! observers.rs     all that follow a run: its log, the tally for its report, and the observers of the program
//! numbers.rs       the numbers of a step, of an evaluation and of a save
//! readings.rs      these numbers by the names that people and trackers see, and meters of them over a round
//! dashboard.rs     shows a run on burn-train's dashboard
//! terminal.rs      where a run is shown, and the terminal while the dashboard has it
//! lines.rs         shows a run as plain lines, with the speed and the time left
//! plain_text.rs    text that a terminal shows and does not obey
//! log/             metrics.jsonl: one line for each step
//! timeline/        what each rank did in a step, and when
//! tensorboard/     event files for TensorBoard
//! progress.rs      how far a run is, as a checkpoint holds it
//! report.rs        the result of a run
//! rank_report.rs   the ranks' part of the report
//! utilization.rs   the share of the devices' peak that the run uses
//! ```

#[cfg(feature = "tui")]
pub(crate) mod dashboard;
pub mod lines;
pub mod log;
pub mod numbers;
pub mod observer;
pub(crate) mod observers;
pub mod plain_text;
pub(crate) mod progress;
pub mod rank_report;
pub mod readings;
pub mod report;
pub mod tensorboard;
pub mod terminal;
pub mod timeline;
pub(crate) mod utilization;
