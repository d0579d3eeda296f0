//! Every reader on damaged files and on bombs: no panic, no output, an end, and memory limited by the maximum length of
//! a record.
//!
//! The damaged files are made from the valid ones in `corpus` by cutting, flipping, repeating and inserting.
//! `PROPTEST_CASES` sets their number for each reader. Bombs are made deliberately: small files that become large.

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
