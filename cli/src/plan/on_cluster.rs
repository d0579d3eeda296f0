//! The seconds of a run's update on a cluster: as written, in each stage of ZeRO, with hybrid sharding, and on meshes.

use firebrick_strategies::Order;
use firebrick_strategies::cost::Held;
use serde::Serialize;

use super::cluster::{Cluster, Collectives, Peak};
use super::combinations::{Axes, at_stage, on_mesh};
use super::step_time::{SUMS_OVERLAP, Step, StepTime, Traffic};
use super::table::{operations, pasted};
use super::{FirstShapes, Planner};
use crate::run::{Shape, strategies_line};
use crate::{ClusterError, PlanError, RunError, RunStrategy};
use firebrick::{ByteSize, TrainError, device};

/// What an update takes on a cluster.
#[derive(Clone, Debug, Serialize)]
pub struct ClusterPlan {
    /// The cluster.
    pub cluster: Cluster,
    /// Operations per second of a device at its peak, in the dtype of the run's passes.
    pub peak_flops: f64,
    /// The run as written, in each stage of ZeRO that its strategies permit, with hybrid sharding, and on meshes, with as many samples
    /// in an update.
    pub rows: Vec<Timed>,
    /// The row of the shortest update, of those that fit if it is known which do.
    pub fastest: Option<usize>,
}

/// The update of a run with one list of strategies.
#[derive(Clone, Debug, Serialize)]
pub struct Timed {
    /// What the table calls it.
    pub name: String,
    /// The list, as a line of a run file.
    pub strategies: String,
    /// Bytes of a rank at the peak.
    pub peak_bytes: u64,
    /// Whether they fit, if a budget is known.
    pub fits: Option<bool>,
    /// Its seconds.
    #[serde(flatten)]
    pub time: StepTime,
    /// Tokens per second of all ranks, padding included.
    pub tokens_per_second: f64,
    /// The share of all devices' peak that the model needs, recomputed operations not included.
    pub mfu: f64,
    /// What the first rank sends of parameters and gradients.
    pub sent: Traffic,
    /// The bytes of all that it sends, also to those that train on its samples.
    pub sent_bytes: u64,
}

impl Planner<'_> {
    /// Returns the peak of a device of the cluster for these strategies.
    ///
    /// # Errors
    ///
    /// It is not known.
    pub(super) fn peak(&self, cluster: &Cluster, order: &Order) -> Result<f64, RunError> {
        let dtype = order.training_dtype();
        let peak = match &cluster.peak {
            Some(peak) => Some(peak.flops(dtype).map_err(PlanError::from)?),
            None => self.run.peak_flops.or_else(|| device::peak_flops(&self.parts.device, dtype)),
        };
        let name = || self.parts.device_name.clone();
        let unknown = || ClusterError::NoPeak { device: name(), dtype: format!("{dtype:?}") };
        Ok(peak.ok_or_else(unknown).map_err(PlanError::from)?)
    }

    /// Returns whether a device of the cluster multiplies 8-bit numbers at twice the rate of bf16. Of a peak that the user
    /// states it is not known.
    fn doubles_in_fp8(&self, cluster: &Cluster) -> bool {
        match &cluster.peak {
            Some(Peak::Device(name)) => device::doubles_in_fp8_of(name),
            Some(Peak::Flops(_)) => false,
            None => self.run.peak_flops.is_none() && device::doubles_in_fp8(&self.parts.device),
        }
    }

    /// Plans the run's update on the cluster. The run has as many ranks as it.
    ///
    /// # Errors
    ///
    /// The peak of the devices is not known, or the model fails.
    pub(super) fn on_cluster(&mut self, cluster: &Cluster) -> Result<ClusterPlan, RunError> {
        let composed = self.run.composed();
        let order = Order::of(composed.iter().map(|one| one.effects())).map_err(TrainError::from)?;
        let peak_flops = self.peak(cluster, &order)?;
        let mut rows = vec![self.timed("as written".into(), &composed, cluster)?];
        let stages = (0..=3).map(|stage| (format!("stage {stage}"), stage, None));
        let is_hybrid = cluster.nodes > 1 && cluster.gpus > 1;
        let hybrid = (format!("stage 3 within {}", cluster.gpus), 3, Some(cluster.gpus as usize));
        let stages = stages.filter(|_| cluster.ranks() > 1).chain(is_hybrid.then_some(hybrid));
        let stages = stages.map(|(name, stage, within)| (name, at_stage(self.run, stage, within)));
        let divides_tokens = self.parts.config.divides_tokens() && self.run.task.reference().is_none();
        let meshes = meshes(cluster, self.tracer.blocks(), divides_tokens);
        let meshes =
            meshes.into_iter().filter_map(|axes| Some((axes.to_string(), on_mesh(self.run, &order, axes)?)));
        for (name, list) in stages.chain(meshes).collect::<Vec<_>>() {
            match self.timed(name, &list, cluster) {
                Ok(timed) => rows.push(timed),
                // The device, the optimizer or the other strategies do not permit this stage.
                Err(RunError::Train(
                    TrainError::Strategy(_)
                    | TrainError::NotElementwise { .. }
                    | TrainError::TrialUpdate { .. },
                )) => (),
                Err(error) => return Err(error),
            }
        }
        let fitting = rows.iter().enumerate().filter(|(_, row)| row.fits != Some(false));
        let fastest = fitting
            .min_by(|(_, one), (_, other)| one.time.step_seconds.total_cmp(&other.time.step_seconds))
            .map(|(row, _)| row);
        Ok(ClusterPlan { cluster: cluster.clone(), peak_flops, rows, fastest })
    }

    fn timed(
        &mut self,
        name: String,
        composed: &[RunStrategy],
        cluster: &Cluster,
    ) -> Result<Timed, RunError> {
        let prepared = self.prepared(composed)?;
        let peak = self.peak(cluster, &prepared.order)?;
        let ranks = cluster.ranks() / prepared.order.ranks_per_model() as u64;
        let FirstShapes { first, shapes, read, within } =
            self.first_shapes(&prepared.order, &prepared.layout, prepared.recomputed, ranks)?;
        let params = || read.iter().map(|shape| prepared.layout.planned(shape));
        let sent = Traffic::of(params, &prepared.order, ranks);
        let all = shapes.iter().map(|shape| prepared.layout.planned(shape));
        let held = Held::of(all, &prepared.order, self.run.steps_vary(), ranks, &*self.run.optimizer);
        let peak_bytes = held.peak(prepared.pass.activations as u64, prepared.pass.most as u64);
        let blocks = self.tracer.blocks();
        let passes = cluster.ranks() as f64 * prepared.order.micro_batches() as f64;
        let doubles = prepared.order.multiplies_in_fp8() && self.doubles_in_fp8(cluster);
        let speed = |shape: &Shape| if doubles && shape.is_linear_in_fp8() { 2.0 } else { 1.0 };
        let step = Step {
            cluster,
            order: &prepared.order,
            blocks: first.map_or(blocks, |first| first.layers(blocks)) as u64,
            flops: self.work.of_passes(self.shapes, prepared.recomputed, speed).divided_by(passes),
            speed: peak * cluster.mfu,
            traffic: &sent,
            within: &within,
            sums_overlap: SUMS_OVERLAP,
        };
        let time = step.time();
        let of_peak = peak * cluster.ranks() as f64 * time.step_seconds;
        Ok(Timed {
            name,
            strategies: strategies_line(composed),
            peak_bytes,
            fits: self.limit.bytes.map(|limit| peak_bytes <= limit),
            time,
            tokens_per_second: self.tokens / time.step_seconds,
            mfu: self.work.flops(self.shapes, 0.0) / of_peak,
            sent_bytes: sent.bytes() + within.calls().map(|(_, sent)| sent.bytes).sum::<u64>(),
            sent,
        })
    }
}

