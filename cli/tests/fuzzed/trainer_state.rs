//! The property that every text must have when it is read as `trainer.ron`.

use firebrick::TrainerState;

/// The text is refused with a reason, or it is read, and what is read survives writing and reading again.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match TrainerState::parse(text) {
        Ok(state) => {
            let written = state.to_ron().unwrap();
            assert_eq!(TrainerState::parse(&written).unwrap().to_ron().unwrap(), written);
        }
        Err(error) => assert!(error.to_string().starts_with("trainer.ron: "), "{error}"),
    }
}
