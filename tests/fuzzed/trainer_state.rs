//! What must hold of any text that is read as `trainer.ron`.

use firebrick::TrainerState;

/// It is refused with a reason, or read; and what is read is written so that it is read again as the same.
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
