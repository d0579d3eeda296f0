//! The kernels of a device, beside the CPU: whether they are right, and how fast.

use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use burn::tensor::{DType, Device};
use firebrick_kernels::check::{Check, Checked, Speed, Verdict, all, run};
use firebrick_kernels::off::{self, Kernel};
use serde::Serialize;

use super::listing::hardware;
use super::table::table;
use super::{DeviceError, find, is_cube};

/// What a check of all kernels on a device found.
///
/// ```
/// use std::time::Duration;
///
/// use firebrick::device::KernelCheck;
///
/// # fn main() -> Result<(), firebrick::device::DeviceError> {
/// let check = KernelCheck::of_device("cpu", Duration::from_secs(2), |_| ())?;
/// assert!(check.problems().is_empty());
/// println!("{check}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize)]
pub struct KernelCheck {
    /// The device, as in `cuda:0`.
    pub device: String,
    /// The hardware's own name, if known.
    pub hardware: Option<String>,
    /// How long it took.
    pub seconds: f64,
    /// The kernels, each in each dtype.
    pub kernels: Vec<CheckedKernel>,
}

/// A kernel in one dtype.
#[derive(Clone, Debug, Serialize)]
pub struct CheckedKernel {
    /// The name of the check.
    pub kernel: &'static str,
    /// The dtype, as in `bf16`.
    pub dtype: &'static str,
    /// `right`, `WRONG`, `failed`, `not offered`, `off`, `not reached` or `not finished`, and what else is to be known.
    pub verdict: String,
    /// The largest difference from the CPU in f64, divided by the largest number of a result.
    pub largest_relative_error: Option<f64>,
    /// The largest that rounding explains.
    pub tolerance: f64,
    /// Operations in a second, 10¹², forward and backward on the shape of a model.
    pub tflops: Option<f64>,
    /// Bytes in a second, 10⁹, likewise.
    pub gb_per_s: Option<f64>,
    /// What is wrong, and what to do.
    pub problem: Option<String>,
    /// Whether a part of the check, or all of it, was not reached in time.
    pub is_unreached: bool,
    /// Whether it still runs.
    pub is_running: bool,
}

impl KernelCheck {
    /// Checks all kernels on the device that is found under a [name](find), in f32, f16 and bf16 where the device offers
    /// them. Ends after `limit`. Calls `tell` with what it checks.
    ///
    /// # Errors
    ///
    /// The device cannot be used.
    pub fn of_device(asked: &str, limit: Duration, tell: impl FnMut(&str)) -> Result<Self, DeviceError> {
        let (device, name) = find(asked)?;
        Ok(Self::of_checks(all(), &device, name, limit, tell))
    }

    /// Like [`of_device`](Self::of_device), with any checks, on a device of this name.
    pub fn of_checks(
        checks: Vec<Check>,
        device: &Device,
        name: String,
        limit: Duration,
        tell: impl FnMut(&str),
    ) -> Self {
        let begun = Instant::now();
        let checked = run(checks, device, limit, tell);
        let seconds = begun.elapsed().as_secs_f64();
        let on_gpu = is_cube(device);
        let kernels = checked.into_iter().map(|checked| CheckedKernel::of(checked, &name, on_gpu)).collect();
        // A driver that fails has failed the checks, and must not end the program.
        let hardware = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hardware(device)));
        Self { device: name, hardware: hardware.unwrap_or_default(), seconds, kernels }
    }

    /// Returns a line for each kernel that is wrong or cannot be run, which says what was expected, what was found, and what
    /// to do.
    pub fn problems(&self) -> Vec<&str> {
        self.kernels.iter().filter_map(|kernel| kernel.problem.as_deref()).collect()
    }

    /// Returns whether a kernel still runs, in a thread: then end the process without the destructors of libraries, below
    /// which it would lose the memory that it uses.
    pub fn is_running(&self) -> bool {
        self.kernels.iter().any(|kernel| kernel.is_running)
    }

    /// Returns how many checks, or parts of them, the time did not reach.
    pub fn unreached(&self) -> usize {
        self.kernels.iter().filter(|kernel| kernel.is_unreached).count()
    }
}

impl CheckedKernel {
    fn of(checked: Checked, device: &str, on_gpu: bool) -> Self {
        let dtype = DType::from(checked.dtype).name();
        let (kernel, tolerance) = (checked.name, checked.tolerance);
        let about = format!("{kernel} in {dtype} on {device}");
        let advice = advice(&checked, on_gpu);
        let problem = match &checked.verdict {
            Verdict::Wrong(most) => Some(format!(
                "{about} is wrong: {} {:?}, element {}: expected {:.6e}, found {:.6e}; the relative error is {:.1e}, at \
                 most {tolerance:.1e} is allowed. {advice}",
                most.of, most.shape, most.element, most.expected, most.found, most.error,
            )),
            Verdict::Failed(reason) => {
                let reason = reason.lines().next().unwrap_or_default();
                Some(format!("{about} cannot be run: {reason}. {advice}"))
            }
            _ => None,
        };
        let (name, is_unreached) = match &checked.verdict {
            Verdict::Right if checked.real == Some(false) => {
                ("right; the shape of a model was not reached".into(), true)
            }
            Verdict::Right => ("right".into(), false),
            Verdict::Wrong(_) => ("WRONG".into(), false),
            Verdict::Failed(_) => ("failed".into(), false),
            Verdict::NotOffered => ("not offered".into(), false),
            Verdict::Off => ("off".into(), false),
            Verdict::NotReached => ("not reached".into(), true),
            Verdict::Unfinished(time) => (format!("not finished after {:.0} s", time.as_secs_f64()), true),
        };
        let by_burn = if checked.is_off && checked.verdict != Verdict::Off { "; off: by Burn" } else { "" };
        let (tflops, gb_per_s) = match checked.speed {
            Some(Speed::Operations(speed)) => (Some(speed / 1e12), None),
            Some(Speed::Bytes(speed)) => (None, Some(speed / 1e9)),
            None => (None, None),
        };
        let verdict = name + by_burn;
        let largest_relative_error = checked.error;
        let is_running = matches!(checked.verdict, Verdict::Unfinished(_));
        Self {
            kernel,
            dtype,
            verdict,
            largest_relative_error,
            tolerance,
            tflops,
            gb_per_s,
            problem,
            is_unreached,
            is_running,
        }
    }
}

