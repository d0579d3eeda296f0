//! The property that every text must have when it is read as a run file.

use firebrick_cli::{DataRun, Run};

/// The text is refused with a reason, or it is read, and what is read survives writing and reading again.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let none: [&str; 0] = [];
    match Run::parse("fuzzed.ron", text, &none) {
        Ok(run) => {
            let written = run.to_ron();
            assert_eq!(Run::parse("written.ron", &written, &none).unwrap().to_ron(), written);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = DataRun::parse("fuzzed.ron", text, &none) {
        assert!(!error.to_string().is_empty());
    }
}
