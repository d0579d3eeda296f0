#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trainer_state::check(bytes));

#[path = "../../cli/tests/fuzzed/trainer_state.rs"]
mod trainer_state;
