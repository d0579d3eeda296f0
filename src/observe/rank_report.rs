//! The report of each rank: what it held, sent and waited for.

use std::collections::BTreeMap;

use firebrick_world::{Collective, Communicator, Traffic};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::accounting::{DiskBytes, ParameterBytes};
use crate::gather::gather;

/// The numbers of one of several ranks. Sent and received bytes cover the steps only, not the initial distribution,
/// evaluations, or gathers for a save.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RankReport {
    /// The rank, from 0.
    pub rank: usize,
    /// [`Report::master_bytes`](crate::Report::master_bytes) of this rank.
    pub master_bytes: usize,
    /// [`Report::replica_bytes`](crate::Report::replica_bytes) of this rank.
    pub replica_bytes: usize,
    /// [`Report::gradient_bytes`](crate::Report::gradient_bytes) of this rank.
    pub gradient_bytes: usize,
    /// [`Report::optimizer_bytes`](crate::Report::optimizer_bytes) of this rank.
    pub optimizer_bytes: usize,
    /// [`Report::disk`](crate::Report::disk) of this rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskBytes>,
    /// [`Report::peak_bytes`](crate::Report::peak_bytes) of this rank.
    pub peak_bytes: usize,
    /// What the rank exchanged with others per update, on average, by kind of call.
    pub per_step: BTreeMap<Collective, PerStep>,
    /// Seconds that other ranks waited for this one, summed over them and over all steps.
    pub awaited_seconds: f64,
    /// Seconds that this rank waited for each rank, over all steps.
    pub waited_seconds: Vec<f64>,
}

/// What a rank exchanged in a step, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PerStep {
    /// Number of calls.
    pub calls: f64,
    /// Elements sent to other ranks.
    pub elements: f64,
    /// Bytes sent to other ranks.
    pub sent_bytes: f64,
    /// Bytes received from other ranks.
    pub received_bytes: f64,
}

/// What a rank exchanged in its steps, and which ranks it waited for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Exchanged {
    pub traffic: Traffic,
    pub waited: Vec<f64>,
}

impl Exchanged {
    /// Returns everything exchanged so far.
    pub fn of(world: &Communicator) -> Self {
        Self { traffic: world.traffic(), waited: world.lateness() }
    }

    /// Returns what was exchanged since an earlier state.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |rank: usize| earlier.waited.get(rank).copied().unwrap_or(0.0);
        let waited = self.waited.iter().enumerate().map(|(rank, now)| now - before(rank));
        Self { traffic: self.traffic.since(&earlier.traffic), waited: waited.collect() }
    }

    /// Returns the number of calls, over all kinds.
    pub fn calls(&self) -> u64 {
        self.traffic.kinds.values().map(|moved| moved.calls).sum()
    }

    /// Adds what a step exchanged.
    pub fn add(&mut self, step: &Self) {
        for (kind, more) in &step.traffic.kinds {
            let sum = self.traffic.kinds.entry(*kind).or_default();
            sum.calls += more.calls;
            sum.elements += more.elements;
            sum.sent += more.sent;
            sum.received += more.received;
        }
        self.waited.resize(self.waited.len().max(step.waited.len()), 0.0);
        self.waited.iter_mut().zip(&step.waited).for_each(|(sum, more)| *sum += more);
    }

    /// Returns the bytes sent and received, over all kinds.
    pub fn bytes(&self) -> (u64, u64) {
        let kinds = self.traffic.kinds.values();
        kinds.fold((0, 0), |(sent, received), moved| (sent + moved.sent, received + moved.received))
    }

    /// Returns the rank that this one waited for longest, and the seconds.
    pub fn slowest(&self) -> Option<(usize, f64)> {
        let ranks = self.waited.iter().copied().enumerate();
        ranks.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|(_, seconds)| *seconds > 0.0)
    }
}

