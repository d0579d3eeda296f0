//! The ranks of a run: how many there are, where they run, and their share of a global batch.

use std::time::Duration;

use burn::tensor::{DType, Device};
use firebrick_datasets::{Amount, counted};
use firebrick_kernels::packed::Packing;
use firebrick_strategies::cost::{Held, PlannedParam};
use firebrick_strategies::{Effects, Mesh, Offload, Order, StrategyRecipe};
use firebrick_world::World;

use super::launcher::{Process, data_ranks, number_of_ranks};
use super::{DataRun, Run, RunStrategy};
use crate::RunError;
use firebrick::TrainError;
use firebrick::engine::ranks::STACK_BYTES;

/// Ranks of one process: each is a thread, and they exchange in turns.
pub(super) const MOST_RANKS: usize = 256;

impl Run {
    /// Returns the number of ranks: `ranks` of the run file, or one for each process that a launcher started.
    pub(crate) fn number_of_ranks(&self) -> usize {
        number_of_ranks(self.ranks)
    }

    /// Whether a rank may have more micro-batches per optimizer step than `accumulate` says. A global batch that is
    /// bounded by tokens is divided among the ranks by samples.
    pub(crate) fn steps_vary(&self) -> bool {
        self.data_ranks() > 1 && matches!(self.batch.amount(), Amount::Tokens(_))
    }

    /// Returns the ranks: threads of this process, or of each process that a launcher started.
    ///
    /// They use the `devices` of this machine in turn. Processes that share the machine begin at different devices.
    /// `held` returns the bytes that the model takes over all ranks of one of so many processes.
    ///
    /// # Errors
    ///
    /// The ranks cannot be divided evenly among the processes, a process has too many of them, or this program was
    /// built without MPI.
    pub(crate) fn world(
        &self,
        mut devices: Vec<Device>,
        held: impl FnOnce(usize) -> f64,
    ) -> Result<World, RunError> {
        let (process, ranks) = (Process::this()?, self.number_of_ranks());
        if !ranks.is_multiple_of(process.of) {
            return Err(RunError::Ranks { ranks, processes: process.of });
        }
        let threads = ranks / process.of;
        if threads > MOST_RANKS {
            let needed = held(process.of) + threads as f64 * STACK_BYTES as f64;
            return Err(RunError::TooManyRanks { ranks: threads, most: MOST_RANKS, needed });
        }
        let world = of_processes(process, threads);
        let world = match self.deadline {
            Some(seconds) => world.deadline(Duration::from_secs(seconds)),
            None => world,
        };
        if let Some(first) = (process.on_machine * threads).checked_rem(devices.len()) {
            devices.rotate_left(first);
        }
        let world = match self.link {
            Some(link) => world.over_link(link.into()),
            None => world,
        };
        Ok(world.on(devices).nccl(self.nccl))
    }

    /// Rejects a mesh that does not divide the ranks.
    pub(super) fn require_mesh(&self) -> Result<(), RunError> {
        let mesh = self.strategies.iter().find_map(RunStrategy::downcast_ref::<Mesh>);
        Ok(mesh.map_or(Ok(()), |mesh| mesh.check_ranks(self.number_of_ranks())).map_err(TrainError::from)?)
    }

    /// Returns the number of ranks that train on samples of their own, or of groups whose ranks train on the same ones.
    pub(crate) fn data_ranks(&self) -> usize {
        data_ranks(self.ranks, &self.strategies)
    }

    /// Returns the strategies that [`bytes_per_parameter`](Self::bytes_per_parameter) counts: those that reduce gradients, or
    /// all of them if a disk keeps a part of the state, as what stays in memory then depends on all.
    pub(crate) fn counted_order(&self) -> Order {
        let effects: Vec<Effects> = self.composed().iter().map(|strategy| strategy.effects()).collect();
        let on_disk = effects.iter().any(|effects| effects.on_disk.is_some());
        // A list that is refused later is counted as data-parallel training.
        Order::of(effects.into_iter().filter(|effects| on_disk || effects.reduces.is_some()))
            .unwrap_or_default()
    }

    /// The same, of a run that also keeps the parameters of blocks on a disk.
    pub(crate) fn order_on_disk(&self) -> Order {
        let composed = self.composed();
        let effects = composed.iter().map(|strategy| strategy.effects());
        let stays = effects.filter(|effects| effects.reduces.is_some() || effects.averages);
        Order::of(stays.chain([Offload::parameters().on("disk").effects()])).unwrap_or_default()
    }

