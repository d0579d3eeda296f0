#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run_file::check(bytes));

#[path = "../../cli/tests/fuzzed/run_file.rs"]
mod run_file;
