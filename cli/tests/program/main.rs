//! Tests of the program `firebrick`, as users run it.

mod amounts;
mod bench_command;
mod cache_command;
mod checkpoint_command;
mod command_line;
mod corpus;
mod data_command;
mod devices_command;
mod divergence;
mod events;
mod examples;
mod exit_codes;
mod folders;
mod global_batches;
mod import_command;
mod interrupted;
mod kills;
mod new_command;
mod own_model;
mod own_program;
mod own_recipes;
mod own_schedule;
mod own_task;
mod plan_command;
mod ranks_command;
#[cfg(target_os = "linux")] // It reads `/proc`.
mod read_weights;
mod resume_command;
mod resumed_data;
mod resumed_records;
mod seq2seq;
mod small_run;
mod tasks;
mod tokenizer_folders;
mod unfinished;
mod whole_files;
