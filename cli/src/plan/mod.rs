//! Plans a run before it starts: what it will hold, send and compute, and which strategies would make it fit.
//!
//! ```text
//! mod.rs           Plan: the run as written, and all combinations of strategies beside it
//! combinations.rs  the combinations, cheapest first
//! parameters.rs    the dtypes that strategies give each parameter
//! trace.rs         memory of a pass, measured on the real model with few and narrow blocks
//! recomputed.rs    which blocks are recomputed, and the memory of a pass with them
//! longest.rs       the micro-batch that is traced
//! stand_in.rs      data and a tokenizer in place of the run's own
//! flops.rs         operations of an update
//! in_stages.rs     what the first rank of a pipeline has
//! within_a_batch.rs  what ranks that train on the same samples send each other
//! utilization.rs   the share of the devices' peak that a run uses
//! find_batch.rs    the largest micro-batch, by plan or by trial
//! cluster/         a cluster: its description, and the seconds of a collective on it
//! step_time.rs     the seconds of an update: what overlaps with what
//! on_cluster.rs    the run on a cluster, in each stage of ZeRO and on meshes
//! table.rs         a plan as text
//! ```

mod cluster;
mod combinations;
mod find_batch;
mod flops;
mod in_stages;
mod longest;
mod on_cluster;
mod parameters;
mod recomputed;
mod stand_in;
mod step_time;
mod table;
mod trace;
mod utilization;
mod within_a_batch;

use std::collections::BTreeMap;

use burn::tensor::FloatDType;
use firebrick_datasets::counted;
use firebrick_kernels::rows_of_logits;
use firebrick_world::Collective;
use serde::Serialize;

use crate::run::{Parts, Process, Shape, data_parallel, first_effect, shapes, strategies_line};
use crate::{DataRun, PlanError, Run, RunError, RunStrategy};
use firebrick::memory::{PassPeak, of_machine};
use firebrick::{AnyBatch, ByteSize, Data, TrainError};
use firebrick_strategies::Order;
use firebrick_strategies::cost::{Held, sent, sent_of_outside};

pub use cluster::{Cluster, Collectives, Group, Peak};
pub use find_batch::{FindBy, FoundBatch};
pub use firebrick_strategies::cost::Sent;
pub use on_cluster::{ClusterPlan, Timed};
pub(crate) use stand_in::StandIn;
pub use step_time::{StepTime, Traffic};

use combinations::combinations;
use find_batch::largest;
use flops::Work;
use in_stages::FirstRank;
use longest::{LOOKED_AT, Longest};
use parameters::ParamLayout;
use trace::{Traced, Tracer};
use within_a_batch::WithinABatch;

/// The most tokens of the smallest of the micro-batches that tell what any number of rows takes.
const MOST_ALIKE: usize = 1024;

/// The most rows of a micro-batch that a plan looks at.
const MOST_ROWS: usize = 1 << 20;

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
    /// The tokens of each row, if rows of one length stand for the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_tokens: Option<usize>,
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
    /// How long each rank of a pipeline waits for the others, as a share of the time in which it computes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// Floating-point operations of an update, over all ranks.
    pub flops: f64,
    /// Whether the run fits, if the budget is known.
    pub fits: Option<bool>,
    /// The most rows of a micro-batch that fit, if the budget is known and rows of one length stand for the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_micro: Option<u64>,
}

impl Run {
    /// Predicts what the run will hold, send and compute, as written and with each sensible combination of strategies.
    /// It reads the data and runs a few passes of the longest of its first micro-batches through models of few and narrow
    /// blocks on the CPU, of any weights: a folder may lack them. Reports progress through `say`.
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
        self.planned(Planning { budget, cluster: None, row_tokens: None, say: &say })
    }

    /// Like [`plan`](Self::plan), with rows of `tokens` in place of the data, and also of a tokenizer that is learned from the
    /// data or is not there. An encoder-decoder has as many tokens in the source and in the target. With a budget, each
    /// combination also has its largest micro-batch.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), and those of a task that is the program's own.
    pub fn plan_rows(
        &self,
        tokens: usize,
        budget: Option<ByteSize>,
        say: impl Fn(&str),
    ) -> Result<Plan, RunError> {
        let stand_in = StandIn::new(Some(tokens))?;
        let run = stand_in.of(self)?;
        run.planned(Planning { budget, cluster: None, row_tokens: Some(tokens), say: &say })
    }

    /// Like [`plan`](Self::plan), for as many ranks as the cluster has devices, whatever the run's `ranks`; also predicts
    /// the seconds of an update. Each rank keeps its micro-batches, so the global batch grows with the cluster. This
    /// machine's memory bounds nothing.
    ///
    /// # Errors
    ///
    /// Those of [`plan`](Self::plan), and [`ClusterError::NoPeak`](crate::ClusterError::NoPeak).
    pub fn plan_on(
        &self,
        cluster: &Cluster,
        budget: Option<ByteSize>,
        say: impl Fn(&str),
    ) -> Result<Plan, RunError> {
        let run = Self { ranks: Some(cluster.ranks() as usize), ..self.clone() };
        run.planned(Planning { budget, cluster: Some(cluster), row_tokens: None, say: &say })
    }
}