/// The axes that a cluster is timed with, of a model with so many blocks, which divides its tokens or not: tensor within a node,
/// stages across nodes or within the only one, ranks that share tokens within a node of several, and either across nodes that divide
/// layers.
fn meshes(cluster: &Cluster, blocks: usize, divides_tokens: bool) -> Vec<Axes> {
    let divisors = |all: u64, most: usize| {
        let (all, numbers) = (all as usize, 2..=most.min(all as usize));
        numbers.filter(|ranks| all.is_multiple_of(*ranks)).collect::<Vec<_>>()
    };
    let most_shares = if divides_tokens { usize::MAX } else { 1 };
    let one = Axes { tensor: 1, pipeline: 1, context: 1 };
    let in_node = divisors(cluster.gpus, usize::MAX);
    let stages = divisors(if cluster.nodes > 1 { cluster.nodes } else { cluster.gpus }, blocks);
    let shares = divisors(if cluster.gpus > 1 { cluster.gpus } else { cluster.nodes }, most_shares);
    let node = in_node.last().map_or(one, |all| Axes { tensor: *all, ..one });
    let mut found: Vec<_> = in_node.into_iter().map(|tensor| Axes { tensor, ..one }).collect();
    found.extend(stages.iter().map(|pipeline| Axes { pipeline: *pipeline, ..one }));
    found.extend(shares.into_iter().map(|context| Axes { context, ..one }));
    if cluster.nodes > 1 && node != one {
        found.extend(stages.into_iter().map(|pipeline| Axes { pipeline, ..node }));
        let shares = divisors(cluster.nodes, most_shares);
        found.extend(shares.into_iter().map(|context| Axes { context, ..node }));
    }
    found
}

