#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| manifest::check(bytes));

#[path = "../../checkpoints/tests/fuzzed/manifest.rs"]
mod manifest;
