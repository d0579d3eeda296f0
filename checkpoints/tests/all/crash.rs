//! A process that is killed during a save leaves a checkpoint that opens: at each operation of the protocol, at
//! parts of it, and at random places.
//!
//! Each test starts itself again as a child process, with the plan in the environment.

use std::env;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use firebrick_checkpoints::{Folder, Keep};

use crate::faulty_disk::{Fault, FaultyDisk, Plan};
use crate::state::{bytes, open_as, save, save_in};

/// The environment variable with the plan of the child process: `OPERATION DONE FOLDER`.
const PLAN: &str = "FIREBRICK_CRASH_PLAN";

/// A save by the child process, over existing checkpoints.
struct Scenario {
    /// The name of its test.
    test: &'static str,
    /// The existing steps, of two ranks each.
    before: &'static [u64],
    /// The step that the child process saves, with three ranks.
    saves: u64,
    keep: Keep,
}

impl Scenario {
    fn run(&self, folder: &Path, disk: Arc<FaultyDisk>) {
        let folder = Folder::new(folder).with_disk(disk);
        save_in(&folder.staging(self.saves, "new"), self.saves, 3).unwrap();
        folder.prune(&self.keep).unwrap();
    }

    /// Runs in the child process, which gets killed.
    fn child(&self, plan: &str) {
        let mut plan = plan.splitn(3, ' ');
        let mut number = || plan.next().unwrap().parse().unwrap();
        let (operation, done) = (number(), number());
        let disk = FaultyDisk::new(Plan { operation, stays: false, done, fault: Fault::Kill });
        self.run(Path::new(plan.next().unwrap()), disk);
    }

    /// Starts a child process that is killed at this operation, and checks what it left.
    fn killed_at(&self, prepared: &Path, points: &[String], operation: usize, done: usize) {
        let output = tempfile::tempdir().unwrap();
        let path = output.path().join("checkpoints");
        copy(prepared, &path);
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(PLAN, format!("{operation} {done} {}", path.display()))
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(9), "operation {operation}: {stderr}");
        let point = stderr.lines().find_map(|line| line.strip_prefix("killed at: ")).unwrap();
        let place = format!("{point} (operation {operation}, {done} done)");
        println!("{place}");
        // The ranks' writes come in any order, but all of them before the rename.
        let rename = points.iter().position(|point| point == "rename the staging folder").unwrap();
        self.check(&path, operation > rename, &place);
    }

    fn check(&self, path: &Path, renamed: bool, place: &str) {
        let folder = Folder::new(path).with_disk(FaultyDisk::sound());
        let before = *self.before.last().unwrap();
        // From the rename on the new checkpoint exists; before it, the old one does.
        let newest = if renamed { self.saves } else { before };
        for cleaned in [false, true] {
            let saved = folder.list().unwrap();
            let last = saved.last().unwrap_or_else(|| panic!("{place}: none is left"));
            assert_eq!(last.step, newest, "{place}");
            let ranks = open_as(&last.path, newest).manifest().world_size;
            assert_eq!(ranks, if renamed { 3 } else { 2 }, "{place}");
            saved.iter().for_each(|saved| drop(open_as(&saved.path, saved.step)));
            let latest = folder.latest().unwrap().unwrap();
            open_as(&latest.path, latest.step);
            // The same for a reader of this file alone.
            let text = fs::read_to_string(path.join("latest")).unwrap();
            assert_eq!(text, format!("step-{:08}\n", latest.step), "{place}");
            let incomplete = folder.incomplete().unwrap();
            assert!(incomplete.is_empty(), "{place}: {incomplete:?}");
            if cleaned {
                assert_eq!(latest, *last, "{place}");
            } else {
                folder.clean().unwrap();
            }
        }
        let hidden = fs::read_dir(path).unwrap().find(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().starts_with('.')
        });
        assert!(hidden.is_none(), "{place}: {hidden:?} is left");
        let again = save_in(&folder.staging(self.saves, "again"), self.saves, 4).unwrap();
        assert_eq!(open_as(&again.path, self.saves).manifest().world_size, 4, "{place}");
    }

    /// Prepares the existing checkpoints. Returns the points of a run that is not killed.
    fn prepare(&self, output: &Path) -> Vec<String> {
        let prepared = output.join("prepared");
        let folder = Folder::new(&prepared).with_disk(FaultyDisk::sound());
        self.before.iter().for_each(|&step| drop(save(&folder, step, 2).unwrap()));
        let path = output.join("points");
        copy(&prepared, &path);
        let disk = FaultyDisk::sound();
        self.run(&path, disk.clone());
        disk.reached()
    }

    fn killed_everywhere(&self) {
        if let Ok(plan) = env::var(PLAN) {
            return self.child(&plan);
        }
        let output = tempfile::tempdir().unwrap();
        let points = self.prepare(output.path());
        let prepared = output.path().join("prepared");
        for (operation, point) in points.iter().enumerate() {
            self.killed_at(&prepared, &points, operation, 0);
            if point.starts_with("write") || point.starts_with("remove") {
                // In the middle of the operation, and after it but before it returns.
                self.killed_at(&prepared, &points, operation, 3);
                self.killed_at(&prepared, &points, operation, usize::MAX);
            }
        }
        assert!(points.len() > 40, "{points:?}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy(&path, &to);
        } else {
            fs::copy(path, to).unwrap();
        }
    }
}

#[test]
fn a_save_is_killed_at_every_operation() {
    let test = "crash::a_save_is_killed_at_every_operation";
    Scenario { test, before: &[1], saves: 2, keep: Keep::last(1) }.killed_everywhere();
}

#[test]
fn a_save_of_a_step_that_exists_is_killed_at_every_operation() {
    let test = "crash::a_save_of_a_step_that_exists_is_killed_at_every_operation";
    Scenario { test, before: &[1, 2], saves: 2, keep: Keep::last(1) }.killed_everywhere();
}

#[test]
fn saves_are_killed_at_random_places() {
    let test = "crash::saves_are_killed_at_random_places";
    let new = Scenario { test, before: &[1], saves: 2, keep: Keep::last(1) };
    let replacing = Scenario { test, before: &[1, 2], saves: 2, keep: Keep::last(1) };
    if let Ok(plan) = env::var(PLAN) {
        return new.child(&plan);
    }
    let output = tempfile::tempdir().unwrap();
    let scenarios = [(new, "new"), (replacing, "replacing")].map(|(scenario, name)| {
        fs::create_dir(output.path().join(name)).unwrap();
        let points = scenario.prepare(&output.path().join(name));
        (scenario, output.path().join(name).join("prepared"), points)
    });
    for (at, random) in bytes(1337, 200 * 6).chunks_exact(6).enumerate() {
        let (scenario, prepared, points) = &scenarios[at % 2];
        let operation = usize::from(u16::from_le_bytes([random[0], random[1]])) % points.len();
        // Files here have up to about 1000 bytes.
        let done = usize::from(u16::from_le_bytes([random[2], random[3]])) % 1200;
        scenario.killed_at(prepared, points, operation, done);
    }
}
