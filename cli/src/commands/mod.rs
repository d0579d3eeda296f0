//! The commands of the program, one per file.

pub(crate) mod cache;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod data;
pub(crate) mod decoding_args;
pub(crate) mod devices;
pub(crate) mod exit;
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod new;
pub(crate) mod page;
pub(crate) mod plan;
pub(crate) mod push;
pub(crate) mod run_args;
pub(crate) mod runs;
pub(crate) mod schema;
pub(crate) mod summary;
pub(crate) mod trained;
