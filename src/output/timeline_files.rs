//! The timelines of a run in its output folder: `timeline-STEP.json` for each recorded step.

use std::sync::Arc;

use super::Output;
use crate::FailedWrites;
use crate::files::writes::Writes;
use crate::observe::observer::Observer;
use crate::observe::timeline::{StepTimeline, file_name};

/// Writes the timelines. Keeps those that cannot be written, and tries again later.
pub(crate) struct TimelineFiles {
    output: Arc<Output>,
    writes: Writes,
    /// The names and texts that are still to be written.
    unwritten: Vec<(String, String)>,
}

impl TimelineFiles {
    /// Writes into this output. With `tells`, failed writes are reported on standard error.
    pub fn new(output: Arc<Output>, tells: bool) -> Self {
        Self { output, writes: Writes::of("timelines", tells), unwritten: Vec::new() }
    }
}

impl Observer for TimelineFiles {
    fn timeline(&mut self, timeline: &StepTimeline) {
        self.unwritten.push((file_name(timeline.step), timeline.to_chrome()));
        self.flush();
    }

    fn flush(&mut self) {
        while let Some((name, text)) = self.unwritten.first() {
            let attempt = self.output.save_text(name, text);
            let failed = attempt.is_err();
            self.writes.note(attempt);
            if failed {
                return;
            }
            self.unwritten.remove(0);
        }
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        self.writes.failed().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_timeline_that_cannot_be_written_is_written_with_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let output = Arc::new(Output::claim(&folder.path().join("run")).unwrap());
        let in_the_way = output.current().join(file_name(1));
        fs::create_dir_all(in_the_way.join("folder")).unwrap();
        let mut files = TimelineFiles::new(output.clone(), false);
        files.timeline(&StepTimeline { step: 1, ..StepTimeline::default() });
        assert!(files.failed_writes()[0].error.is_some());
        fs::remove_dir_all(&in_the_way).unwrap();
        files.timeline(&StepTimeline { step: 2, ..StepTimeline::default() });
        assert_eq!(files.failed_writes()[0].error, None);
        for step in [1, 2] {
            let text = fs::read_to_string(output.current().join(file_name(step))).unwrap();
            assert_eq!(StepTimeline::parse(&text).unwrap().step, step);
        }
    }
}
