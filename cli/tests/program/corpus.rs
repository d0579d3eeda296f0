//! Replays the fuzzing corpora of run files and of the trainer's state, with each text also partly changed.

#[path = "../fuzzed/run_file.rs"]
mod run_file;
#[path = "../fuzzed/trainer_state.rs"]
mod trainer_state;

use std::fs;
use std::path::Path;

/// Checks each file of a corpus whole, cut short, and with bytes replaced or repeated.
fn replay(target: &str, check: impl Fn(&[u8])) {
    let folder = Path::new("../fuzz/corpus").join(target);
    let mut seen = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        check(&bytes);
        for place in (0..bytes.len()).step_by(7) {
            check(&bytes[..place]);
            for other in [b'0', b'-', b'(', b')', b'}', b'"', 0xff] {
                let mut changed = bytes.clone();
                changed[place] = other;
                check(&changed);
            }
            let repeated = [&bytes[..place], &bytes[place / 2..]].concat();
            check(&repeated);
        }
        seen += 1;
    }
    assert!(seen >= 4, "{}: {seen} files", folder.display());
}

#[test]
fn of_run_files() {
    replay("run_file", run_file::check);
}

#[test]
fn of_trainer_states() {
    replay("trainer_state", trainer_state::check);
}
