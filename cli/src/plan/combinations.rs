//! The sensible combinations of strategies, cheapest first.

use std::fmt::{self, Display};

use burn::tensor::FloatDType;
use firebrick_strategies::{Amp, Mesh, Offload, Offloads, OnDisk, Order, Recompute, Zero};

use crate::run::{first_effect, in_order, sum};
use crate::{Run, RunStrategy};

/// A combination of strategies.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Combination {
    /// The strategies as in a run file, including micro-batches and ranks.
    pub strategies: Vec<RunStrategy>,
    cost: (usize, bool, bool, u8, bool, usize),
}

/// Returns all combinations for the run on its ranks, in the order of their cost.
///
/// The most expensive part of a combination determines its cost:
///
/// 1. mixed precision, which makes steps faster on most GPUs;
/// 2. ZeRO 1, which sends no more than data-parallel training;
/// 3. ZeRO 2, which sends gradients with each micro-batch;
/// 4. recompute, which adds a third of the computation;
/// 5. ZeRO 3, which adds the same third, and sends the parameters of blocks twice with each micro-batch;
/// 6. the optimizer on the host: gradients and parameters cross the bus once per update, and the CPU computes the
///    update;
/// 7. parameters on the host: they cross the bus twice with each micro-batch.
///
/// If micro-batches are accumulated, ZeRO 1 and the optimizer on the host stand there twice: they send gradients once per
/// update, or with each micro-batch, which takes less memory.
///
/// The run's other strategies and its own settings of these ones are kept.
pub(super) fn combinations(run: &Run, has_bf16: bool, has_f16: bool) -> Vec<Combination> {
    let own = Own::of(run);
    let unpacks = own.adapting.iter().any(|strategy| strategy.effects().quantizes.is_some());
    let mut all = Vec::new();
    for offload in [None, Some(Offloads::Optimizer), Some(Offloads::Parameters)] {
        for stage in 0..=if run.number_of_ranks() > 1 { 3 } else { 0 } {
            for recompute in [false, true] {
                let runs_again = stage == 3 || offload == Some(Offloads::Parameters) || unpacks;
                if recompute && runs_again {
                    continue;
                }
                let is_choice = own.accumulate.is_some()
                    && match offload {
                        None => stage == 1,
                        // Behind stage 0, gradients are moved when they are summed.
                        Some(Offloads::Optimizer) => stage > 0 || run.number_of_ranks() == 1,
                        Some(Offloads::Parameters) => false,
                    };
                for &each in if is_choice { &[false, true][..] } else { &[false] } {
                    for (dearer, amp) in own.precisions(has_bf16, has_f16).into_iter().enumerate() {
                        let level = offload.map_or(0, |of| 1 + of as usize);
                        let cost = (level, stage == 3, recompute, stage, each, dearer);
                        let zero = (stage > 0).then(|| own.zero(stage, each && stage == 1));
                        // So they are behind stage 1.
                        let each_update = is_choice && !each && stage != 1;
                        let offload = offload.map(|of| own.offload(of, each_update));
                        all.push(Combination { strategies: own.list([zero, offload], recompute, amp), cost });
                    }
                }
            }
        }
    }
    all.sort_by_key(|one| one.cost);
    all
}

/// Returns the run's own strategies with this stage of ZeRO in place of theirs, for several ranks, and with groups of
/// `within` ranks if they are given.
pub(super) fn at_stage(run: &Run, stage: u8, within: Option<usize>) -> Vec<RunStrategy> {
    let (reduces, mut list): (Vec<_>, Vec<_>) =
        run.composed().into_iter().partition(|strategy| strategy.effects().reduces.is_some());
    list.push(RunStrategy::new("Zero", zero(reduces.first(), stage, within)));
    in_order(list)
}

/// The ranks of the axes of a mesh, but for those that are left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    pub tensor: usize,
    pub pipeline: usize,
    pub context: usize,
}

impl Display for Axes {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        let Self { tensor, pipeline, context } = *self;
        let axes = [("tensor", tensor), ("pipeline", pipeline), ("context", context)];
        let axes = axes.iter().filter(|(_, ranks)| *ranks > 1).map(|(axis, ranks)| format!("{axis} {ranks}"));
        to.write_str(&axes.collect::<Vec<_>>().join(", "))
    }
}

