//! Runs long preparatory work with progress lines and immediate interruption.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use burn::tensor::StreamId;
use burn::train::Interrupter;

use crate::LoadError;

/// The longest delay before an interruption is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// The silence after which the last line is repeated with its elapsed time.
const SILENCE: Duration = Duration::from_secs(1);

/// Runs `work` on its own thread and passes its lines to `say`. While `work` prints nothing, `say` repeats the last
/// line, or `doing` before the first one, every second with the seconds elapsed.
///
/// An interruption abandons the thread, because a library that trains a vocabulary or draws weights cannot be stopped:
/// `work` must not write anything that others read.
///
/// # Errors
///
/// Returns the errors of `work`, or [`LoadError::Interrupted`] as soon as `interrupter` receives a stop request.
pub fn attended<T: Send + 'static, E: From<LoadError> + Send + 'static>(
    interrupter: &Interrupter,
    doing: &str,
    say: &dyn Fn(&str),
    work: impl FnOnce(&dyn Fn(&str)) -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    let (lines, said) = channel();
    let pass_on = |lines: Sender<String>| move |line: &str| drop(lines.send(line.to_owned()));
    // Tensors that the work returns are used on the stream of this thread.
    let stream = StreamId::current();
    let worker = thread::spawn(move || stream.executes(|| work(&pass_on(lines))));
    let mut doing = doing.to_owned();
    let (mut since, mut repeated) = (Instant::now(), Instant::now());
    loop {
        match said.recv_timeout(LOOK) {
            Ok(line) => {
                say(&line);
                doing = line;
                since = Instant::now();
                repeated = since;
            }
            Err(RecvTimeoutError::Disconnected) => {
                return worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            }
            Err(RecvTimeoutError::Timeout) if interrupter.should_stop() => {
                return Err(LoadError::Interrupted.into());
            }
            Err(RecvTimeoutError::Timeout) if repeated.elapsed() >= SILENCE => {
                repeated = Instant::now();
                say(&format!("{doing}: {} s so far", since.elapsed().as_secs()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn lines_and_the_result_are_passed_on() {
        let lines = Mutex::new(Vec::new());
        let say = |line: &str| lines.lock().unwrap().push(line.to_owned());
        let work = |say: &dyn Fn(&str)| {
            say("one");
            say("two");
            Ok::<_, LoadError>(3)
        };
        assert_eq!(attended(&Interrupter::new(), "preparing", &say, work).unwrap(), 3);
        assert_eq!(*lines.lock().unwrap(), ["one", "two"]);
    }

    #[test]
    fn long_work_shows_that_it_goes_on_and_ends_at_once_when_interrupted() {
        let interrupter = Interrupter::new();
        let lines = Mutex::new(Vec::new());
        let say = |line: &str| {
            lines.lock().unwrap().push(line.to_owned());
            if line.ends_with("so far") {
                interrupter.stop(None);
            }
        };
        let (release, held) = channel::<()>();
        let endless = move |say: &dyn Fn(&str)| {
            say("learning");
            let _ = held.recv();
            Ok::<_, LoadError>(())
        };
        let error = attended(&interrupter, "preparing", &say, endless).unwrap_err();
        drop(release);
        assert!(matches!(error, LoadError::Interrupted));
        assert_eq!(*lines.lock().unwrap(), ["learning", "learning: 1 s so far"]);
    }

    #[test]
    #[should_panic(expected = "a fault of the work")]
    fn a_panic_is_passed_on() {
        let _ = attended::<(), LoadError>(&Interrupter::new(), "preparing", &|_| (), |_| {
            panic!("a fault of the work")
        });
    }
}
