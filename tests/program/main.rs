//! The program `firebrick` as its users meet it.

mod amounts;
mod command_line;
mod corpus;
mod data_command;
mod divergence;
mod examples;
mod exit_codes;
mod folders;
mod global_batches;
mod import_command;
mod plan_command;
mod ranks_command;
mod resume_command;
mod seq2seq;
mod tasks;
mod tokenizer_folders;
mod whole_files;