/// Returns the rows of the smallest of the micro-batches that tell what any number of rows takes: it has two chunks of logits,
/// unless a small vocabulary makes chunks long.
fn rows_alike(tokens: usize, vocabulary: usize) -> usize {
    (4 * rows_of_logits(vocabulary)).min(MOST_ALIKE).div_ceil(tokens.max(1))
}

/// What a run is planned for.
struct Planning<'a> {
    budget: Option<ByteSize>,
    cluster: Option<&'a Cluster>,
    /// The tokens of each row, if rows of one length stand for the data.
    row_tokens: Option<usize>,
    say: &'a dyn Fn(&str),
}

impl Run {
    fn planned(&self, planning: Planning<'_>) -> Result<Plan, RunError> {
        let Planning { budget, cluster, row_tokens, say } = planning;
        let (model, folder) = self.described_model()?;
        // Of what stands for the data there is nothing to tell.
        let tell = |line: &str| {
            if row_tokens.is_none() {
                say(line);
            }
        };
        let parts = self.prepare_unbounded(model, folder, tell)?;
        let micro_batches = DataRun::from(self).micro_batches();
        let per_step = micro_batches.saturating_mul(self.data_ranks());
        let longest = |data: &Data<AnyBatch>| Longest::of(data, per_step, LOOKED_AT);
        let of_batch = longest(&parts.data)?;
        tell(&format!(
            "the longest of the first micro-batches has {} and {}",
            counted(of_batch.samples, "sample"),
            counted(of_batch.tokens, "token")
        ));
        let in_update = (micro_batches * self.data_ranks()) as f64;
        let work = Work::of(&parts.config, &of_batch, in_update);
        let is_cpu = parts.device_name.starts_with("cpu");
        // The memory of this machine is not that of the cluster's devices.
        let limit = Limit::of(self, budget, is_cpu && cluster.is_none())?;
        let shapes = shapes(&parts.config, &self.strategies, &parts.fresh)?;
        let tokens = of_batch.mean_tokens * in_update;
        let rows = of_batch.samples;
        let traced = match row_tokens {
            Some(tokens) => {
                let few = rows_alike(tokens, parts.config.vocabulary());
                let of = |rows| longest(&parts.data.clone().micro_batch(rows));
                Traced::Rows([of_batch, of(few)?, of(few + 1)?])
            }
            None => Traced::Run(of_batch),
        };
        let tracer = Tracer::new(self, &parts, traced);
        let mut planner =
            Planner { run: self, parts: &parts, shapes: &shapes, tracer, rows, work, tokens, limit, say };
        // First, since it ends early if the peak of the devices is not known.
        let on_cluster = cluster.map(|cluster| planner.on_cluster(cluster)).transpose()?;
        let as_written = planner.plan(&self.strategies, &self.composed())?;
        let [has_bf16, has_f16] =
            [FloatDType::BF16, FloatDType::F16].map(|dtype| parts.device.supports_dtype(dtype));
        let mut planned = Vec::new();
        for combination in combinations(self, has_bf16, has_f16) {
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
            batch: self.batch_summary(),
            parameters: shapes.iter().map(Shape::elements).sum(),
            ranks: self.number_of_ranks() as u64,
            tokens,
            row_tokens,
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
struct Planner<'a> {
    run: &'a Run,
    parts: &'a Parts,
    shapes: &'a [Shape],
    tracer: Tracer<'a>,
    /// The rows of a micro-batch.
    rows: usize,
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
    pass: PassPeak,
    /// The share of the blocks that run again.
    recomputed: f64,
}

/// What the first of the ranks has of the model, and sends.
struct FirstShapes {
    /// Its stages, in a pipeline.
    first: Option<FirstRank>,
    /// Its parameters.
    shapes: Vec<Shape>,
    /// Those whose gradients it has: the first rank of a pipeline has none of what the last one alone reads.
    read: Vec<Shape>,
    /// What it sends to those that train on its samples.
    within: WithinABatch,
}

impl Planner<'_> {
    /// Traces a pass under these strategies, with micro-batches and ranks in their places.
    fn prepared(&mut self, composed: &[RunStrategy]) -> Result<PreparedList, RunError> {
        let layout = ParamLayout::of(self.run, composed, self.parts)?;
        let (pass, recomputed) = self.tracer.trace(composed, self.shapes, self.rows, self.say)?;
        let order =
            Order::of(composed.iter().map(|strategy| strategy.effects())).map_err(TrainError::from)?;
        let recomputed = if order.runs_blocks_again() { 1.0 } else { recomputed };
        Ok(PreparedList { layout, order, pass, recomputed })
    }

    /// Returns what the first of the ranks has of the model, and sends within a batch. `ranks` share its state.
    fn first_shapes(
        &self,
        order: &Order,
        layout: &ParamLayout,
        recomputed: f64,
        ranks: u64,
    ) -> Result<FirstShapes, RunError> {
        let first = FirstRank::of(order, self.tracer.paths(), self.shapes)?;
        let own = self.shapes.iter().filter(|shape| first.as_ref().is_none_or(|first| first.has(shape)));
        let own: Vec<_> = own.cloned().collect();
        let shapes: Vec<_> = own.iter().map(|shape| shape.of_share(order.tensor())).collect();
        let size_of = |shape: &Shape| layout.planned(shape).replica_bytes;
        let of_blocks = first.as_ref().map_or(1.0, FirstRank::share);
        let mut within = self.work.sent_within_a_batch(order, &own, [recomputed, of_blocks], size_of);
        let reads = |shape: &Shape| first.is_none() || shape.in_block || FirstRank::reads(self.shapes, shape);
        for shape in shapes.iter().filter(|shape| !shape.in_block) {
            let sent = sent_of_outside(&layout.planned(shape), reads(shape), order, ranks);
            within.outside.elements += sent.elements;
            within.outside.bytes += sent.bytes;
        }
        let (read, unread): (Vec<_>, Vec<_>) = shapes.iter().cloned().partition(reads);
        // It gathers them all the same.
        let mut unread = sent(unread.iter().map(|shape| layout.planned(shape)), order, 0, ranks);
        within.unread = unread.remove(&Collective::AllGather).unwrap_or_default();
        Ok(FirstShapes { first, shapes, read, within })
    }

    /// Plans these strategies: as `written`, and as `composed` with micro-batches and ranks in their places.
    fn plan(&mut self, written: &[RunStrategy], composed: &[RunStrategy]) -> Result<Planned, RunError> {
        let mut ranks = self.run.number_of_ranks() as u64;
        let mut composed = composed.to_vec();
        if ranks > 1 && first_effect(&composed, |effects| effects.reduces).is_none() {
            composed.push(data_parallel());
        }
        let PreparedList { layout, order, pass, recomputed } = self.prepared(&composed)?;
        // Those that hold the same parts of the model.
        ranks /= order.ranks_per_model() as u64;
        let FirstShapes { first, shapes, read, within } =
            self.first_shapes(&order, &layout, recomputed, ranks)?;
        let params = || shapes.iter().map(|shape| layout.planned(shape));
        let held = Held::of(params(), &order, self.run.steps_vary(), ranks, &*self.run.optimizer);
        let mut all = sent(read.iter().map(|shape| layout.planned(shape)), &order, 0, ranks);
        for (kind, more) in within.calls() {
            let sent = all.entry(kind).or_default();
            *sent = Sent { elements: sent.elements + more.elements, bytes: sent.bytes + more.bytes };
        }
        let sent = all;
        let host = if self.limit.with_host { held.host + held.host_gradients } else { 0 };
        let peak = held.peak(pass.activations as u64, pass.most as u64);
        let largest_micro = match self.limit.bytes.filter(|_| self.tracer.knows_rows()) {
            Some(limit) => {
                let last = largest(MOST_ROWS, |index| {
                    let (pass, _) = self.tracer.trace(&composed, self.shapes, index + 1, self.say)?;
                    Ok(held.peak(pass.activations as u64, pass.most as u64) + host <= limit)
                });
                match last {
                    Ok(last) => Some(last.map_or(0, |index| index as u64 + 1)),
                    Err(RunError::Plan(PlanError::Rows)) => None,
                    Err(error) => return Err(error),
                }
            }
            None => None,
        };
        Ok(Planned {
            strategies: strategies_line(written),
            master_bytes: held.master,
            replica_bytes: held.replica,
            averaged_bytes: held.averaged,
            gradient_bytes: held.gradients,
            optimizer_bytes: held.optimizer,
            activation_bytes: pass.activations as u64,
            host_bytes: held.host,
            host_gradient_bytes: held.host_gradients,
            disk_bytes: held.disk,
            disk_parameter_bytes: held.disk_parameters,
            between_steps_bytes: held.between(),
            peak_bytes: peak,
            sent_elements: sent.values().map(|sent| sent.elements).sum(),
            sent_bytes: sent.values().map(|sent| sent.bytes).sum(),
            sent,
            bubble: first.as_ref().map(FirstRank::bubble),
            flops: self.work.flops(self.shapes, recomputed),
            fits: self.limit.bytes.map(|limit| peak + host <= limit),
            largest_micro,
        })
    }
}
