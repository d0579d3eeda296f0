//! Shows a run on burn-train's full-screen dashboard.

use burn::train::Interrupter;
use burn::train::renderer::tui::TuiMetricsRendererWrapper;
use burn::train::renderer::{MetricState, MetricsRenderer};

use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::readings::{Metered, Meters};
use crate::observe::terminal::{BoundedSize, SafeErrors, let_ctrl_c_interrupt};

/// Drives a renderer of burn-train. Its epochs are the rounds of the run.
pub(crate) struct Dashboard {
    renderer: Box<dyn MetricsRenderer>,
    steps: Meters,
    evaluations: Meters,
    /// Updates made before this round.
    start: u64,
    is_evaluating: bool,
    /// Dropped after the renderer, which has the terminal.
    terminal: Option<(SafeErrors, BoundedSize)>,
}

impl Dashboard {
    /// Opens the dashboard of a run with this many rounds. `q` and then `s` stops it by the interrupter.
    pub fn open(interrupter: &Interrupter, label: &str, rounds: usize, meters: (Meters, Meters)) -> Self {
        let terminal = Some((SafeErrors::while_shown(), BoundedSize::while_shown()));
        let renderer = Box::new(TuiMetricsRendererWrapper::new(interrupter.clone(), None));
        let mut dashboard = Self::driving(renderer, label, rounds, meters);
        dashboard.terminal = terminal;
        dashboard
    }

    fn driving(
        mut renderer: Box<dyn MetricsRenderer>,
        label: &str,
        rounds: usize,
        (steps, evaluations): (Meters, Meters),
    ) -> Self {
        steps.definitions_with(&evaluations).into_iter().for_each(|metric| renderer.register_metric(metric));
        renderer.start(rounds, 1, None, Some(label));
        Self { renderer, steps, evaluations, start: 0, is_evaluating: false, terminal: None }
    }

    fn trained(&mut self, metered: Vec<Metered>) {
        metered.into_iter().for_each(|metered| self.renderer.update_train(state(metered)));
    }

    fn validated(&mut self, metered: Vec<Metered>) {
        metered.into_iter().for_each(|metered| self.renderer.update_valid(state(metered)));
    }
}

fn state((_, entry, value): Metered) -> MetricState {
    MetricState::Numeric(entry, value)
}

impl Observer for Dashboard {
    fn round_started(&mut self, round: &Round) {
        // A run that continues starts with a later round than the first.
        self.renderer.update_epoch(round.number - 1);
        self.renderer.start_split("train", round.updates as usize);
        self.start = round.start;
    }

    fn step(&mut self, numbers: &StepNumbers) {
        let_ctrl_c_interrupt();
        let metered = self.steps.add_step(numbers);
        self.trained(metered);
        self.renderer.update_split((numbers.step - self.start) as usize);
        self.renderer.log_event_training("Iteration".into());
    }

    fn round_trained(&mut self) {
        let metered = self.steps.finish();
        self.trained(metered);
        self.renderer.end_split();
    }

