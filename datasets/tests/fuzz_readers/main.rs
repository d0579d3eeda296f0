//! Every reader over damaged files and over bombs: no panic, nothing printed, an end, and memory that
//! the longest record bounds.
//!
//! The damaged files are made from the valid ones in `corpus` by cutting, flipping, repeating and
//! inserting. `PROPTEST_CASES` says how many are made for each reader. Bombs are made on purpose:
//! small files that become large.

mod bombs;
#[path = "../counting/mod.rs"]
mod counting;
mod damage;
mod reading;
mod records;
mod texts;
mod token_files;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;
