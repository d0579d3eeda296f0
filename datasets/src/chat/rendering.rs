//! Runs a template within bounds of steps, bytes and time.
//!
//! Nearly all conversations need few steps, so the first try has few and runs at once. What needs more runs again with
//! many, in a thread of its own, since some steps, such as comparing large lists, take a time that steps do not count.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use minijinja::{Environment, Error, ErrorKind, Value};

use super::bounds;
use crate::silent_panics::caught_silently;

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

/// The longest time of the second try.
pub(super) const LONGEST: Duration = Duration::from_secs(10);

/// The most renderings that may go on after their longest time. If malformed records are skipped, each record with such a
/// template would leave another one.
const MOST_LATE: usize = 8;

/// The renderings that go on after their longest time.
static LATE: AtomicUsize = AtomicUsize::new(0);

/// The steps of the first try, which an environment has.
pub(super) const STEPS: u64 = FIRST.steps;

/// Renders the template `name` of an environment of [`STEPS`]. `size` is the number of bytes of the conversation, and
/// `longest` the longest time of the second try.
pub(super) fn rendered(
    environment: &Environment<'static>,
    name: &'static str,
    values: Vec<(String, Value)>,
    size: usize,
    longest: Duration,
) -> Result<String, Error> {
    match attempt(environment, name, values.clone(), size, &FIRST) {
        Err(error) if error.kind() == ErrorKind::OutOfFuel => {}
        other => return other,
    }
    let failed = |reason: String| Error::new(ErrorKind::InvalidOperation, reason);
    if LATE.load(Ordering::Relaxed) >= MOST_LATE {
        return Err(failed(format!("{MOST_LATE} renderings before it still go on after their longest time")));
    }
    let mut environment = environment.clone();
    environment.set_fuel(Some(SECOND.steps.saturating_add(size as u64)));
    let (sender, receiver) = channel();
    // Set by the first of two: the end of the work, and the end of the time.
    let is_over = Arc::new(AtomicBool::new(false));
    let of_work = is_over.clone();
    let work = move || {
        let rendered = attempt(&environment, name, values, size, &SECOND);
        if of_work.swap(true, Ordering::AcqRel) {
            LATE.fetch_sub(1, Ordering::Relaxed);
        }
        // Nobody listens after the longest time.
        let _ = sender.send(rendered);
    };
    let started = thread::Builder::new().name("chat template".to_owned()).spawn(work);
    started.map_err(|error| failed(format!("the thread to render it cannot be started: {error}")))?;
    // A thread cannot be ended. One that is late goes on until it is out of steps, or the program ends.
    receiver.recv_timeout(longest).unwrap_or_else(|late| {
        Err(match late {
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