impl RankReport {
    /// Exchanges the numbers of all ranks and returns a report of each, by rank. Returns none if there is only one
    /// rank.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub(crate) fn gather(
        world: &Communicator,
        bytes: ParameterBytes,
        peak: usize,
        exchanged: &Exchanged,
        steps: u64,
    ) -> Result<Vec<Self>, TrainError> {
        if world.size() == 1 {
            return Ok(Vec::new());
        }
        let disk = bytes.disk;
        let bytes = [bytes.master, bytes.replica, bytes.gradients, bytes.optimizer, peak];
        let mut exchanged = exchanged.clone();
        exchanged.waited.resize(world.size(), 0.0);
        let all = gather(world, "the report", &(bytes, disk, exchanged))?;
        let of_rank = |(rank, (bytes, disk, exchanged)): (usize, _)| Self {
            disk,
            ..Self::new(rank, bytes, exchanged, steps)
        };
        let mut reports: Vec<_> = all.into_iter().enumerate().map(of_rank).collect();
        let waited: Vec<Vec<f64>> = reports.iter().map(|report| report.waited_seconds.clone()).collect();
        for report in &mut reports {
            report.awaited_seconds = waited.iter().filter_map(|waited| waited.get(report.rank)).sum();
        }
        Ok(reports)
    }

    fn new(rank: usize, bytes: [usize; 5], exchanged: Exchanged, steps: u64) -> Self {
        let [master_bytes, replica_bytes, gradient_bytes, optimizer_bytes, peak_bytes] = bytes;
        let per_step = exchanged.traffic.kinds.into_iter().filter(|(_, moved)| moved.calls > 0);
        let per_step = per_step.map(|(kind, moved)| {
            let per_step = |sum: u64| sum as f64 / steps.max(1) as f64;
            let [calls, elements, sent_bytes, received_bytes] =
                [moved.calls, moved.elements, moved.sent, moved.received].map(per_step);
            (kind, PerStep { calls, elements, sent_bytes, received_bytes })
        });
        Self {
            rank,
            master_bytes,
            replica_bytes,
            gradient_bytes,
            optimizer_bytes,
            disk: None,
            peak_bytes,
            per_step: per_step.collect(),
            awaited_seconds: 0.0,
            waited_seconds: exchanged.waited,
        }
    }

    /// Returns the bytes sent and received per step, over all kinds.
    pub fn bytes_per_step(&self) -> (f64, f64) {
        let kinds = self.per_step.values();
        kinds.fold((0.0, 0.0), |(sent, received), step| {
            (sent + step.sent_bytes, received + step.received_bytes)
        })
    }
}

/// Formats a table of what each rank held and sent, and how long others waited for it; empty for a single rank.
pub fn table_of_ranks(ranks: &[RankReport]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let line = |cells: [String; 9]| {
        let [rank, cells @ ..] = cells;
        cells.into_iter().fold(format!("{rank:<5}"), |line, cell| line + &format!(" {cell:>10}")) + "\n"
    };
    let names =
        ["rank", "master", "replica", "gradients", "optimizer", "peak", "sent/step", "received", "awaited"];
    let megabytes = |bytes: f64| format!("{:.2}", bytes / 1e6);
    let rows = ranks.iter().map(|rank| {
        let (sent, received) = rank.bytes_per_step();
        let held = [rank.master_bytes, rank.replica_bytes, rank.gradient_bytes, rank.optimizer_bytes];
        let [master, replica, gradients, optimizer] = held.map(|bytes| megabytes(bytes as f64));
        let peak = megabytes(rank.peak_bytes as f64);
        let awaited = format!("{:.2} s", rank.awaited_seconds);
        let (sent, received) = (megabytes(sent), megabytes(received));
        line([rank.rank.to_string(), master, replica, gradients, optimizer, peak, sent, received, awaited])
    });
    let rows: String = rows.collect();
    format!(
        "\nMB of each rank; the seconds that all others together waited for it\n{}{rows}",
        line(names.map(String::from))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::on_ranks;

    #[test]
    fn all_ranks_know_the_numbers_of_each() {
        let reports = on_ranks(3, |world| {
            let before = Exchanged::of(&world);
            let tensor = burn::tensor::Tensor::<1>::ones([6], &burn::tensor::Device::flex());
            for _ in 0..2 {
                let _ = world.reduce_scatter(tensor.clone()).unwrap();
            }
            let mut exchanged = Exchanged::default();
            exchanged.add(&Exchanged::of(&world).since(&before));
            let bytes = ParameterBytes { master: 100 + world.rank(), ..Default::default() };
            RankReport::gather(&world, bytes, 7, &exchanged, 2).unwrap()
        });
        assert!(reports.iter().all(|report| *report == reports[0]));
        for (rank, report) in reports[0].iter().enumerate() {
            assert_eq!((report.rank, report.master_bytes, report.peak_bytes), (rank, 100 + rank, 7));
            // Two thirds of six elements, in each of two steps.
            let moved = PerStep { calls: 1.0, elements: 4.0, sent_bytes: 16.0, received_bytes: 16.0 };
            assert_eq!(report.per_step, BTreeMap::from([(Collective::ReduceScatter, moved)]));
            assert_eq!(report.bytes_per_step(), (16.0, 16.0));
            let awaited: f64 = reports[0].iter().map(|other| other.waited_seconds[rank]).sum();
            assert_eq!(report.awaited_seconds, awaited);
        }
    }

    #[test]
    fn the_slowest_rank_is_the_one_that_was_waited_for_longest() {
        let exchanged = Exchanged { waited: vec![0.0, 0.5, 0.25], ..Default::default() };
        assert_eq!(exchanged.slowest(), Some((1, 0.5)));
        assert_eq!(Exchanged { waited: vec![0.0; 2], ..Default::default() }.slowest(), None);
    }
}