/// Says what a user can do about a kernel that is wrong.
fn advice(checked: &Checked, on_gpu: bool) -> String {
    let other = "another dtype or another backend may be right";
    let Some(kernel) = checked.kernel else {
        return "Train without `Quantize`".into();
    };
    if checked.is_off {
        return format!("Burn's operations compute it, since {} turns it off; {other}", off::VARIABLE);
    }
    let instead = match kernel {
        Kernel::Flash => "products and kernels for rows of scores",
        _ => "Burn's operations",
    };
    let switch = format!("Turn it off: {}={}, and {instead} compute it", off::VARIABLE, kernel.name());
    match kernel {
        Kernel::Attention | Kernel::Losses | Kernel::Products if on_gpu => {
            format!("{switch}. Its products are CubeCL's: if it is still wrong then, {other}")
        }
        _ => switch,
    }
}

impl Display for KernelCheck {
    fn fmt(&self, f: &mut Formatter) -> std::fmt::Result {
        let hardware = self.hardware.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        writeln!(f, "kernels on {}{hardware}, {:.0} s\n", self.device, self.seconds)?;
        let names = ["kernel", "dtype", "error", "allowed", "speed", "verdict"];
        let mut rows = vec![names.map(String::from).to_vec()];
        for kernel in &self.kernels {
            let speed = match (kernel.tflops, kernel.gb_per_s) {
                (Some(tflops), _) => format!("{tflops:.3} TFLOP/s"),
                (_, Some(gb_per_s)) => format!("{gb_per_s:.1} GB/s"),
                _ => "-".into(),
            };
            rows.push(vec![
                kernel.kernel.into(),
                kernel.dtype.into(),
                kernel.largest_relative_error.map_or("-".into(), |error| format!("{error:.1e}")),
                format!("{:.1e}", kernel.tolerance),
                speed,
                kernel.verdict.clone(),
            ]);
        }
        table(f, &rows, 2..5)?;
        writeln!(
            f,
            "\nerror: the largest difference from the CPU in f64, relative to the largest number of a result, forward and\n\
             backward. speed: forward and backward on the shape of a model, as this device runs it now."
        )
    }
}

#[cfg(test)]
mod tests {
    use firebrick_kernels::check::Tolerance;

    use super::*;

    /// A function whose device adds `by` to a number.
    fn perturbed(by: f64) -> Check {
        let check = Check::new("doubled", &[], Tolerance::ROUNDED, move |run| {
            let x = run.leaf("x", [3]);
            let by = if run.is_reference() { 0.0 } else { by };
            run.result("twice x", x * 2.0 + by);
        });
        check.of(Kernel::Norms)
    }

    fn checked(check: Check) -> KernelCheck {
        let limit = Duration::from_secs(60);
        KernelCheck::of_checks(vec![check], &Device::flex(), "cpu:0".into(), limit, |_| ())
    }

    #[test]
    fn a_wrong_kernel_is_a_problem_that_says_what_to_turn_off() {
        let check = checked(perturbed(0.5));
        assert_eq!(check.problems().len(), 3);
        for (problem, dtype) in check.problems().into_iter().zip(["f32", "f16", "bf16"]) {
            for part in
                [&*format!("doubled in {dtype} on cpu:0 is wrong: twice x [3], element"), "expected", "found"]
            {
                assert!(problem.contains(part), "{problem}");
            }
            assert!(problem.contains("FIREBRICK_KERNELS_OFF=norms"), "{problem}");
        }
        assert!(check.to_string().contains("WRONG"), "{check}");
    }

    #[test]
    fn a_right_kernel_is_no_problem() {
        let check = checked(perturbed(0.0));
        assert_eq!((check.problems(), check.unreached()), (vec![], 0));
        let text = check.to_string();
        assert!(text.starts_with("kernels on cpu:0") && text.contains("right"), "{text}");
        let json = serde_json::to_value(&check).unwrap();
        assert_eq!((&json["device"], &json["kernels"][2]["dtype"]), (&"cpu:0".into(), &"bf16".into()));
    }

    #[test]
    fn what_was_not_reached_is_never_right() {
        let check = || perturbed(0.0).real(|run| run.operations(1));
        let none =
            KernelCheck::of_checks(vec![check()], &Device::flex(), "cpu:0".into(), Duration::ZERO, |_| ());
        assert_eq!((none.unreached(), &*none.kernels[0].verdict), (3, "not reached"));
        let parts = [(Verdict::Right, Some(false)), (Verdict::Right, Some(true)), (Verdict::Right, None)];
        let unreached = parts.map(|(verdict, real)| {
            let checked = Checked {
                name: "doubled",
                dtype: burn::tensor::FloatDType::F32,
                kernel: None,
                is_off: false,
                verdict,
                error: Some(0.0),
                tolerance: 1e-5,
                real,
                speed: None,
            };
            CheckedKernel::of(checked, "cpu:0", false).is_unreached
        });
        assert_eq!(unreached, [true, false, false]);
    }
}
