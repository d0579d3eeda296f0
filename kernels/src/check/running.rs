//! Runs checks on a device, until the time is over.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use burn::backend::{Backend, DTypeUsage, Dispatch};
use burn::tensor::{Device, FloatDType};

use super::run::{Deviation, Output, Run, Work, largest};
use super::{Check, Compute};
use crate::device::is_flex;
use crate::off::Kernel;

/// The dtypes in which this crate has kernels.
const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];

/// What a check found in one dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The name of the check.
    pub name: &'static str,
    /// The dtype.
    pub dtype: FloatDType,
    /// The kernel that the user can turn off.
    pub kernel: Option<Kernel>,
    /// Whether the user did: Burn's operations compute in its place, and are checked.
    pub is_off: bool,
    /// What it found.
    pub verdict: Verdict,
    /// The largest relative error so far.
    pub error: Option<f64>,
    /// The largest relative error that rounding explains.
    pub tolerance: f64,
    /// Whether the shape of a model was reached; `None` if the check has none.
    pub real: Option<bool>,
    /// The speed on the shape of a model.
    pub speed: Option<Speed>,
}

/// Whether a kernel is right.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// All results are near enough.
    Right,
    /// A result is not. The largest deviation.
    Wrong(Deviation),
    /// It could not be run. The reason.
    Failed(String),
    /// The device does not compute in this dtype.
    NotOffered,
    /// The user [turned it off](crate::off), and what computes in its place is not in this crate.
    Off,
    /// The time was over before.
    NotReached,
    /// The time was over while it ran, for so long.
    Unfinished(Duration),
}

/// Work in a second, forward and backward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// Floating-point operations.
    Operations(f64),
    /// Bytes that are read and written at least.
    Bytes(f64),
}

/// What a step of the checks found.
enum Event {
    Begun(usize),
    Ended(usize, Result<CheckOutcome, String>),
}

struct CheckOutcome {
    /// `None` if there are no results.
    most: Option<Deviation>,
    speed: Option<Speed>,
}

/// One step: a check in one dtype.
struct Step {
    /// The check, and the row of its results.
    check: usize,
    row: usize,
    dtype: FloatDType,
    is_real: bool,
}

/// Runs checks on a device, in f32, f16 and bf16: first all on small shapes, then those of a model's shapes. Calls `tell`
/// with the name of each check as it begins.
///
/// It begins no check that would end after `limit` if it took as long as the longest before it, and says which were not
/// reached. A third of `limit` later it ends even if a kernel does not: [`Verdict::Unfinished`]. That one goes on in a thread,
/// and a process that ends in the usual way frees the driver's memory below it.
///
/// A kernel that panics fails; a device may then fail every other one too.
pub fn run(checks: Vec<Check>, device: &Device, limit: Duration, mut tell: impl FnMut(&str)) -> Vec<Checked> {
    let (begun, device) = (Instant::now(), device.clone().inner());
    let offered = DTYPES.map(|dtype| offers(&device, dtype));
    let (mut rows, mut small, mut real) = (Vec::new(), Vec::new(), Vec::new());
    for (at, check) in checks.iter().enumerate() {
        let is_off = check.kernel.is_some_and(Kernel::is_off);
        for (dtype, offered) in DTYPES.into_iter().zip(&offered) {
            let verdict = match offered {
                Err(reason) => Verdict::Failed(reason.clone()),
                Ok(false) => Verdict::NotOffered,
                Ok(true) if check.kernel == Some(Kernel::Updates) && is_off => Verdict::Off,
                Ok(true) => Verdict::NotReached,
            };
            let step = |is_real| Step { check: at, row: rows.len(), dtype, is_real };
            if verdict == Verdict::NotReached {
                small.push(step(false));
                real.extend(check.real.is_some().then(|| step(true)));
            }
            rows.push(Checked {
                name: check.name,
                dtype,
                kernel: check.kernel,
                is_off,
                verdict,
                error: None,
                tolerance: check.tolerance.of(dtype, !is_flex(&device)),
                real: check.real.is_some().then_some(false),
                speed: None,
            });
        }
    }
    let steps: Vec<_> = small.into_iter().chain(real).collect();
    let places: Vec<_> = steps.iter().map(|step| (step.row, step.is_real)).collect();
    let (sender, events) = channel();
    // A thread of its own, since nothing can end a kernel that does not end. If so, the thread ends with the process.
    thread::spawn(move || {
        let (mut reference, mut longest) = (Reference::default(), Duration::ZERO);
        for (at, step) in steps.iter().enumerate() {
            let begins = begun.elapsed();
            if begins + longest >= limit || sender.send(Event::Begun(at)).is_err() {
                return;
            }
            let check = &checks[step.check];
            let found = catch_unwind(AssertUnwindSafe(|| reference.compare(check, step, &device)));
            let found = found.unwrap_or_else(|panic| Err(message(&*panic)));
            longest = longest.max(begun.elapsed() - begins);
            if sender.send(Event::Ended(at, found)).is_err() {
                return;
            }
        }
    });
    let (mut running, mut told) = (None, String::new());
    let last = limit + limit / 3;
    while let Ok(event) = events.recv_timeout(last.saturating_sub(begun.elapsed())) {
        match event {
            Event::Begun(at) => {
                running = Some((at, Instant::now()));
                let (row, is_real) = places[at];
                let shape = if is_real { ", a shape of a model" } else { "" };
                let line = format!("{}{shape}", rows[row].name);
                if line != told {
                    tell(&line);
                    told = line;
                }
            }
            Event::Ended(at, found) => {
                running = None;
                let (row, is_real) = places[at];
                rows[row].take(found, is_real);
            }
        }
    }
    if let Some((at, since)) = running {
        let row = &mut rows[places[at].0];
        // If it is right on the small shape, that is not what the user must know first: this one holds the device.
        if matches!(row.verdict, Verdict::NotReached | Verdict::Right) {
            row.verdict = Verdict::Unfinished(since.elapsed());
        }
    }
    rows
}

