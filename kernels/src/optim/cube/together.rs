//! The updates that are launched together.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Cube;
use burn::backend::tensor::{Device, FloatTensor};

use super::job::Job;
use crate::cube::{groups, run_many};

/// A number `[1]` in f32: if it is infinite or NaN, the updates change nothing.
pub type Guard = FloatTensor<Cube>;

/// Jobs that are collected while the queue of operations is worked off, perhaps on another thread.
type Jobs = Arc<Mutex<Vec<Job>>>;

thread_local! {
    /// What the innermost scope on this thread collects.
    static OPEN: RefCell<Option<Together>> = const { RefCell::new(None) };
    /// Whether nothing reads the results of the current update before the scope ends.
    static DEFERS: Cell<bool> = const { Cell::new(false) };
    /// The updates that were left to the end of their scope.
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
}

/// See [`deferrals`](crate::optim::deferrals).
pub fn deferrals() -> u64 {
    DEFERRED.get()
}

/// The updates of one scope, all on one device.
#[derive(Default)]
struct Together {
    jobs: Jobs,
    /// The device, with a result of the scope, which the launches follow in the queue.
    on: Option<(Device<Cube>, FloatTensor<Cube>)>,
}

/// See [`together`](crate::optim::together) and [`together_if_finite`](crate::optim::together_if_finite).
pub fn together<T>(guard: Option<Guard>, update: impl FnOnce() -> T) -> T {
    /// Restores the outer scope, even if the update panics.
    struct Outer(Option<Together>);
    impl Drop for Outer {
        fn drop(&mut self) {
            OPEN.replace(self.0.take());
        }
    }
    let outer = Outer(OPEN.replace(Some(Together::default())));
    let result = update();
    let collected = OPEN.take();
    drop(outer);
    if let Some(Together { jobs, on: Some((_, last)) }) = collected {
        launch_after(last, guard, jobs);
    }
    result
}

/// See [`deferred`](crate::optim::deferred).
pub fn deferred<T>(update: impl FnOnce() -> T) -> T {
    /// Restores the state before, even if the update panics.
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            DEFERS.set(self.0);
        }
    }
    let _before = Before(DEFERS.replace(true));
    update()
}

/// Runs `register`, which puts one update in the queue, and returns its results. The update is launched at the end of the
/// scope if there is one and it may be deferred, or else at once.
pub fn collect(
    device: Device<Cube>,
    register: impl FnOnce(Jobs) -> Vec<FloatTensor<Cube>>,
) -> Vec<FloatTensor<Cube>> {
    let shared = OPEN.with_borrow(|open| {
        let open = open.as_ref().filter(|_| DEFERS.get())?;
        open.on.as_ref().is_none_or(|(other, _)| *other == device).then(|| open.jobs.clone())
    });
    match shared {
        Some(jobs) => {
            let found = register(jobs);
            OPEN.with_borrow_mut(|open| {
                if let Some(open) = open {
                    open.on.get_or_insert_with(|| (device, found[0].clone()));
                }
            });
            DEFERRED.set(DEFERRED.get() + 1);
            found
        }
        None => {
            let jobs = Jobs::default();
            let found = register(jobs.clone());
            launch_after(found[0].clone(), None, jobs);
            found
        }
    }
}

/// Puts the launches in the queue, after the operation that yields `last`.
fn launch_after(last: FloatTensor<Cube>, guard: Option<Guard>, jobs: Jobs) {
    let inputs = [last].into_iter().chain(guard).collect();
    run_many(inputs, Vec::new(), move |inputs| {
        let guard = inputs.get(1);
        let jobs = std::mem::take(&mut *jobs.lock().unwrap_or_else(PoisonError::into_inner));
        let params: Vec<_> = jobs.iter().map(|job| job.param.clone()).collect();
        let buffers = jobs.iter().map(|job| job.tensors().count()).max().unwrap_or(1);
        let constants = jobs.iter().map(|job| job.constants.len()).max().unwrap_or(0);
        for places in groups(&params, (buffers, constants), |at| jobs[at].alike()) {
            let group: Vec<_> = places.into_iter().map(|at| &jobs[at]).collect();
            (group[0].launch)(&group, guard);
        }
        Vec::new()
    });
}
