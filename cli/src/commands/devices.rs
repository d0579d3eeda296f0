//! The command `devices`: lists the devices of this machine, or checks the kernels of one.

use std::time::Duration;

use clap::Args;
use firebrick::device::{KernelCheck, Listing, Tuning, set_tuning};

use crate::RunError;
use crate::commands::exit::Exit;
use crate::commands::run_args::ReportFormat;
use crate::console::{insist, tell};

const EXAMPLES: &str = "\
Examples:
  firebrick devices                              # the devices, and what each can do
  firebrick devices --check                      # the kernels of the device that `auto` selects
  firebrick devices --check cuda:1 --tuning balanced --limit 600
  firebrick devices --check --report json
  FIREBRICK_KERNELS_OFF=attention firebrick train run.ron --device cuda

The check runs each kernel of Firebrick forward and backward in f32, f16 and bf16, where the device offers them: on small
tensors of odd shapes, and on one shape of a model, which is timed. The same functions on the CPU in f64 say what is right.
On a GPU, CubeCL multiplies matrices; with --tuning balanced it chooses the kernels that a run has.
Run it first on new hardware, and after an update of its driver. The first check of a GPU compiles its kernels, which may
take longer than the limit; what was not reached is listed, and a later check with a higher limit reaches it.

If a kernel is wrong, the exit code is 1, and standard error says what was expected, what was found, and what to turn off:
FIREBRICK_KERNELS_OFF names kernels, with commas between them, in whose place Burn's operations compute in every command.
Runs are slower then, and take more memory. Its names: activations, attention, casts, dropout, embedding, flash, losses,
many, norms, products, residual, rotary, transfers, updates; or all.";

/// `firebrick devices`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DevicesArgs {
    /// Checks every kernel on a device against the CPU, and measures its speed. DEVICE is a name from the list; without it,
    /// the one that `auto` selects.
    #[arg(long, value_name = "DEVICE", num_args = 0..=1, default_missing_value = "auto")]
    check: Option<String>,
    /// Begins no kernel that would end after so many seconds, and lists what was not reached.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "check")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    limit: u64,
    /// How thoroughly a GPU's products are tuned before they are timed: quick, balanced or full. A run tunes with `balanced`
    /// unless it says otherwise; that may take longer than the limit.
    #[arg(long, value_name = "LEVEL", default_value_t = Tuning::Quick, requires = "check")]
    tuning: Tuning,
    /// Format of the result: `json` makes the last line on standard output one JSON object.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    report: ReportFormat,
}

/// Runs the command.
///
/// # Errors
///
/// The device cannot be used.
pub(crate) fn devices(args: &DevicesArgs) -> Result<Exit, RunError> {
    let Some(device) = &args.check else {
        let listing = Listing::of_this_machine();
        args.report.print(&listing, || listing.to_string());
        return Ok(Exit::Done);
    };
    set_tuning(args.tuning);
    let limit = Duration::from_secs(args.limit);
    let check = KernelCheck::of_device(device, limit, |kernel| tell(&format!("checking {kernel}")))?;
    args.report.print(&check, || check.to_string());
    let exit = ended(&check, args.limit);
    if check.is_running() {
        end_at_once(exit);
    }
    Ok(exit)
}

/// Ends the process without the destructors of libraries. The usual end runs those of a GPU's driver, and a thread that still
/// computes then crashes the process: its code would be 139, whatever was found.
fn end_at_once(exit: Exit) -> ! {
    let code = exit.number().into();
    #[cfg(unix)]
    signal_hook::low_level::exit(code);
    #[cfg(not(unix))]
    std::process::exit(code)
}

/// Prints what is wrong, and what is not known.
fn ended(check: &KernelCheck, limit: u64) -> Exit {
    let unreached = check.unreached();
    if unreached > 0 {
        insist(&format!(
            "warning: {unreached} of {} rows were not reached in {limit} s, or not on the shape of a model: set a higher \
             --limit to know them",
            check.kernels.len()
        ));
    }
    let problems = check.problems();
    problems.iter().for_each(|problem| insist(&format!("error: {problem}")));
    if problems.is_empty() { Exit::Done } else { Exit::Wrong }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use firebrick_kernels::check::{Check, Tolerance};

    use super::*;

    /// Checks a function whose device adds `by` to a number.
    fn ends(by: f64) -> Exit {
        let check = Check::new("doubled", &[], Tolerance::ROUNDED, move |run| {
            let x = run.leaf("x", [3]);
            let by = if run.is_reference() { 0.0 } else { by };
            run.result("twice x", x * 2.0 + by);
        });
        let limit = Duration::from_secs(60);
        ended(&KernelCheck::of_checks(vec![check], &Device::flex(), "cpu:0".into(), limit, |_| ()), 60)
    }

    #[test]
    fn a_wrong_kernel_ends_the_command_with_its_own_exit() {
        assert_eq!(ends(0.0), Exit::Done);
        assert_eq!(ends(0.5), Exit::Wrong);
    }

    #[test]
    fn the_help_names_every_kernel() {
        for kernel in firebrick_kernels::off::Kernel::ALL {
            assert!(EXAMPLES.contains(kernel.name()), "{}", kernel.name());
        }
    }
}