/// Returns the run's own strategies on another mesh, with as many samples in an update: as fewer ranks have samples of their own, each
/// has more micro-batches. `None` if it would need a part of one.
pub(super) fn on_mesh(run: &Run, order: &Order, axes: Axes) -> Option<Vec<RunStrategy>> {
    let Axes { tensor, pipeline, context } = axes;
    let micro_batches = order.micro_batches() * tensor * pipeline * context;
    let own = order.ranks_per_model() * order.context();
    if !micro_batches.is_multiple_of(own) {
        return None;
    }
    let composed = run.composed();
    let reduces = composed.iter().find(|strategy| strategy.effects().reduces.is_some());
    // A pipeline goes with stages up to 2.
    let stage = reduces.map_or(1, |_| order.stage().min(if pipeline > 1 { 2 } else { 3 }));
    let zero = RunStrategy::new("Zero", zero(reduces, stage, None));
    let dtype = first_effect(&composed, |effects| effects.sums).map_or(FloatDType::F32, |sums| sums.dtype);
    let mesh = RunStrategy::new("Mesh", Mesh::new().tensor(tensor).pipeline(pipeline).context(context));
    let list = composed.into_iter().filter(|strategy| {
        let effects = strategy.effects();
        effects.reduces.is_none() && effects.sums.is_none() && effects.tensor.is_none()
    });
    let sum = (micro_batches > own).then(|| sum(micro_batches / own, dtype));
    Some(in_order(list.chain([zero, mesh]).chain(sum).collect()))
}

/// Returns the run's own ZeRO in this stage, or one with the defaults.
fn zero(own: Option<&RunStrategy>, stage: u8, within: Option<usize>) -> Zero {
    let own = own.and_then(RunStrategy::downcast_ref::<Zero>);
    let zero = own.map_or(Zero::stage(stage), |zero| zero.clone().at_stage(stage).in_one_copy());
    if let Some(within) = within { zero.within(within) } else { zero }
}

/// The strategies that the run itself asks for.
#[derive(Default)]
struct Own {
    amp: Option<RunStrategy>,
    zero: Option<RunStrategy>,
    accumulate: Option<RunStrategy>,
    disk: Option<OnDisk>,
    /// The bytes of a bucket between host and device.
    moves: Option<usize>,
    /// Strategies that change the model before anything else acts.
    adapting: Vec<RunStrategy>,
    /// The other strategies, in their order, which come last.
    rest: Vec<RunStrategy>,
}

impl Own {
    fn of(run: &Run) -> Self {
        let mut own = Self::default();
        for strategy in run.composed() {
            let effects = strategy.effects();
            own.disk = own.disk.or(effects.on_disk);
            own.moves = own.moves.or(effects.moves);
            if effects.casts.is_some() {
                own.amp = Some(strategy);
            } else if effects.reduces.is_some() {
                own.zero = Some(strategy);
            } else if let Some(sums) = effects.sums {
                own.accumulate = (sums.micro_batches > 1).then_some(strategy);
            } else if effects.adapts {
                own.adapting.push(strategy);
            } else if effects.recomputes.is_none() && effects.offloads.is_none() {
                own.rest.push(strategy);
            }
        }
        own
    }

    /// No mixed precision, followed by the run's own, or by a half-precision dtype that the device supports.
    fn precisions(&self, has_bf16: bool, has_f16: bool) -> Vec<Option<RunStrategy>> {
        let is_half =
            |amp: &&RunStrategy| amp.effects().casts.is_some_and(|casts| casts.replica != FloatDType::F32);
        let half = match self.amp.as_ref().filter(is_half) {
            Some(amp) => Some(amp.clone()),
            None if has_bf16 => Some(RunStrategy::new("Amp", Amp::bf16())),
            None if has_f16 => Some(RunStrategy::new("Amp", Amp::f16())),
            None => None,
        };
        [None].into_iter().chain(half.map(Some)).collect()
    }

    /// Returns ZeRO in this stage, by default or with sums of each micro-batch.
    fn zero(&self, stage: u8, each_micro_batch: bool) -> RunStrategy {
        let zero = zero(self.zero.as_ref(), stage, None);
        RunStrategy::new("Zero", if each_micro_batch { zero.each_micro_batch() } else { zero })
    }

    /// Returns what keeps this on the host, by default or with gradients that are moved once per update.
    fn offload(&self, offloads: Offloads, each_update: bool) -> RunStrategy {
        let offload = self.moves.into_iter().fold(Offload::from(offloads), Offload::bucket_bytes);
        let offload = self.disk.iter().fold(offload, |offload, disk| offload.on(&disk.folder));
        RunStrategy::new("Offload", if each_update { offload.each_update() } else { offload })
    }

