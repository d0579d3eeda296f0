//! Ranks in processes started by `mpirun` or Slurm, each with one thread or several.
//!
//! ```text
//! progress_thread.rs  the thread that makes a process's MPI calls, without ever blocking in one
//! wire.rs             the messages between processes, and the buffers that MPI works on
//! ```

mod progress_thread;
mod wire;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::exchange::Exchange;
use super::meeting::{Places, meet};
use super::message::{Message, Notice};
use super::{Communicator, DeviceCollectives, LAUNCHERS, WorldError};
use crate::message::Remote;
use progress_thread::ProgressThread;
use wire::Envelope;

/// How long a failed process waits for the others to receive the error before it exits. The launcher then ends all
/// others, which would not report anything.
const GRACE: Duration = Duration::from_secs(5);

static PROGRESS: OnceLock<Arc<ProgressThread>> = OnceLock::new();

/// The longest deadline of the worlds joined so far: how long a process's exit waits for the others.
static LONGEST: Mutex<Duration> = Mutex::new(Duration::ZERO);

/// The route of one world's ranks to other processes.
struct Way {
    progress: Arc<ProgressThread>,
    world: u64,
    /// Ranks in each process.
    threads: usize,
    processes: usize,
    me: usize,
}

impl Remote for Way {
    fn process(&self, rank: usize) -> usize {
        rank / self.threads
    }

    fn send(&self, from: usize, to: Vec<usize>, sequence: u64, message: Message) {
        let process = to.first().map_or(self.me, |rank| self.process(*rank));
        let (envelope, buffers) = Envelope::of(self.world, from, to, sequence, message);
        self.progress.send(process, envelope, buffers);
    }

    fn tell(&self, notice: Notice) {
        for process in (0..self.processes).filter(|process| *process != self.me) {
            let envelope = Envelope::Notice { world: self.world, notice: notice.clone() };
            self.progress.send(process, envelope, vec![]);
        }
    }

    fn failed(&self) {
        self.progress.failed();
    }
}

/// Joins this process's ranks, one in each of its threads, once all processes have started. `devices` returns what
/// distinguishes the ranks' devices, and the collectives of each.
pub fn join(
    threads: usize,
    deadline: Duration,
    devices: impl FnOnce() -> (Places, Vec<DeviceCollectives>),
) -> Result<Vec<Communicator>, WorldError> {
    let mut variables = LAUNCHERS.iter().flat_map(|launcher| launcher.of_mpi);
    if !variables.any(|name| std::env::var_os(name).is_some()) {
        return Err(WorldError::Mpi(
            "no launcher started this process, so it would run alone: start it as `mpirun -n 4 PROGRAM`, or with `srun` in a Slurm job; for ranks in one process use World::threads".to_string(),
        ));
    }
    {
        let mut longest = LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
        *longest = deadline.max(*longest);
    }
    let progress = PROGRESS.get_or_init(|| {
        let progress = ProgressThread::open();
        exit::run_at_exit();
        progress
    });
    let (me, processes) = progress.started(deadline)?;
    if let Some(started) = started_by_launcher().filter(|started| *started != processes) {
        return Err(WorldError::Mpi(format!(
            "the launcher started {started} processes, of which this program's MPI library sees {processes}: start it with the `mpirun` of that library, or build it with the launcher's"
        )));
    }
    let world = |threads: usize| {
        let here = me * threads..(me + 1) * threads;
        progress.enter(|world| {
            let way = Way { progress: progress.clone(), world, threads, processes, me };
            Exchange::new(processes * threads, here, deadline).beyond(Box::new(way))
        })
    };
    // First joins one rank per process, to exchange the numbers of threads.
    let process = Communicator::of(world(1), me);
    let counts = process.numbers("threads in each process", &[threads as f64])?;
    if let Some(other) = counts.iter().position(|count| *count != [threads as f64]) {
        let found = format!("a world of {} threads in each process", counts[other][0]);
        let call = format!("a world of {threads} threads in each process");
        return Err(WorldError::Mismatch { rank: me, call, other, found });
    }
    let (mine, between) = devices();
    let text = serde_json::to_vec(&mine).map_err(|error| WorldError::Mpi(error.to_string()))?;
    let texts = process.all_gather_bytes("devices", &text)?;
    // One that is not read is of another version of the program.
    let read = |text: &Vec<u8>| serde_json::from_slice(text).unwrap_or_else(|error| Err(error.to_string()));
    let places: Vec<Places> = texts.iter().map(read).collect();
    let exchange = world(threads);
    let ranks = (me * threads..(me + 1) * threads).map(|rank| Communicator::of(exchange.clone(), rank));
    Ok(meet(ranks.collect(), &places, between))
}

/// Returns the number of processes that the launcher reports.
fn started_by_launcher() -> Option<usize> {
    LAUNCHERS.iter().find_map(|launcher| std::env::var(launcher.count).ok()?.parse().ok())
}

mod exit {
    //! MPI's shutdown at process exit.
    #![allow(unsafe_code)] // Every way out of a program passes through `atexit`.

    use super::{GRACE, LONGEST, PROGRESS, PoisonError};

    extern "C" fn close() {
        if let Some(progress) = PROGRESS.get() {
            let limit = *LONGEST.lock().unwrap_or_else(PoisonError::into_inner);
            progress.close(limit, GRACE.min(limit));
        }
    }

    /// Shuts MPI down in order when the process exits, whether `main` returns or the program calls `exit`.
    pub fn run_at_exit() {
        // SAFETY: the function takes no arguments, is never unloaded, and does not panic: `close` only waits and
        // writes a line.
        if unsafe { libc::atexit(close) } != 0 {
            // POSIX guarantees room for 32 handlers and Rust uses one; otherwise the launcher reports the early exit.
            eprintln!(
                "MPI: no room for an exit handler: the launcher may report that the process left early"
            );
        }
    }
}
