//! Plans a run before it starts: what it will hold, send and compute, and which strategies would make it fit.
//!
//! ```text
//! mod.rs           Plan: the run as written, and all combinations of strategies beside it
//! combinations.rs  the combinations, cheapest first
//! parameters.rs    the dtypes that strategies give each parameter
//! order.rs         the place of each strategy in a list, as far as bytes depend on it
//! trace.rs         memory of a pass, measured on the real model with few blocks
//! recomputed.rs    which blocks are recomputed, and the memory of a pass with them
//! longest.rs       the micro-batch that is traced
//! flops.rs         operations of an update
//! utilization.rs   the share of the devices' peak that a run uses
//! find_batch.rs    the largest micro-batch, by trial
//! cluster/         a cluster: its description, and the seconds of a collective on it
//! step_time.rs     the seconds of an update: what overlaps with what
//! on_cluster.rs    the run on a cluster, in each stage of ZeRO
//! table.rs         a plan as text
//! error.rs         why a run cannot be planned
//! ```

mod cluster;
mod combinations;
mod error;
mod find_batch;
mod flops;
mod longest;
mod on_cluster;
mod parameters;
mod recomputed;
mod step_time;
mod table;
mod trace;
mod utilization;

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use firebrick_datasets::counted;
use firebrick_world::Collective;
use serde::Serialize;

use crate::run::{Parts, Process, Shape, data_parallel, first_effect, shapes, strategies_line};
use crate::{DataRun, Run, RunError, RunStrategy};
use firebrick::memory::of_machine;
use firebrick::{ByteSize, TrainError};
use firebrick_models::family::Trainable;
use firebrick_models::pretrained::Folder;
use firebrick_strategies::Order;
use firebrick_strategies::cost::{Held, sent};

pub use cluster::{Cluster, ClusterError, Collectives, Group, Peak};
pub use error::PlanError;
pub(crate) use find_batch::Finding;
pub use find_batch::FoundBatch;
pub use firebrick_strategies::cost::Sent;
pub use on_cluster::{ClusterPlan, Timed};
pub use step_time::{StepTime, Traffic};

use combinations::combinations;
use flops::Work;
use longest::{LOOKED_AT, Longest};
use parameters::ParamLayout;
use recomputed::Traced;
use trace::Tracer;

/// What a run will hold, send and compute.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// A description of the global batch.
    pub batch: String,
    /// Number of parameters; tied parameters count once.
    pub parameters: u64,
    /// Ranks that train together.
    pub ranks: u64,
    /// Average number of tokens in an update, padding included, over all ranks.
    pub tokens: f64,
    /// The training device.
    pub device: String,
    /// Bytes that a rank may have on the device, if known.
    pub budget_bytes: Option<u64>,
    /// Whether the device's memory is the host's, so that offloaded state counts too.
    pub host_is_device: bool,
    /// The run as written.
    pub as_written: Planned,
    /// Each sensible combination of strategies, cheapest first.
    pub combinations: Vec<Planned>,
    /// The index of the first combination that fits.
    pub recommended: Option<usize>,
    /// The seconds of an update, if the run is planned for a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_cluster: Option<ClusterPlan>,
}

/// The run with one list of strategies. Bytes are those of the first rank, which holds at least as much as any other.
#[derive(Clone, Debug, Serialize)]
pub struct Planned {
    /// The list, as a line of a run file.
    pub strategies: String,
    /// Counted as in [`Report::master_bytes`](firebrick::Report::master_bytes).
    pub master_bytes: u64,
    /// Counted as in [`Report::replica_bytes`](firebrick::Report::replica_bytes).
    pub replica_bytes: u64,
    /// Counted as in [`Report::averaged_bytes`](firebrick::Report::averaged_bytes).
    pub averaged_bytes: u64,
    /// Counted as in [`Report::gradient_bytes`](firebrick::Report::gradient_bytes).
    pub gradient_bytes: u64,
    /// Counted as in [`Report::optimizer_bytes`](firebrick::Report::optimizer_bytes).
    pub optimizer_bytes: u64,
    /// Counted as in [`Report::activation_bytes`](firebrick::Report::activation_bytes), traced on the CPU.
    pub activation_bytes: u64,
    /// Counted as in [`Report::host_bytes`](firebrick::Report::host_bytes).
    pub host_bytes: u64,
    /// The most bytes of gradients on the host during a step, beside them.
    pub host_gradient_bytes: u64,
    /// Counted as in [`DiskBytes::state_bytes`](firebrick::DiskBytes::state_bytes).
    pub disk_bytes: u64,
    /// Counted as in [`DiskBytes::parameter_bytes`](firebrick::DiskBytes::parameter_bytes).
    pub disk_parameter_bytes: u64,
    /// Bytes on the device between two steps.
    pub between_steps_bytes: u64,
    /// Most bytes on the device during a pass or an update, as `device_budget` counts them.
    pub peak_bytes: u64,
    /// What the first rank sends in an update, by the kind of call.
    pub sent: BTreeMap<Collective, Sent>,
    /// Elements sent, over all kinds.
    pub sent_elements: u64,
    /// Bytes sent, over all kinds.
    pub sent_bytes: u64,
    /// Floating-point operations of an update, over all ranks.
    pub flops: f64,
    /// Whether the run fits, if the budget is known.
    pub fits: Option<bool>,
}

