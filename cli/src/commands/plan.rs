//! The command `plan`.

use std::path::Path;
use std::sync::Arc;

use clap::Args;

use crate::commands::run_args::RunArgs;
use crate::console::tell;
use crate::plan::{FindBy, StandIn};
use crate::run::{Process, Registries};
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
    /// Plans with rows of so many tokens in place of the run's data, and with a budget shows the largest micro-batch of each
    /// combination. An encoder-decoder reads and writes this many.
    ///
    /// A tokenizer that is not there, or is learned from the data, is not needed either. `--batch` says how many rows.
    /// Default for a `config.json` without a run file: 512.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    tokens: Option<u32>,
    /// Searches for the largest micro-batch that keeps the global batch: by plans, at once, or by real steps within the
    /// budget on the run's device. Tries growing sizes, and then bisects between the last two.
    #[arg(long, value_name = "BY", num_args = 0..=1, require_equals = true,
        default_missing_value = "plan")]
    find_batch: Option<FindBy>,
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
pub(crate) fn plan(args: &PlanArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    // A model of which only the configuration is known has no run file.
    let of_config = is_config(&args.run.file.run);
    let tokens = args.tokens.map(|tokens| tokens as usize);
    let stand_in = (of_config || tokens.is_some()).then(|| StandIn::new(tokens)).transpose()?;
    let run = match stand_in.as_ref().filter(|_| of_config) {
        Some(stand_in) => args.run.read_from(registries, &stand_in.run_file(&args.run.file.run)?)?,
        None => args.run.read(registries)?,
    };
    let leads = Process::this()?.leads();
    let say = |doing: &str| {
        if leads {
            tell(doing);
        }
    };
    if let Some(by) = args.find_batch {
        let run = match &stand_in {
            Some(stand_in) => stand_in.of(&run)?,
            None => run,
        };
        let found = run.find_batch(by, args.budget, say)?;
        if leads {
            let text = || format!("batch: (micro: {}, accumulate: {}),\n", found.micro, found.accumulate);
            args.run.file.report.print(&found, text);
        }
        return Ok(());
    }
    if !leads {
        return Ok(());
    }
    let plan = match (&args.cluster, &stand_in) {
        (Some(cluster), None) => run.plan_on(cluster, args.budget, say)?,
        (Some(cluster), Some(stand_in)) => stand_in.of(&run)?.plan_on(cluster, args.budget, say)?,
        (None, Some(stand_in)) => run.plan_rows(stand_in.tokens(), args.budget, say)?,
        (None, None) => run.plan(args.budget, say)?,
    };
    args.run.file.report.print(&plan, || plan.summary(args.details));
    Ok(())
}

/// Returns whether this is the configuration of a model and not a run file: `config.json` by whatever name, its folder, or
/// its name on the Hub.
fn is_config(path: &Path) -> bool {
    let is_json = path.extension().is_some_and(|ending| ending == "json");
    is_json
        || path.join("config.json").is_file()
        || path.to_str().is_some_and(|path| path.starts_with("hub:"))
}
