//! The command `plan`.

use clap::Args;

use crate::RunError;
use crate::commands::run_args::RunArgs;
use crate::console::tell;
use crate::run::Process;
use firebrick::ByteSize;

/// `firebrick plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    run: RunArgs,
    /// The budget of a rank on the device, such as 24GB. Default: the run's `device_budget`, or on the CPU each rank's
    /// part of the machine's memory.
    ///
    /// With it you can plan a GPU run on a machine without a GPU: `--device cpu --budget 24GB`.
    #[arg(long, value_name = "BYTES")]
    budget: Option<ByteSize>,
    /// Searches for the largest micro-batch that keeps the global batch, with real steps within the budget: doubles the
    /// size, and then bisects between the last two sizes.
    #[arg(long)]
    find_batch: bool,
    /// Shows the parts of the run's memory, and all combinations of strategies with their bytes, traffic and
    /// operations. `--report json` always has them.
    #[arg(long)]
    details: bool,
}

/// Runs `firebrick plan`.
pub(crate) fn plan(args: &PlanArgs) -> Result<(), RunError> {
    let run = args.run.read()?;
    let leads = Process::this()?.leads();
    let say = |doing: &str| {
        if leads {
            tell(doing);
        }
    };
    if args.find_batch {
        let found = run.find_batch(args.budget, say)?;
        if leads {
            let text = || format!("batch: (micro: {}, accumulate: {}),\n", found.micro, found.accumulate);
            args.run.file.report.print(&found, text);
        }
        return Ok(());
    }
    if !leads {
        return Ok(());
    }
    let plan = run.plan(args.budget, say)?;
    args.run.file.report.print(&plan, || plan.summary(args.details));
    Ok(())
}