impl Run {
    /// Predicts what the run will hold, send and compute, as written and with each sensible combination of strategies.
    /// It reads the data and runs a few passes of the longest of its first micro-batches through a model of few blocks
    /// on the CPU, of any weights: a folder may lack them. Reports progress through `say`.
    ///
    /// A rank's budget on the device is `budget`, otherwise the run's `device_budget`, otherwise, on the CPU, the
    /// rank's share of the machine's memory.
    ///
    /// Activation bytes are counted if the program installs [`memory::Counting`](firebrick::memory::Counting), and are 0
    /// otherwise.
    ///
    /// # Errors
    ///
    /// Those of [`launch`](Self::launch) before its first step, and [`PlanError`].
    pub fn plan(&self, budget: Option<ByteSize>, say: impl Fn(&str)) -> Result<Plan, RunError> {
        let (model, folder) = self.described_model()?;
        model.plan(Planning { run: self, budget, cluster: None, say: &say }, folder)
    }

    /// Like [`plan`](Self::plan), for as many ranks as the cluster has devices, whatever the run's `ranks`; also predicts
    /// the seconds of an update. Each rank keeps its micro-batches, so the global batch grows with the cluster. This
    /// machine's memory bounds nothing.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), and [`ClusterError::NoPeak`].
    pub fn plan_on(
        &self,
        cluster: &Cluster,
        budget: Option<ByteSize>,
        say: impl Fn(&str),
    ) -> Result<Plan, RunError> {
        let run = Self { ranks: Some(cluster.ranks() as usize), ..self.clone() };
        let (model, folder) = run.described_model()?;
        model.plan(Planning { run: &run, budget, cluster: Some(cluster), say: &say }, folder)
    }
}

/// A run to be planned, with a model of any type.
pub(crate) struct Planning<'a> {
    run: &'a Run,
    budget: Option<ByteSize>,
    cluster: Option<&'a Cluster>,
    say: &'a dyn Fn(&str),
}