impl Checked {
    fn take(&mut self, found: Result<CheckOutcome, String>, is_real: bool) {
        if is_real {
            self.real = Some(true);
        }
        // The user is told what was found first.
        let is_settled = matches!(self.verdict, Verdict::Wrong(_) | Verdict::Failed(_));
        let verdict = match found {
            Err(reason) => Verdict::Failed(reason),
            Ok(CheckOutcome { most: None, .. }) => Verdict::Failed("it has no results".into()),
            Ok(CheckOutcome { most: Some(most), speed }) => {
                self.speed = self.speed.or(speed);
                self.error = Some(self.error.unwrap_or(0.0).max(most.error));
                if most.error <= self.tolerance { Verdict::Right } else { Verdict::Wrong(most) }
            }
        };
        if !is_settled {
            self.verdict = verdict;
        }
    }
}

/// The latest results of the CPU in f64: those of one check and size serve two dtypes.
#[derive(Default)]
struct Reference {
    of: Option<(usize, bool, bool)>,
    outputs: Vec<Output>,
}

impl Reference {
    fn compare(&mut self, check: &Check, step: &Step, device: &Device) -> Result<CheckOutcome, String> {
        let compute = match &check.real {
            Some(real) if step.is_real => real,
            _ => &check.small,
        };
        let coarse = step.dtype != FloatDType::F32;
        let of = (step.check, step.is_real, coarse);
        if self.of != Some(of) {
            // Frees the earlier ones first.
            *self = Self::default();
            self.outputs = outputs(compute, &Device::flex(), FloatDType::F64, coarse);
            self.of = Some(of);
        }
        let found = outputs(compute, device, step.dtype, coarse);
        let most = largest(&found, &self.outputs);
        let speed = if step.is_real { Some(timed(compute, device, step.dtype, coarse)?) } else { None };
        Ok(CheckOutcome { most, speed: speed.flatten() })
    }
}

fn outputs(compute: &Compute, device: &Device, dtype: FloatDType, coarse: bool) -> Vec<Output> {
    let mut run = Run::new(device, dtype, coarse, false);
    compute(&mut run);
    run.finish()
}

/// How long a kernel is timed.
const TIMED: Duration = Duration::from_millis(200);

fn timed(
    compute: &Compute,
    device: &Device,
    dtype: FloatDType,
    coarse: bool,
) -> Result<Option<Speed>, String> {
    let mut run = Run::new(device, dtype, coarse, true);
    let mut runs = |times: u32| {
        let begun = Instant::now();
        for _ in 0..times {
            compute(&mut run);
            run.end_timed()?;
        }
        device.sync().map_err(|error| error.to_string())?;
        Ok::<_, String>(begun.elapsed())
    };
    // The first makes the inputs.
    runs(1)?;
    let one = runs(1)?;
    let times = (TIMED.as_secs_f64() / one.as_secs_f64().max(1e-6)).clamp(1.0, 100.0) as u32;
    let each = if times > 1 { runs(times)? / times } else { one };
    let seconds = each.as_secs_f64().max(1e-9);
    Ok(run.work().map(|work| match work {
        Work::Operations(count) => Speed::Operations(count / seconds),
        Work::Bytes(count) => Speed::Bytes(count / seconds),
    }))
}

/// Returns whether a device computes in a dtype, or why it cannot be asked.
fn offers(device: &Device, dtype: FloatDType) -> Result<bool, String> {
    let usage = || Dispatch::dtype_usage(device.as_dispatch(), dtype.into()).contains(DTypeUsage::Arithmetic);
    catch_unwind(AssertUnwindSafe(usage)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").into()
}
