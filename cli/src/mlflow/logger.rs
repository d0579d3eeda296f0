//! An observer of a run, and the thread that sends what it sees.

use std::collections::VecDeque;
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use firebrick_datasets::counted;
use tracing::warn;

use super::Started;
use super::server::{Failure, LIMIT, MOST_METRICS, Metric, Server};
use firebrick::observe::readings::scalars;
use firebrick::{EvaluationNumbers, Observer, Report, StepNumbers};

/// The file in the output folder that keeps the id of the server's run.
const RUN_ID: &str = "mlflow_run.txt";

/// The time between two batches.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How long the end of a run waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(15);
/// The most numbers that wait for the server. The oldest give way.
const MOST_WAITING: usize = 200_000;

/// What a run hands to the thread.
enum Event {
    Metrics(Vec<Metric>),
    /// The run has ended, with this status.
    Ended(&'static str),
}

/// Logs a run. If it is dropped before the run has ended, the run has failed.
pub(super) struct Logger {
    events: Option<Sender<Event>>,
    thread: Option<JoinHandle<()>>,
}

impl Logger {
    /// Starts the thread, which connects.
    pub fn start(server: Server, experiment: String, name: String, started: Started) -> Self {
        let (events, received) = channel();
        let sending = Sending {
            server,
            experiment,
            name,
            started,
            run: None,
            is_described: false,
            waiting: VecDeque::new(),
            lost: 0,
        };
        let thread = thread::spawn(move || sending.send_all(&received));
        Self { events: Some(events), thread: Some(thread) }
    }

    fn send(&self, split: &str, step: u64, numbers: impl Iterator<Item = (impl AsRef<str>, f64)>) {
        let timestamp = now();
        let finite = numbers.filter(|(_, value)| value.is_finite());
        let metric = |(name, value): (_, f64)| Metric {
            key: format!("{split}/{}", AsRef::<str>::as_ref(&name)),
            value,
            timestamp,
            step,
        };
        let metrics = finite.map(metric).collect();
        if let Some(events) = &self.events {
            let _ = events.send(Event::Metrics(metrics));
        }
    }

