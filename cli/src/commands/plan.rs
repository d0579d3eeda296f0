//! The command `plan`.

use clap::Args;

use crate::commands::run_args::RunArgs;
use crate::console::tell;
use crate::run::Process;
use crate::{Cluster, RunError};
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
    /// Predicts the seconds of an update on a cluster, such as
    /// `nodes=16,gpus=8,intra=450GB/s,inter=50GB/s,peak=H100`, for the run as written and in each stage of ZeRO.
    ///
    /// Each device is a rank, in place of the run's `ranks`. `intra` is what a device can send within its node, and
    /// `inter` what a node can send to the others, per second and in one direction, in GB/s or Gbit/s. You may add
    /// `latency=10us` of a hop; `mfu=0.4`, the share of the peak that computation reaches, which a run on one device
    /// shows; `peak`, the peak of a device in FLOP/s or its name, by default that of the run's device; and
    /// `collectives=ring`, as NCCL sends, for `direct`, as ranks send through host memory.
    ///
    /// Computation overlaps with communication as it does in this version: stage 3 gathers a block while the one
    /// before it computes, stages 1 and 2 gather the new parameters while the next forward pass computes, and stages 2
    /// and 3 sum a block's gradients while the backward pass goes on. The row `stage 3
    /// within 8` has groups of one node, as `Zero(stage: 3, within: 8)`.
    #[arg(long, value_name = "CLUSTER", conflicts_with_all = ["ranks", "find_batch"])]
    cluster: Option<Cluster>,
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
    let plan = match &args.cluster {
        Some(cluster) => run.plan_on(cluster, args.budget, say)?,
        None => run.plan(args.budget, say)?,
    };
    args.run.file.report.print(&plan, || plan.summary(args.details));
    Ok(())
}
