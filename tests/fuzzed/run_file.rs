//! What must hold of any text that is read as a run file.

use firebrick::{DataRun, Run};

/// It is refused with a reason, or read; and what is read is written so that it is read again as the same.
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