    fn evaluating(&mut self, progress: &EvaluationProgress) {
        if !self.is_evaluating {
            self.renderer.start_split("valid", progress.samples);
            self.is_evaluating = true;
        }
        let metered = self.evaluations.add_batch(progress);
        self.validated(metered);
        self.renderer.update_split(progress.done);
        self.renderer.log_event_training("Iteration".into());
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        let scores = self.evaluations.add_scores(numbers);
        self.validated(scores);
        let metered = self.evaluations.finish();
        self.validated(metered);
        self.renderer.end_split();
        self.is_evaluating = false;
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.renderer.end();
            // Leaves the screen once the renderer is dropped.
            let _ = self.renderer.on_train_end(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use burn::train::LearnerSummary;
    use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
    use burn::train::metric::MetricDefinition;
    use burn::train::renderer::{EvaluationName, MetricsRendererEvaluation, MetricsRendererTraining};

    use super::*;
    use crate::Score;
    use crate::observe::utilization::Devices;

    /// Records what it is given.
    struct Recorded(Arc<Mutex<Vec<String>>>);

    impl Recorded {
        fn note(&self, event: impl Into<String>) {
            self.0.lock().unwrap().push(event.into());
        }

        fn metric(&self, split: &str, state: MetricState) {
            let MetricState::Numeric(entry, value) = state else { panic!() };
            let value = value.map(|value| value.serialize()).unwrap_or_default();
            self.note(format!("{split} {} | {value}", entry.serialized_entry.formatted));
        }
    }

    impl MetricsRendererTraining for Recorded {
        fn update_train(&mut self, state: MetricState) {
            self.metric("train", state);
        }

        fn update_valid(&mut self, state: MetricState) {
            self.metric("valid", state);
        }

        fn on_train_end(
            &mut self,
            summary: Option<LearnerSummary>,
        ) -> Result<(), Box<dyn std::error::Error>> {
            self.note(format!("trained, summary: {}", summary.is_some()));
            Ok(())
        }
    }

    impl TrainingProgressLogger for Recorded {
        fn start(&mut self, epochs: usize, first: usize, _: Option<usize>, label: Option<&str>) {
            self.note(format!("start {label:?} {first} of {epochs}"));
        }

        fn update_epoch(&mut self, epoch: usize) {
            self.note(format!("after epoch {epoch}"));
        }

        fn start_split(&mut self, split: &str, items: usize) {
            self.note(format!("{split} of {items}"));
        }

        fn update_split(&mut self, done: usize) {
            self.note(format!("done {done}"));
        }

        fn end_split(&mut self) {
            self.note("end of split");
        }

        fn end(&mut self) {
            self.note("end");
        }

        fn log_event_training(&mut self, _: String) {}
    }

    impl MetricsRendererEvaluation for Recorded {
        fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
    }

    impl EvaluationProgressLogger for Recorded {
        fn start_global_progress(&mut self, _: usize) {}
        fn start_test(&mut self, _: &str, _: usize) {}
        fn update_test_progress(&mut self, _: usize) {}
        fn end_test(&mut self) {}
        fn end_global_progress(&mut self) {}
        fn log_event_evaluation(&mut self, _: String) {}
    }

    impl MetricsRenderer for Recorded {
        fn manual_close(&mut self) {}

        fn register_metric(&mut self, metric: MetricDefinition) {
            self.note(format!("metric {}", metric.name));
        }
    }

    /// The events that burn-train's own loop would send, but that a run which continues counts its rounds on.
    #[test]
    fn the_renderer_sees_a_run_as_burn_train_would_show_it() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let meters = (
            Meters::of_steps(false, false, &Devices::default()),
            Meters::of_evaluations(&[Score::higher("f1", 0.0)]),
        );
        let mut dashboard = Dashboard::driving(Box::new(Recorded(seen.clone())), "run", 5, meters);
        dashboard.round_started(&Round { number: 3, start: 20, updates: 10 });
        for (step, loss) in [(21, 3.0), (22, 1.0)] {
            dashboard.step(&StepNumbers { step, loss, items: 1, ..StepNumbers::default() });
        }
        dashboard.round_trained();
        dashboard.evaluating(&EvaluationProgress { done: 4, samples: 8, loss: Some(2.0), items: 4 });
        dashboard.evaluating(&EvaluationProgress { done: 8, samples: 8, loss: Some(4.0), items: 4 });
        let scores = [("f1".to_string(), 0.5)].into();
        dashboard.evaluated(&EvaluationNumbers { step: 22, loss: 3.0, scores, ..Default::default() });
        drop(dashboard);
        let seen = seen.lock().unwrap();
        // Of the readings of a step only the loss, which is not 0.
        let is_other = |event: &str| event.starts_with("train 0");
        let shown: Vec<_> = seen.iter().map(String::as_str).filter(|event| !is_other(event)).collect();
        assert_eq!(
            shown,
            [
                "metric Loss",
                "metric Learning rate",
                "metric Gradient norm",
                "metric Tokens per second",
                "metric Skipped steps",
                "metric Loss",
                "metric f1",
                "metric Memory",
                "metric Activations",
                "metric Peak memory",
                "metric Parameters",
                "metric Gradients",
                "metric Optimizer",
                "start Some(\"run\") 1 of 5",
                "after epoch 2",
                "train of 10",
                "train 3.0000 (mean 3.0000) | 3,1",
                "done 1",
                "train 1.0000 (mean 2.0000) | 1,1",
                "done 2",
                "train 1.0000 (mean 2.0000) | 2,final",
                "end of split",
                "valid of 8",
                "valid 2.0000 (mean 2.0000) | 2,4",
                "valid epoch N/A - batch N/A | ",
                "done 4",
                "valid 4.0000 (mean 3.0000) | 4,4",
                "valid epoch N/A - batch N/A | ",
                "done 8",
                "valid 4.0000 (mean 3.0000) | 4,4",
                "valid 0.5000 | 0.5",
                "valid 4.0000 (mean 3.0000) | 3,final",
                "valid 0.5000 | 0.5,final",
                "end of split",
                "end",
                "trained, summary: false",
            ]
        );
    }
}
