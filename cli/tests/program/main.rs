//! Tests of the program `firebrick`, as users run it.

mod amounts;
mod arguments;
mod bench_command;
mod cache_command;
mod chat;
mod checkpoint_command;
#[cfg(unix)]
mod closed_pipe;
mod command_line;
mod completions_command;
mod corpus;
mod data_command;
mod detail;
mod devices_command;
mod divergence;
mod dpo;
mod equal_runs;
mod escapes;
mod evaluate_samples;
mod events;
mod examples;
mod exit_codes;
mod folders;
mod generate_lines;
mod global_batches;
mod hints;
#[cfg(any(feature = "hub", feature = "mlflow"))]
mod http_server;
#[cfg(feature = "hub")]
mod hub;
#[cfg(feature = "hub")]
mod hub_faults;
#[cfg(feature = "hub")]
mod hub_push;
mod import_command;
mod init_command;
mod interrupted;
mod kills;
mod label_numbers;
mod measures;
#[cfg(feature = "mlflow")]
mod mlflow;
mod new_command;
mod overrides;
mod own_model;
mod own_program;
mod own_recipes;
mod own_schedule;
mod own_task;
mod plan_command;
mod predict_lines;
mod ranks_command;
#[cfg(target_os = "linux")] // It reads `/proc`.
mod read_weights;
mod record_scores;
mod resume_command;
mod resumed_data;
mod resumed_records;
mod runs_command;
mod schema_command;
mod seq2seq;
mod small_run;
mod tasks;
#[cfg(target_os = "linux")]
mod threads;
mod token_cache;
mod tokenizer_folders;
mod truncated;
mod unfinished;
mod vocabularies;
mod whole_files;
