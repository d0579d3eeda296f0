//! The property that every text must have when it is read as `trainer.json`, or as the `trainer.ron` of an older version.

use firebrick::{ResumeError, TrainerState};

/// The text is refused with a reason, or it is read, and what is read survives writing and reading again.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    read("trainer.json", TrainerState::parse(text));
    read("trainer.ron", TrainerState::parse_ron(text));
}

fn read(file: &str, state: Result<TrainerState, ResumeError>) {
    match state {
        Ok(state) => {
            let written = state.to_json().unwrap();
            assert_eq!(TrainerState::parse(&written).unwrap().to_json().unwrap(), written);
        }
        Err(error) => assert!(error.to_string().starts_with(&format!("{file}: ")), "{error}"),
    }
}