impl Planning<'_> {
    pub fn with<M: Trainable>(self, folder: Option<Folder>) -> Result<Plan, RunError> {
        let Self { run, budget, cluster, say } = self;
        let parts = run.prepare_unbounded::<M>(folder, say)?;
        let micro_batches = DataRun::from(run).micro_batches();
        let per_window = micro_batches.saturating_mul(run.number_of_ranks());
        let longest = Longest::of(&parts.data, per_window, LOOKED_AT, M::source_tokens, M::rows)?;
        say(&format!(
            "the longest of the first micro-batches has {} and {}",
            counted(longest.samples, "sample"),
            counted(longest.tokens, "token")
        ));
        let in_update = (micro_batches * run.number_of_ranks()) as f64;
        let work = Work::of::<M>(&parts.config, &longest, in_update);
        let is_cpu = parts.device_name.starts_with("cpu");
        // The memory of this machine is not that of the cluster's devices.
        let limit = Limit::of(run, budget, is_cpu && cluster.is_none())?;
        let shapes = shapes::<M>(&parts.config, &run.strategies, &parts.fresh)?;
        let tracer = Tracer::<M>::new(run, &parts, &longest);
        tracer.require_room()?;
        let tokens = longest.mean_tokens * in_update;
        let mut planner = Planner { run, parts: &parts, shapes: &shapes, tracer, work, tokens, limit, say };
        // First, since it ends early if the peak of the devices is not known.
        let on_cluster = cluster.map(|cluster| planner.on_cluster(cluster)).transpose()?;
        let as_written = planner.plan(&run.strategies, &run.composed())?;
        let [has_bf16, has_f16] =
            [FloatDType::BF16, FloatDType::F16].map(|dtype| parts.device.supports_dtype(dtype));
        let mut planned = Vec::new();
        for combination in combinations(run, has_bf16, has_f16) {
            match planner.plan(&combination.strategies, &combination.strategies) {
                Ok(one) => planned.push(one),
                // Skips combinations that the device, the optimizer or the model does not support.
                Err(RunError::Train(
                    TrainError::Strategy(_)
                    | TrainError::NotElementwise { .. }
                    | TrainError::TrialUpdate { .. },
                )) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(Plan {
            batch: run.batch_summary(),
            parameters: shapes.iter().map(Shape::elements).sum(),
            ranks: run.number_of_ranks() as u64,
            tokens,
            device: parts.device_name.clone(),
            budget_bytes: limit.bytes,
            host_is_device: limit.with_host,
            as_written,
            recommended: planned.iter().position(|one| one.fits == Some(true)),
            combinations: planned,
            on_cluster,
        })
    }
}

/// The budget of a rank.
#[derive(Clone, Copy)]
struct Limit {
    bytes: Option<u64>,
    /// Whether the budget covers all memory, including the host's.
    with_host: bool,
}

impl Limit {
    fn of(run: &Run, budget: Option<ByteSize>, is_cpu: bool) -> Result<Self, RunError> {
        if let Some(ByteSize(bytes)) = budget.or(run.device_budget) {
            return Ok(Self { bytes: Some(bytes as u64), with_host: false });
        }
        let here = (run.number_of_ranks() / Process::this()?.of).max(1) as u64;
        let bytes = of_machine().filter(|_| is_cpu).map(|bytes| bytes / here);
        Ok(Self { bytes, with_host: is_cpu })
    }
}

/// What the plans of all lists of strategies share.
struct Planner<'a, M: Trainable> {
    run: &'a Run,
    parts: &'a Parts<M>,
    shapes: &'a [Shape],
    tracer: Tracer<'a, M>,
    work: Work,
    /// Tokens of an update on average, padding included, over all ranks.
    tokens: f64,
    limit: Limit,
    say: &'a dyn Fn(&str),
}

/// A list of strategies, as far as plans depend on it.
struct PreparedList {
    layout: ParamLayout,
    order: Order,
    traced: Traced,
    /// The share of the blocks that run again.
    recomputed: f64,
}

impl<M: Trainable> Planner<'_, M> {
    /// Traces a pass under these strategies, with micro-batches and ranks in their places.
    fn prepared(&mut self, composed: &[RunStrategy]) -> Result<PreparedList, RunError> {
        let layout = ParamLayout::of(self.run, composed, self.parts)?;
        let (traced, recomputed) = self.tracer.trace(composed, self.say)?;
        let order =
            Order::of(composed.iter().map(|strategy| strategy.effects())).map_err(TrainError::from)?;
        let recomputed = if order.runs_blocks_again() { 1.0 } else { recomputed };
        Ok(PreparedList { layout, order, traced, recomputed })
    }

    /// Plans these strategies: as `written`, and as `composed` with micro-batches and ranks in their places.
    fn plan(&mut self, written: &[RunStrategy], composed: &[RunStrategy]) -> Result<Planned, RunError> {
        let ranks = self.run.number_of_ranks() as u64;
        let mut composed = composed.to_vec();
        if ranks > 1 && first_effect(&composed, |effects| effects.reduces).is_none() {
            composed.push(data_parallel());
        }
        let PreparedList { layout, order, traced, recomputed } = self.prepared(&composed)?;
        let params = || self.shapes.iter().map(|shape| layout.planned(shape));
        let held = Held::of(params(), &order, self.run.windows_vary(), ranks, &*self.run.optimizer);
        let sent = sent(params(), &order, 0, ranks);
        let peak = held.peak(traced.activations, traced.most);
        let host = if self.limit.with_host { held.host + held.host_gradients } else { 0 };
        Ok(Planned {
            strategies: strategies_line(written),
            master_bytes: held.master,
            replica_bytes: held.replica,
            averaged_bytes: held.averaged,
            gradient_bytes: held.gradients,
            optimizer_bytes: held.optimizer,
            activation_bytes: traced.activations,
            host_bytes: held.host,
            host_gradient_bytes: held.host_gradients,
            disk_bytes: held.disk,
            disk_parameter_bytes: held.disk_parameters,
            between_steps_bytes: held.between(),
            peak_bytes: peak,
            sent_elements: sent.values().map(|sent| sent.elements).sum(),
            sent_bytes: sent.values().map(|sent| sent.bytes).sum(),
            sent,
            flops: self.work.flops(self.shapes, recomputed),
            fits: self.limit.bytes.map(|limit| peak + host <= limit),
        })
    }
}
