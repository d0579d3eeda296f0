#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| safetensors::check(bytes));

#[path = "../../checkpoints/tests/fuzzed/safetensors.rs"]
mod safetensors;