/// Formats a number from 1 to 1000 in three digits.
fn digits(value: f64) -> String {
    match value {
        value if value >= 99.95 => format!("{value:.0}"),
        value if value >= 9.995 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// Formats seconds in three digits.
fn time(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".into(),
        seconds if seconds >= 0.9995 => digits(seconds) + " s",
        seconds if seconds >= 0.9995e-3 => digits(seconds * 1e3) + " ms",
        seconds => digits(seconds * 1e6) + " us",
    }
}

/// Formats a count in three digits.
fn count(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.iter().find(|(factor, _)| value >= *factor) {
        Some((factor, unit)) => format!("{} {unit}", digits(value / factor)),
        None => digits(value),
    }
}

fn rate(bytes_per_second: f64) -> String {
    ByteSize(bytes_per_second as usize).to_string() + "/s"
}

impl ClusterPlan {
    /// Returns the plan as text, in 80 columns.
    pub(super) fn summary(&self) -> String {
        let Cluster { nodes, gpus, intra, inter, mfu, collectives, .. } = &self.cluster;
        let mut text = format!(
            "{nodes} x {gpus} = {} ranks: {} from a device within its node",
            nodes * gpus,
            rate(*intra)
        );
        if *nodes > 1 {
            text += &format!(",\n{} from a node to the others", rate(*inter));
        }
        let collectives = match collectives {
            Collectives::Direct => "each rank sends to each other one",
            Collectives::Ring => "collectives are rings",
        };
        text += &format!(";\n{collectives}; computation at {mfu} of {}/s\n", operations(self.peak_flops));
        let line = |name: &str, cells: [String; 7]| {
            cells.iter().fold(format!("{name:<22}"), |line, cell| line + &format!("{cell:>8}")) + "\n"
        };
        let names = ["peak", "compute", "comm.", "exposed", "step", "tok/s", "MFU"];
        text += &line("an update", names.map(String::from));
        for Timed { name, peak_bytes, time, tokens_per_second, mfu, .. } in &self.rows {
            let seconds =
                [time.compute_seconds, time.communication_seconds, time.exposed_seconds, time.step_seconds];
            let [compute, communication, exposed, step] = seconds.map(self::time);
            let mfu = format!("{:.1}%", 100.0 * mfu);
            let (peak, tokens) = (ByteSize(*peak_bytes as usize).to_string(), count(*tokens_per_second));
            text += &line(name, [peak, compute, communication, exposed, step, tokens, mfu]);
        }
        let among = self.fastest.filter(|_| self.rows.len() > 1);
        if let Some(row) = among.and_then(|fastest| self.rows.get(fastest)) {
            let of = if row.fits.is_some() { "of those that fit" } else { "if it fits (see --budget)" };
            text += &format!("fastest {of}: {}\n{}", row.name, pasted(&row.strategies));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meshes_stay_within_nodes_and_go_across_them() {
        let of = |text: &str, blocks, divides_tokens| -> Vec<_> {
            let found = meshes(&text.parse().unwrap(), blocks, divides_tokens);
            found.into_iter().map(|Axes { tensor, pipeline, context }| [tensor, pipeline, context]).collect()
        };
        let one = of("nodes=1,gpus=4,intra=1GB/s", 12, true);
        assert_eq!(one, [[2, 1, 1], [4, 1, 1], [1, 2, 1], [1, 4, 1], [1, 1, 2], [1, 1, 4]]);
        let many = of("nodes=4,gpus=6,intra=1GB/s,inter=1GB/s", 3, false);
        assert_eq!(many, [[2, 1, 1], [3, 1, 1], [6, 1, 1], [1, 2, 1], [6, 2, 1]]);
        let shares = of("nodes=2,gpus=2,intra=1GB/s,inter=1GB/s", 1, true);
        assert_eq!(shares, [[2, 1, 1], [1, 1, 2], [2, 1, 2]]);
        assert_eq!(of("nodes=1,gpus=1,intra=1GB/s", 12, true), [[0; 3]; 0]);
    }

    #[test]
    fn the_table_fits_the_page() {
        let time = |seconds: f64| StepTime {
            compute_seconds: seconds,
            communication_seconds: seconds * 123.0,
            exposed_seconds: 0.0,
            step_seconds: seconds * 1234.0,
        };
        let timed = |name: &str, seconds: f64| Timed {
            name: name.into(),
            strategies: "strategies: [],".into(),
            peak_bytes: 12_345_678_901,
            fits: Some(true),
            time: time(seconds),
            tokens_per_second: 123_456.0 / seconds,
            mfu: 0.312_4,
            sent: Traffic::default(),
            sent_bytes: 0,
        };
        let cluster = "nodes=100,gpus=1000,intra=450GB/s,inter=3200Gbit/s".parse().unwrap();
        let rows = vec![timed("as written", 1.0), timed("stage 3 within 100000", 0.001), timed("x", 99.96)];
        let text = ClusterPlan { cluster, peak_flops: 989.4e12, rows, fastest: Some(1) }.summary();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let first = "100 x 1000 = 100000 ranks: 450 GB/s from a device within its node,\n\
                     400 GB/s from a node to the others;\n\
                     each rank sends to each other one; computation at 0.4 of 989 TFLOP/s\n";
        assert!(text.starts_with(first), "{text}");
        let row = "as written             12.3 GB  1.00 s   123 s     0 s  1234 s   123 k   31.2%\n";
        assert!(text.contains(row), "{text}");
        let fastest = "fastest of those that fit: stage 3 within 100000\n  strategies: [],\n";
        assert!(text.ends_with(fastest), "{text}");
        assert_eq!(
            [9.996, 0.001, 0.5, 1.234e-5].map(super::time),
            ["10.0 s", "1.00 ms", "500 ms", "12.3 us"]
        );
    }
}