    /// Returns the bytes of memory per parameter that one of `processes` processes needs, over all its ranks: weights,
    /// gradients and optimizer state, sharded as the ZeRO stage says, and without what a disk keeps. What is offloaded to
    /// the host counts, since it is in the memory of the process. A frozen parameter needs only its weights, or less where it
    /// is packed.
    pub(crate) fn bytes_per_parameter(&self, order: &Order, processes: usize, kind: ParameterKind) -> f64 {
        let ParameterKind { is_trained, in_block, packing } = kind;
        let shape = [1 << 20, 1 << 20];
        let matrix = PlannedParam {
            shape: &shape,
            master_bytes: 4,
            replica_bytes: order.replica().map_or(4, |replica| DType::from(replica).size() as u64),
            is_trained,
            in_block,
            in_last_block: false,
            is_factor: false,
            packing,
        };
        let ranks = self.number_of_ranks().max(1);
        let held = Held::of([matrix], order, false, ranks as u64, &*self.optimizer);
        let bytes = held.between() + held.host + held.gradients;
        ranks as f64 / processes as f64 * bytes as f64 / 2f64.powi(40)
    }

    /// Describes the size of a global batch: `4 ranks x 2 micro-batches of 8 = 64 samples in an update`.
    pub(crate) fn batch_summary(&self) -> String {
        let (ranks, micro_batches) = (self.data_ranks(), DataRun::from(self).micro_batches());
        let all = ranks.saturating_mul(micro_batches);
        let (micro, global) = match self.batch.amount() {
            Amount::Samples(samples) => {
                (samples.to_string(), counted(samples.saturating_mul(all), "sample").to_string())
            }
            Amount::Tokens(tokens) => {
                let most = |tokens: usize| format!("at most {}", counted(tokens, "token"));
                (most(tokens), most(tokens.saturating_mul(all)))
            }
        };
        let ranks = match self.number_of_ranks() / ranks {
            0 | 1 => counted(ranks, "rank").to_string(),
            each => format!("{} of {each} ranks", counted(ranks, "group")),
        };
        let micro_batches = counted(micro_batches, "micro-batch");
        format!("{ranks} x {micro_batches} of {micro} = {global} in an update")
    }
}

/// Parameters that take the same bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterKind {
    pub is_trained: bool,
    /// Whether they belong to a single block, so that a disk can keep them.
    pub in_block: bool,
    pub packing: Option<Packing>,
}

impl ParameterKind {
    /// Trained parameters of blocks: of those that are trained, they need the least memory.
    pub const TRAINED: Self = Self { is_trained: true, in_block: true, packing: None };
    pub const FROZEN: Self = Self { is_trained: false, ..Self::TRAINED };
}

#[cfg(feature = "mpi")]
fn of_processes(process: Process, threads: usize) -> World {
    match process.of {
        1 => World::threads(threads),
        _ => World::mpi().threads_each(threads),
    }
}

#[cfg(not(feature = "mpi"))]
fn of_processes(_: Process, threads: usize) -> World {
    World::threads(threads)
}

#[cfg(test)]
mod tests {
    use firebrick_world::Link;

    use super::*;

