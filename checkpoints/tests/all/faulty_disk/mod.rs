//! A disk that fails, or kills the process, at a chosen operation.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;

use firebrick_checkpoints::Disk;

/// The effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The process is killed.
    Kill,
    /// The operation fails with a system error.
    Error(i32),
}

/// When and how a fault happens.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The number of the operation, from 0.
    pub operation: usize,
    /// Whether all later operations fail too.
    pub stays: bool,
    /// How much of the operation happens before the fault: bytes of a write, or files of a removal.
    pub done: usize,
    /// The effect.
    pub fault: Fault,
}

/// Works like [`firebrick_checkpoints::RealDisk`], but does not wait for the disk: a killed process loses no
/// writes, and the tests are faster.
#[derive(Debug, Default)]
pub struct FaultyDisk {
    plan: Option<Plan>,
    /// The names of the points reached, in order.
    reached: Mutex<Vec<String>>,
}

impl FaultyDisk {
    /// Creates a disk without faults.
    pub fn sound() -> Arc<Self> {
        Arc::default()
    }

    pub fn new(plan: Plan) -> Arc<Self> {
        Arc::new(Self { plan: Some(plan), ..Self::default() })
    }

    /// Returns the points reached.
    pub fn reached(&self) -> Vec<String> {
        self.reached.lock().unwrap().clone()
    }

    /// Returns the point of the fault, if it was reached.
    pub fn failed_at(&self) -> Option<String> {
        self.reached.lock().unwrap().get(self.plan?.operation).cloned()
    }

    /// Performs an operation; if it is the one to fail, performs a part of it and fails.
    fn turn<T>(
        &self,
        at: &str,
        part: impl FnOnce(usize) -> io::Result<()>,
        all: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let number = {
            let mut reached = self.reached.lock().unwrap();
            reached.push(at.into());
            reached.len() - 1
        };
        match self.plan {
            Some(plan) if number == plan.operation || plan.stays && number > plan.operation => {
                part(plan.done)?;
                match plan.fault {
                    Fault::Error(code) => Err(io::Error::from_raw_os_error(code)),
                    Fault::Kill => {
                        eprintln!("killed at: {at}");
                        rustix::process::kill_process(
                            rustix::process::getpid(),
                            rustix::process::Signal::KILL,
                        )?;
                        loop {
                            std::thread::park();
                        }
                    }
                }
            }
            _ => all(),
        }
    }
}

fn nothing(_: usize) -> io::Result<()> {
    Ok(())
}

impl Disk for FaultyDisk {
    fn create_dir(&self, at: &str, path: &Path) -> io::Result<()> {
        self.turn(at, nothing, || fs::create_dir(path))
    }

    fn create_file(&self, at: &str, path: &Path) -> io::Result<File> {
        self.turn(at, nothing, || File::create_new(path))
    }

    fn write(&self, at: &str, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let mut other = file.try_clone()?;
        let part = move |done: usize| other.write_all(&bytes[..done.min(bytes.len())]);
        self.turn(at, part, || file.write_all(bytes))
    }

    fn sync_file(&self, at: &str, _: &File) -> io::Result<()> {
        self.turn(at, nothing, || Ok(()))
    }

    fn sync_dir(&self, at: &str, _: &Path) -> io::Result<()> {
        self.turn(at, nothing, || Ok(()))
    }

    fn rename(&self, at: &str, from: &Path, to: &Path) -> io::Result<()> {
        self.turn(at, nothing, || fs::rename(from, to))
    }

    fn remove_file(&self, at: &str, path: &Path) -> io::Result<()> {
        self.turn(at, nothing, || fs::remove_file(path))
    }

    fn remove_dir_all(&self, at: &str, path: &Path) -> io::Result<()> {
        let part = |done| fs::read_dir(path)?.take(done).try_for_each(|entry| fs::remove_file(entry?.path()));
        self.turn(at, part, || fs::remove_dir_all(path))
    }
}
