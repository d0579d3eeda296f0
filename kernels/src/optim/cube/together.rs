//! The updates that are launched together.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::Cube;
use burn::backend::tensor::{Device, FloatTensor};
use burn::tensor::{FloatDType, Tensor};

use super::job::Job;
use crate::cube::{groups, has_kernels, of_cube, run_many};
use crate::half::cast;

/// A number `[1]` in f32: if it is infinite or NaN, the updates change nothing.
type Guard = FloatTensor<Cube>;

/// Jobs that are collected while the queue of operations is worked off, perhaps on another thread.
type Jobs = Arc<Mutex<Vec<Job>>>;

/// The updates of one scope that wait for their launch, all on one device.
#[derive(Default)]
pub struct Pending {
    jobs: Jobs,
    /// The device, with a result of the scope, which the launches follow in the queue.
    on: Option<(Device<Cube>, FloatTensor<Cube>)>,
    guard: Option<Guard>,
}

impl Pending {
    /// See [`Together::if_finite`](crate::optim::Together::if_finite).
    pub fn if_finite(self, guard: Option<Tensor<1>>) -> Self {
        let guard = guard.map(|guard| cast(guard, FloatDType::F32).into_dispatch());
        let guard = guard.filter(|guard| has_kernels([guard])).map(|guard| of_cube(vec![guard]).remove(0));
        Self { guard, ..self }
    }

    /// Runs `register`, which puts one update in the queue. Returns its results, and whether it waits: on another device than
    /// the others it is launched at once.
    pub fn collect(
        &mut self,
        device: Device<Cube>,
        register: impl FnOnce(Jobs) -> Vec<FloatTensor<Cube>>,
    ) -> (Vec<FloatTensor<Cube>>, bool) {
        if self.on.as_ref().is_some_and(|(other, _)| *other != device) {
            let jobs = Jobs::default();
            let found = register(jobs.clone());
            launch_after(found[0].clone(), None, jobs);
            return (found, false);
        }
        let found = register(self.jobs.clone());
        self.on.get_or_insert_with(|| (device, found[0].clone()));
        (found, true)
    }

    /// Launches the updates.
    pub fn launch(self) {
        if let Some((_, last)) = self.on {
            launch_after(last, self.guard, self.jobs);
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