    fn run(sets: &[&str]) -> Run {
        Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), sets).unwrap()
    }

    fn bytes(sets: &[&str], processes: usize, kind: ParameterKind) -> f64 {
        let run = run(sets);
        run.bytes_per_parameter(&run.counted_order(), processes, kind)
    }

    #[test]
    fn a_global_batch_summary() {
        let words = |sets: &[&str]| run(sets).batch_summary();
        let four = ["ranks=4", "batch=(micro: 8, accumulate: 2)"];
        assert_eq!(words(&four), "4 ranks x 2 micro-batches of 8 = 64 samples in an update");
        let one = ["batch=(micro: 1)", "strategies=[]"];
        assert_eq!(words(&one), "1 rank x 1 micro-batch of 1 = 1 sample in an update");
        let tokens = ["ranks=2", "batch=(micro_tokens: 512)", "strategies=[Accumulate(3)]"];
        let expected = "2 ranks x 3 micro-batches of at most 512 tokens = at most 3072 tokens in an update";
        assert_eq!(words(&tokens), expected);
    }

    #[test]
    fn all_ranks_of_a_process_take_memory_but_what_they_share_is_there_once() {
        let bytes = |sets: &[&str], processes| bytes(sets, processes, ParameterKind::TRAINED);
        assert_eq!(bytes(&["strategies=[]"], 1), 16.0);
        // A row and a column for a whole matrix.
        assert_eq!(bytes(&["strategies=[]", "optimizer=Adafactor()"], 1).round(), 8.0);
        for (stage, expected) in [(0, 4.0 * 16.0), (1, 4.0 * 8.0 + 8.0), (2, 4.0 * 4.0 + 12.0), (3, 16.0)] {
            let strategies = format!("strategies=[Zero(stage: {stage})]");
            assert_eq!(bytes(&["ranks=4", &strategies], 1), expected, "stage {stage}");
            assert_eq!(bytes(&["ranks=4", &strategies], 2), expected / 2.0, "stage {stage}");
        }
        let frozen = |sets: &[&str]| self::bytes(sets, 1, ParameterKind::FROZEN);
        assert_eq!(frozen(&["strategies=[]"]), 4.0);
        assert_eq!(frozen(&["ranks=4", "strategies=[Zero(stage: 2)]"]), 4.0 * 4.0);
        assert_eq!(frozen(&["ranks=4", "strategies=[Zero(stage: 3)]"]), 4.0);
    }

    #[test]
    fn what_a_disk_keeps_takes_no_memory() {
        let bytes = |strategies: &str, kind| bytes(&[&format!("strategies=[{strategies}]")], 1, kind);
        let outside = |kind| ParameterKind { in_block: false, ..kind };
        let parameters = r#"Offload(keep: parameters, on: "/x")"#;
        // The gradients.
        assert_eq!(bytes(parameters, ParameterKind::TRAINED), 4.0);
        assert_eq!(bytes(parameters, ParameterKind::FROZEN), 0.0);
        // Those of no block stay, without their state.
        assert_eq!(bytes(parameters, outside(ParameterKind::TRAINED)), 8.0);
        assert_eq!(bytes(parameters, outside(ParameterKind::FROZEN)), 4.0);
        // Master, replica and gradients: AdamW's 8 bytes are on the disk.
        let optimizer = r#"Offload(keep: optimizer, on: "/x")"#;
        for kind in [ParameterKind::TRAINED, outside(ParameterKind::TRAINED)] {
            assert_eq!(bytes(optimizer, kind), 12.0);
        }
        assert_eq!(bytes(optimizer, ParameterKind::FROZEN), 8.0);
        // The replica of another dtype is smaller, and so are its gradients.
        assert_eq!(bytes(&format!("{optimizer}, Amp(bf16)"), ParameterKind::TRAINED), 8.0);
        assert_eq!(bytes(&format!("{parameters}, Amp(bf16)"), ParameterKind::TRAINED), 2.0);
        // An average stays in memory.
        assert_eq!(bytes(&format!("{parameters}, Ema(decay: 0.9)"), ParameterKind::TRAINED), 8.0);
        let sharded = format!("strategies=[Zero(stage: 3), {parameters}]");
        assert_eq!(self::bytes(&["ranks=4", &sharded], 1, ParameterKind::TRAINED), 4.0);
        assert_eq!(self::bytes(&["ranks=4", &sharded], 2, ParameterKind::TRAINED), 2.0);
        let run = run(&["strategies=[]"]);
        assert_eq!(run.bytes_per_parameter(&run.order_on_disk(), 1, ParameterKind::TRAINED), 4.0);
        let averages = self::run(&["strategies=[Ema(decay: 0.9)]"]);
        assert_eq!(averages.bytes_per_parameter(&averages.order_on_disk(), 1, ParameterKind::TRAINED), 8.0);
    }

    #[test]
    fn too_many_ranks_are_refused_with_the_bytes_that_they_would_take() {
        assert!(run(&["ranks=256"]).world(vec![], |_| unreachable!()).is_ok());
        let error = run(&["ranks=257"]).world(vec![], |processes| processes as f64 * 1e9).unwrap_err();
        let stacks = 257.0 * 8.0 * 1024.0 * 1024.0;
        assert!(
            matches!(error, RunError::TooManyRanks { ranks: 257, most: 256, needed } if needed == 1e9 + stacks)
        );
        assert!(error.to_string().contains("take at least 3.2 GB"), "{error}");
    }

    #[test]
    fn the_world_has_the_ranks_the_deadline_and_the_devices_of_the_run() {
        let host = run(&["ranks=3", "deadline=7", "nccl=false"]);
        let expected = World::threads(3).deadline(Duration::from_secs(7));
        assert_eq!(host.world(vec![], |_| 0.0).unwrap(), expected.clone().nccl(false));
        let run = run(&["ranks=3", "deadline=7"]);
        assert_eq!(run.world(vec![], |_| 0.0).unwrap(), expected);
        let slow = self::run(&["ranks=3", "deadline=7", "link=(bytes_per_second: \"10MB\", latency: 0.001)"]);
        let link = Link::new(10e6).latency(Duration::from_millis(1));
        assert_eq!(slow.world(vec![], |_| 0.0).unwrap(), expected.clone().over_link(link));
        let one = vec![Device::flex()];
        assert_eq!(run.world(one.clone(), |_| 0.0).unwrap(), expected.clone().on(one));
        let two = vec![Device::flex(), Device::flex().autodiff()];
        assert_eq!(run.world(two.clone(), |_| 0.0).unwrap(), expected.on(two));
    }
}
