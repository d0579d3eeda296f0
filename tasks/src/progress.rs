//! Says how far long work is.

use std::time::{Duration, Instant};

/// Says how many there are so far, every second.
pub fn progress(say: &dyn Fn(&str), what: &'static str) -> impl FnMut(usize) {
    let mut last = Instant::now();
    move |count| {
        if last.elapsed() > Duration::from_secs(1) {
            say(&format!("{count} {what} so far"));
            last = Instant::now();
        }
    }
}

/// Says how many of `all` are done, every second.
pub fn progress_of(say: &dyn Fn(&str), what: &'static str, all: usize) -> impl FnMut(usize) {
    let mut last = Instant::now();
    move |count| {
        if last.elapsed() > Duration::from_secs(1) {
            say(&format!("{count} of {all} {what} so far"));
            last = Instant::now();
        }
    }
}
