//! What a run shows and records: events, lines, the dashboard, logs and the report.
//!
//! ```text
//! observer.rs          Observer: follows a run from a program
//! observers.rs         all that follow a run: its log, and the observers of the program
//! numbers.rs           the numbers of an evaluation and of a save
//! events.rs            what the training loop reports
//! inside_burn_train.rs  runs the loop inside burn-train, for its dashboard
//! dashboard.rs         where a run is shown
//! placeholder.rs       what burn-train asks for and Firebrick has no use for
//! readings.rs          the numbers of a step, by name
//! gauges.rs            registers them with the dashboard
//! lines.rs             the same as plain lines
//! log/                 metrics.jsonl: one line for each step
//! log_line.rs          one line of it, written and read
//! tensorboard/         event files for TensorBoard
//! metric_files.rs      burn-train's metric files
//! history.rs           what the report needs of all steps
//! report.rs            the result of a run
//! rank_report.rs       the ranks' part of the report
//! progress.rs          how far a run is
//! ```

pub mod dashboard;
pub(crate) mod events;
pub(crate) mod gauges;
pub(crate) mod history;
pub(crate) mod inside_burn_train;
pub mod lines;
pub mod log;
pub mod log_line;
pub(crate) mod metric_files;
pub mod numbers;
pub mod observer;
pub(crate) mod observers;
pub(crate) mod placeholder;
pub(crate) mod progress;
pub mod rank_report;
pub mod readings;
pub mod report;
pub mod tensorboard;