    /// Ends the run, and waits a while for the server to have all of it.
    fn end(&mut self, status: &'static str) {
        if let Some(events) = self.events.take() {
            let _ = events.send(Event::Ended(status));
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Observer for Logger {
    fn step(&mut self, numbers: &StepNumbers) {
        self.send("train", numbers.step, scalars(numbers));
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        let scores = numbers.scores.iter().map(|(name, score)| (name.as_str(), *score));
        self.send("valid", numbers.step, std::iter::once(("loss", numbers.loss)).chain(scores));
    }

    fn ended(&mut self, report: &Report) {
        let best = report.best_valid_loss.map(|loss| ("valid_loss", loss));
        let scores = report.best_valid_scores.iter().map(|(name, score)| (name.as_str(), *score));
        self.send("best", report.best_step.unwrap_or(report.steps), best.into_iter().chain(scores));
        self.end(if report.interrupted { "KILLED" } else { "FINISHED" });
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        self.end("FAILED");
    }
}

/// The thread's side.
struct Sending {
    server: Server,
    experiment: String,
    name: String,
    started: Started,
    /// The id of the server's run, once there is one.
    run: Option<String>,
    /// Whether the run has its settings.
    is_described: bool,
    waiting: VecDeque<Metric>,
    /// The numbers that gave way.
    lost: usize,
}

impl Sending {
    fn send_all(mut self, events: &Receiver<Event>) {
        let (mut pause, mut next, mut was_told) = (PAUSE, Instant::now(), false);
        let mut ended: Option<(&'static str, Instant)> = None;
        loop {
            let wait = next.saturating_duration_since(Instant::now());
            match events.recv_timeout(wait) {
                Ok(Event::Metrics(metrics)) if ended.is_none() => {
                    self.add(metrics);
                    if Instant::now() < next {
                        continue;
                    }
                }
                Ok(Event::Ended(status)) => ended = Some((status, Instant::now() + PATIENCE)),
                // All is said.
                Err(RecvTimeoutError::Disconnected) => thread::sleep(wait),
                Ok(Event::Metrics(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
            self.server.answer_until(ended.map_or_else(|| Instant::now() + LIMIT, |(_, limit)| limit));
            let sent = self.send(ended.map(|(status, _)| status));
            match (sent, ended) {
                (Ok(()), Some(_)) => break,
                (Ok(()), None) => (pause, was_told) = (PAUSE, false),
                (Err(failure), ended) => {
                    // A server that never answered is not waited for.
                    let is_over = |limit| Instant::now() >= limit || self.run.is_none();
                    let is_late = ended.is_some_and(|(_, limit)| is_over(limit));
                    if is_late || !failure.may_pass {
                        let (address, reason) = (self.server.address(), failure.reason);
                        let lost = match &self.run {
                            // Of its numbers, some have still to come.
                            None => "the run".to_string(),
                            Some(_) if self.waiting.is_empty() => "the end of the run".to_string(),
                            Some(_) => counted(self.waiting.len(), "number").to_string(),
                        };
                        warn!("MLflow at {address}: {reason}; not logged there: {lost}");
                        if is_late || self.run.is_none() {
                            // Takes what else comes, and sends nothing.
                            return events.iter().for_each(drop);
                        }
                        self.waiting.clear();
                        if ended.is_some() {
                            break;
                        }
                    } else if !was_told {
                        let (address, reason) = (self.server.address(), failure.reason);
                        warn!(
                            "MLflow at {address} does not answer ({reason}); training goes on, and the numbers wait"
                        );
                        was_told = true;
                    }
                    pause = if ended.is_some() { PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
                }
            }
            next = Instant::now() + pause;
        }
        if self.lost > 0 {
            warn!(
                "MLflow at {} did not answer for a while; not logged there: {}",
                self.server.address(),
                counted(self.lost, "number")
            );
        }
    }

    fn add(&mut self, metrics: Vec<Metric>) {
        self.waiting.extend(metrics);
        let more = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..more);
        self.lost += more;
    }

    /// Sends everything that waits, and the end of the run.
    fn send(&mut self, status: Option<&str>) -> Result<(), Failure> {
        let run = match &self.run {
            Some(run) => run.clone(),
            None => {
                // MLflow refuses settings that have changed: a resumed run keeps those that it began with.
                let (run, is_new) = self.open()?;
                self.is_described = !is_new;
                self.run.insert(run).clone()
            }
        };
        if !self.is_described {
            match self.server.log_params(&run, self.started.settings.iter()) {
                Err(failure) if failure.may_pass => return Err(failure),
                Err(failure) => warn!("MLflow does not take the run's settings: {}", failure.reason),
                Ok(()) => {}
            }
            self.is_described = true;
            self.keep(&run);
        }
        while !self.waiting.is_empty() {
            let count = self.waiting.len().min(MOST_METRICS);
            let some: Vec<Metric> = self.waiting.range(..count).cloned().collect();
            self.server.log_metrics(&run, &some)?;
            self.waiting.drain(..count);
        }
        match status {
            Some(status) => self.server.update(&run, status, Some(now())),
            None => Ok(()),
        }
    }

    /// Goes on in the run that the output folder names, or creates one. Also returns whether it is new.
    fn open(&self) -> Result<(String, bool), Failure> {
        let Started { output, goes_on, .. } = &self.started;
        let known = fs::read_to_string(output.current().join(RUN_ID)).ok().filter(|_| *goes_on);
        if let Some(id) = known.map(|id| id.trim().to_string()) {
            match self.server.update(&id, "RUNNING", None) {
                Ok(()) => return Ok((id, false)),
                Err(failure) if failure.may_pass => return Err(failure),
                // The server has no such run: it is another one.
                Err(_) => {}
            }
        }
        let experiment = self.server.experiment(&self.experiment)?;
        Ok((self.server.create_run(&experiment, &self.name, now())?, true))
    }

    /// Keeps the id of a run that has its settings, so that a resumed run never goes on in one without them.
    fn keep(&self, run: &str) {
        if let Err(error) = self.started.output.save_text(RUN_ID, &format!("{run}\n")) {
            warn!("{RUN_ID} is not written ({error}): a resumed run will be another one for MLflow");
        }
    }
}

/// Milliseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
