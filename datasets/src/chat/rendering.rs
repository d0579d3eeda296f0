//! Runs a template within bounds of steps, bytes and time.
//!
//! Nearly all conversations need few steps, so the first try has few. What needs more runs again with many. Some steps,
//! such as comparing large lists, take a time that steps do not count, so both run in a thread that is waited for only so
//! long.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use std::{io, thread};

use minijinja::{Environment, Error, ErrorKind, Value};

use super::bounds;
use crate::panics::caught_silently;

/// The steps and bytes of a try. A step is an instruction, or 64 bytes.
struct Bounds {
    /// The most steps. The second try has one more for each byte of the conversation.
    steps: u64,
    /// The most bytes of a value and of the text.
    bytes: usize,
    /// Times this, the bytes of the conversation are allowed too.
    each: usize,
}

const FIRST: Bounds = Bounds { steps: 50_000, bytes: 1024 * 1024, each: 8 };
const SECOND: Bounds = Bounds { steps: 20_000_000, bytes: 4 * 1024 * 1024, each: 32 };

/// The longest time of both tries.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// The most renderings that may go on after their longest time. If malformed records are skipped, each record with such a
/// template would leave another one.
const MOST_LATE: usize = 8;

/// The renderings that go on after their longest time.
static LATE: AtomicUsize = AtomicUsize::new(0);

/// The steps of the first try, which an environment has.
pub(super) const STEPS: u64 = FIRST.steps;

/// A rendering of the template `name` of an environment of [`STEPS`]. `size` is the number of bytes of the conversation.
pub(super) struct Rendering {
    pub environment: Arc<Environment<'static>>,
    pub name: &'static str,
    pub values: Vec<(String, Value)>,
    pub size: usize,
}

impl Rendering {
    /// Renders within the `longest` time.
    pub fn within(self, longest: Duration) -> Result<String, Error> {
        if LATE.load(Ordering::Relaxed) >= MOST_LATE {
            return Err(failed(format!(
                "{MOST_LATE} renderings before it still go on after their longest time"
            )));
        }
        WORKER.with_borrow_mut(|worker| {
            let mut idle = match worker.take() {
                Some(idle) => idle,
                None => Worker::started()
                    .map_err(|error| failed(format!("the thread to render it cannot be started: {error}")))?,
            };
            let rendered = idle.render(self, longest);
            if !idle.is_lost {
                *worker = Some(idle);
            }
            rendered
        })
    }

    fn rendered(self) -> Result<String, Error> {
        let Self { environment, name, values, size } = self;
        match attempt(&environment, name, values.clone(), size, &FIRST) {
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                let mut environment = Environment::clone(&environment);
                environment.set_fuel(Some(SECOND.steps.saturating_add(size as u64)));
                attempt(&environment, name, values, size, &SECOND)
            }
            other => other,
        }
    }
}

thread_local! {
    /// The thread that renders for this one, once it has rendered. It ends with this one.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// A thread that renders for another one, which waits for it only so long: a thread cannot be interrupted.
struct Worker {
    jobs: Sender<Job>,
    results: Receiver<Result<String, Error>>,
    /// Whether it goes on after the longest time.
    is_lost: bool,
}

struct Job {
    rendering: Rendering,
    /// Set by the first of two: the end of the work, and the end of the time.
    is_over: Arc<AtomicBool>,
}

impl Worker {
    fn started() -> io::Result<Self> {
        let (jobs, to_do) = channel::<Job>();
        let (done, results) = channel();
        let work = move || {
            for Job { rendering, is_over } in to_do {
                let rendered = rendering.rendered();
                if is_over.swap(true, Ordering::AcqRel) {
                    LATE.fetch_sub(1, Ordering::Relaxed);
                }
                // Nobody listens after the longest time.
                if done.send(rendered).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("chat template".to_owned()).spawn(work)?;
        Ok(Self { jobs, results, is_lost: false })
    }

    fn render(&mut self, rendering: Rendering, longest: Duration) -> Result<String, Error> {
        let is_over = Arc::new(AtomicBool::new(false));
        // If the thread has ended, there is no result.
        let _ = self.jobs.send(Job { rendering, is_over: is_over.clone() });
        self.results.recv_timeout(longest).unwrap_or_else(|late| {
            self.is_lost = true;
            Err(match late {
                // One that is late goes on until it is out of steps, or the program ends.
                RecvTimeoutError::Timeout => {
                    LATE.fetch_add(1, Ordering::Relaxed);
                    if is_over.swap(true, Ordering::AcqRel) {
                        LATE.fetch_sub(1, Ordering::Relaxed);
                    }
                    failed(format!("it takes longer than {} s", longest.as_secs_f64()))
                }
                RecvTimeoutError::Disconnected => failed("the template engine fails".to_owned()),
            })
        })
    }
}

fn failed(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

fn attempt(
    environment: &Environment<'static>,
    name: &str,
    mut values: Vec<(String, Value)>,
    size: usize,
    bounds: &Bounds,
) -> Result<String, Error> {
    let most = bounds.bytes.saturating_add(size.saturating_mul(bounds.each));
    values.push((bounds::MOST_BYTES.to_owned(), Value::from(most)));
    // The engine panics on some templates, such as `loop.cycle()` without values.
    let text = caught_silently(|| environment.get_template(name)?.render(Value::from_pairs(values)));
    let text = text.map_err(|panic| {
        Error::new(ErrorKind::InvalidOperation, format!("the template engine fails: {panic}"))
    })??;
    match text.len() > most {
        true => Err(bounds::too_large(most)),
        false => Ok(text),
    }
}