    /// Lists the strategies.
    fn list(
        &self,
        given: [Option<RunStrategy>; 2],
        recompute: bool,
        amp: Option<RunStrategy>,
    ) -> Vec<RunStrategy> {
        let recompute = recompute.then(|| RunStrategy::new("Recompute", Recompute::every_block()));
        let list = given.into_iter().chain([amp, recompute, self.accumulate.clone()]).flatten();
        in_order(self.adapting.iter().cloned().chain(list).chain(self.rest.iter().cloned()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::strategies_line;

    fn lists(sets: &[&str], has_bf16: bool) -> Vec<String> {
        let run = Run::parse("file", include_str!("../../../examples/tinyshakespeare.ron"), sets).unwrap();
        let all = combinations(&run, has_bf16, true);
        all.iter().map(|one| strategies_line(&one.strategies)).collect()
    }

    #[test]
    fn one_rank_divides_nothing_and_the_cheapest_come_first() {
        let expected = [
            "",
            "Amp(bf16)",
            "Recompute(every: 1)",
            "Amp(bf16), Recompute(every: 1)",
            "Offload(optimizer)",
            "Offload(optimizer), Amp(bf16)",
            "Offload(optimizer), Recompute(every: 1)",
            "Offload(optimizer), Amp(bf16), Recompute(every: 1)",
            "Offload(parameters)",
            "Offload(parameters), Amp(bf16)",
        ];
        let found = lists(&["strategies=[]", "ranks=1"], true);
        assert_eq!(found, expected.map(|list| format!("strategies: [{list}],")));
        assert!(lists(&["strategies=[]"], false)[1].contains("Amp(f16)"));
    }

    #[test]
    fn a_disk_is_kept() {
        let sets = [r#"strategies=[Offload(keep: optimizer, on: "/nvme", bucket_bytes: 9)]"#, "ranks=1"];
        let found = lists(&sets, true);
        let offloaded: Vec<_> = found.iter().filter(|list| list.contains("Offload")).collect();
        assert_eq!(offloaded.len(), 6);
        assert!(offloaded.iter().all(|list| list.contains(r#"on: "/nvme", bucket_bytes: 9"#)), "{found:#?}");
    }

    #[test]
    fn ranks_share_before_blocks_are_run_again_and_each_list_is_one_that_can_be() {
        let sets = [
            "strategies=[Zero(stage: 2, replicate_below: 9), Accumulate(2), Clip(norm: 1.0), Lora(rank: 2)]",
            "ranks=2",
        ];
        let found = lists(&sets, true);
        // Stage 1 stands there twice, and with the optimizer on the host also stages 2 and 3.
        assert_eq!(found.len(), 2 * ((7 + 2) + (7 + 5) + 4));
        assert_eq!(found[0], "strategies: [Lora(rank: 2, alpha: 2.0), Accumulate(2), Clip(norm: 1.0)],");
        let first = |part: &str| found.iter().position(|list| list.contains(part)).unwrap();
        let order = [
            "Amp",
            "stage: 1",
            "each_micro_batch",
            "stage: 2",
            "Recompute",
            "stage: 3",
            "(optimizer)",
            "each_update",
            "(parameters)",
        ]
        .map(first);
        assert!(order.is_sorted(), "{order:?}: {found:#?}");
        assert!(found.iter().all(|list| !list.contains("Zero") || list.contains("replicate_below: 9")));
    }

    #[test]
    fn another_stage_takes_the_place_that_it_needs() {
        let sets = [
            "strategies=[Lora(rank: 2), Amp(bf16), Zero(stage: 1, replicate_below: 9), Accumulate(2), Clip(norm: 1.0)]",
        ];
        let text = include_str!("../../../examples/tinyshakespeare.ron");
        let run = Run::parse("file", text, &[sets[0], "ranks=2"]).unwrap();
        let lists = [0, 1, 2, 3].map(|stage| strategies_line(&at_stage(&run, stage, None)));
        for (stage, list) in lists.iter().enumerate() {
            let zero = format!("Zero(stage: {stage}, replicate_below: 9)");
            let expected = match stage {
                0 | 1 => {
                    format!("Lora(rank: 2, alpha: 2.0), Accumulate(2), {zero}, Amp(bf16), Clip(norm: 1.0)")
                }
                _ => format!("Lora(rank: 2, alpha: 2.0), {zero}, Amp(bf16), Accumulate(2), Clip(norm: 1.0)"),
            };
            assert_eq!(*list, format!("strategies: [{expected}],"));
        }
        // A row of hybrid sharding stands beside these, in which all ranks share one copy.
        let hybrid =
            Run::parse("file", text, &["strategies=[Zero(stage: 3, within: 2)]", "ranks=4"]).unwrap();
        for (within, expected) in [(None, "Zero(stage: 3)"), (Some(4), "Zero(stage: 3, within: 4)")] {
            let list = strategies_line(&at_stage(&hybrid, 3, within));
            assert_eq!(list, format!("strategies: [{expected}],"));
        }
    }
}
