//! What a run shows and records: lines, the dashboard, logs and the report.
//!
//! ```text
//! observer.rs          Observer: follows a run from a program
//! observers.rs         all that follow a run: its log, and the observers of the program
//! numbers.rs           the numbers of a step, of an evaluation and of a save
//! readings.rs          the numbers of a step by the names that people see
//! meters.rs            readings over a round: the last, and the mean
//! show.rs              where a run is shown
//! dashboard.rs         on burn-train's dashboard
//! terminal.rs          the terminal while the dashboard has it
//! lines.rs             as plain lines
//! plain_text.rs        text that a terminal shows and does not obey
//! pace.rs              the speed, and the time left
//! duration.rs          durations for people
//! first_step.rs        what a GPU does before the first step
//! log/                 metrics.jsonl: one line for each step
//! log_line.rs          one line of it, written and read
//! timeline/            what each rank did in a step, and when
//! tensorboard/         event files for TensorBoard
//! metric_files.rs      burn-train's metric files
//! report.rs            the result of a run
//! tally.rs             what it needs of all steps
//! utilization.rs       the share of the devices' peak that the run uses
//! rank_report.rs       the ranks' part of the report
//! progress.rs          how far a run is
//! scalars.rs           the numbers of a step by the names that trackers show
//! saved_evaluation.rs  an evaluation in a checkpoint
//! ```

#[cfg(feature = "tui")]
pub(crate) mod dashboard;
pub mod duration;
pub(crate) mod first_step;
pub mod lines;
pub mod log;
pub mod log_line;
pub(crate) mod meters;
pub(crate) mod metric_files;
pub mod numbers;
pub mod observer;
pub(crate) mod observers;
pub(crate) mod pace;
pub mod plain_text;
pub(crate) mod progress;
pub mod rank_report;
pub mod readings;
pub mod report;
mod saved_evaluation;
pub mod scalars;
pub mod show;
pub(crate) mod tally;
pub mod tensorboard;
pub mod terminal;
pub mod timeline;
pub(crate) mod utilization;
